"""File operations of a command-driven backend, on this or another machine."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from torchx.errors import BackendError
from torchx.settings import make_private, torchx_home


class Files(Protocol):
    """Files of the machine where the scheduler's commands run. :class:`LocalFiles` documents the methods."""

    wait_s: float

    def home(self) -> str: ...
    def torchx_home(self, *parts: str) -> str: ...
    def cwd(self) -> str: ...
    def make_folder(self, path: str) -> None: ...
    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None: ...
    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes | None: ...
    def sizes(self, paths: Iterable[str]) -> dict[str, int | None]: ...
    def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]: ...
    def names(self, folder: str) -> list[str]: ...
    def remove(self, folder: str) -> None: ...


MAX_GROWN = 1 << 20
"""Maximum number of bytes that one call of ``grown`` returns per file. The next call returns the rest."""

_SOONEST_S = 0.02
_LATEST_S = 0.25


class LocalFiles:
    """Files of this machine, or of a file system that it shares. Paths are absolute.

    Every method raises BackendError with the path and the reason if the operation fails.
    """

    wait_s: float = 0.0
    """``wait_s`` that a polling reader passes to :meth:`grown`; above 0 if calls are expensive."""

    def home(self) -> str:
        """Return the user's home folder."""
        return os.path.expanduser("~")

    def torchx_home(self, *parts: str) -> str:
        """Return a path below torchx's home folder. Creates nothing."""
        return torchx_home(*parts)

    def cwd(self) -> str:
        """Return the working directory of commands, and of jobs that do not name another."""
        return os.getcwd()

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents if they do not exist. New folders are private to the user."""
        with _asked_to("be made", path):
            make_private(path)

    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a file atomically. Its folder must exist."""
        temporary = f"{path}.{os.getpid()}.new"
        with _asked_to("be written", path):
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as f:
                f.write(data)
            os.replace(temporary, path)

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes | None:
        """Read at most ``size`` bytes from ``offset`` on; None if there is no such regular file.

        A negative offset counts from the end of the file.
        """
        with (
            _asked_to("be read", path),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            # O_NONBLOCK: a job may have put a FIFO in the place of the file
            open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as f,
        ):
            found = os.fstat(f.fileno())
            if stat.S_ISREG(found.st_mode):
                f.seek(offset if offset >= 0 else max(0, found.st_size + offset))
                return f.read(size)
        return None

    def sizes(self, paths: Iterable[str]) -> dict[str, int | None]:
        """Size of each file in bytes; None if it does not exist."""
        found: dict[str, int | None] = {}
        for path in paths:
            try:
                found[path] = os.stat(path).st_size
            except OSError:
                found[path] = None
        return found

    def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
        """Read what was appended to files after the offsets, at most :data:`MAX_GROWN` bytes of each.

        Args:
            offsets: path -> offset to read from; a negative one counts from the end of the file.
            wait_s: seconds to wait until any file has grown.

        Returns:
            path -> data, for the files that have grown.
        """
        deadline = time.monotonic() + wait_s
        pause = _SOONEST_S
        while True:
            news = {path: data for path, at in offsets.items() if (data := self.read(path, at, MAX_GROWN))}
            left = deadline - time.monotonic()
            if news or left <= 0:
                return news
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LATEST_S)

    def names(self, folder: str) -> list[str]:
        """Names of the entries of a folder; empty if it does not exist."""
        with _asked_to("be read", folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.listdir(folder)
        return []

    def remove(self, folder: str) -> None:
        """Remove a file, or a folder with its contents, if it exists. Does not follow links."""
        import shutil

        with _asked_to("be removed", folder), contextlib.suppress(FileNotFoundError):
            if os.path.isdir(folder) and not os.path.islink(folder):
                shutil.rmtree(folder)
            else:
                os.unlink(folder)


@contextlib.contextmanager
def _asked_to(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise BackendError(f"`{path}` cannot {what}: {e.strerror or e}") from e
