"""Cached hashes of local files.

As in git's index, a file counts as unchanged while its device, inode, size and times are unchanged. Programs cannot
set the time of the last status change (ctime), so a program that resets the modification time is detected, too.
"""

from __future__ import annotations

import os
import time

from torchx.workspace.content import Entry, sha256_of
from torchx.workspace.files import identity_of
from torchx.workspace.images.cache import Cache

# A file written to within this time may be written to again without a change of its times: the clock of a file system
# ticks every few milliseconds, that of an old NFS server every second.
TICK_S = 2.0

_CACHE = Cache("workspaces", most=500)


class FileHashes:
    """SHA-256 of the files of one workspace, cached in ``$TORCHX_HOME/cache/workspaces`` under a key.

    If the cache cannot be read or written, files are read again.

    >>> import tempfile
    >>> from torchx.workspace.content import entries
    >>> with FileHashes("/src") as hashes:
    ...     [hashes.of(entry) for entry in entries(tempfile.mkdtemp())]
    []
    """

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._known: dict[tuple[int, ...], str] | None = None
        self._used: dict[tuple[int, ...], str] = {}

    def of(self, entry: Entry) -> str:
        """Return the SHA-256 of the content in hex; raise SpecError if the file has to be read, but cannot be."""
        if not entry.identity:
            return sha256_of(entry)
        known = self.known(entry)
        if known:
            return known
        now = time.time()
        digest = sha256_of(entry)
        self.learn(entry, digest, read_at=now)
        return digest

    def known(self, entry: Entry) -> str:
        """Return the cached hash if the file is unchanged; else empty."""
        if self._known is None:
            self._known = _load(_CACHE.recall(self._workspace))
        digest = self._known.get(entry.identity, "")
        if digest:
            self._used[entry.identity] = digest
        return digest

    def learn(self, entry: Entry, digest: str, *, read_at: float) -> None:
        """Cache a hash, unless the file may have changed since the Unix time ``read_at``, or may yet undetected."""
        changed_at = max(entry.identity[-2:], default=0) / 1e9
        if entry.identity and changed_at < read_at - TICK_S and identity(entry.local) == entry.identity:
            self._used[entry.identity] = digest

    def __enter__(self) -> FileHashes:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Save the hashes that were used; drops those of files that no longer exist."""
        import json

        if kind is None and self._used != (self._known or {}):
            rows = [[*known, digest] for known, digest in self._used.items()]
            _CACHE.remember(self._workspace, json.dumps(rows).encode())


def _load(content: bytes) -> dict[tuple[int, ...], str]:
    import json

    try:
        return {tuple(map(int, numbers)): str(digest) for *numbers, digest in json.loads(content)}
    except (ValueError, TypeError, OverflowError):  # there is none yet, or it is damaged
        return {}


def identity(path: str) -> tuple[int, ...]:
    """Return the :func:`~torchx.workspace.files.identity_of` a local file; empty if it does not exist."""
    try:
        return identity_of(os.stat(path, follow_symlinks=False))
    except OSError:
        return ()
