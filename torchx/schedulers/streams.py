"""One file made of several that are still being written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import io

_BLOCK = 1 << 16
_PAUSE_S = 0.05


class Tee:
    """Copies what is appended to the sources into one file, until it is closed; closing copies the rest.

    Args:
        out: open for writing; it stays the caller's to close.
        sources: paths; one that does not exist yet is waited for.
    """

    def __init__(self, out: io.FileIO, *sources: str) -> None:
        import threading

        self._out = out
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._copy, args=(path,), daemon=True) for path in sources]
        for thread in self._threads:
            thread.start()

    def write(self, s: bytes) -> int:
        """Append all of ``s``; returns its length."""
        with self._lock:
            view = memoryview(s)
            while view:
                view = view[self._out.write(view) or 0 :]
        return len(s)

    def close(self) -> None:
        """Copy what the sources hold by now, and stop."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _copy(self, path: str) -> None:
        fd = -1
        try:
            while True:
                ended = self._ended.is_set()  # before reading: what was written by then is still copied
                fd = _open(path) if fd < 0 else fd
                while fd >= 0 and (block := os.read(fd, _BLOCK)):
                    self.write(block)
                if ended:
                    return
                self._ended.wait(_PAUSE_S)
        finally:
            if fd >= 0:
                os.close(fd)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
