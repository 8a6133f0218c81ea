"""A cache of small files below ``$TORCHX_HOME/cache``: writes are atomic, and errors are ignored."""

from __future__ import annotations

import hashlib
import os

from torchx.settings import make_private, torchx_home
from torchx.supervisor.layout import private


class Cache:
    """Stores at most ``most`` values of bytes by key, in its own folder below ``$TORCHX_HOME/cache``."""

    def __init__(self, folder: str, *, most: int) -> None:
        self._folder = folder
        self._most = most

    def recall(self, key: str) -> bytes:
        """Return the stored bytes, or empty bytes."""
        try:
            with open(self._path(key), "rb") as f:
                return f.read()
        except OSError:
            return b""

    def remember(self, key: str, content: bytes) -> None:
        """Store bytes, if the home is writable."""
        path = self._path(key)
        draft = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
        try:
            make_private(os.path.dirname(path))
            try:
                with open(draft, "xb", opener=private) as f:
                    f.write(content)
                os.replace(draft, path)
            except OSError:
                if os.path.lexists(draft):
                    os.unlink(draft)
            self._drop_oldest()
        except OSError:
            return

    def _path(self, key: str) -> str:
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        return torchx_home("cache", self._folder, name)

    def _drop_oldest(self) -> None:
        folder = torchx_home("cache", self._folder)
        paths = [os.path.join(folder, name) for name in os.listdir(folder)]
        for path in sorted(paths, key=os.path.getmtime)[: -self._most]:
            os.unlink(path)
