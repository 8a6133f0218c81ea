"""Merges several growing files into one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import io

_BLOCK = 1 << 16
_PAUSE_S = 0.05


class Tee:
    """Copies what is appended to the sources into one file until it is closed. Closing copies the rest.

    Args:
        out: open for writing; the caller closes it.
        sources: paths; a file may be created later.
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
        """Append all of ``s`` and return its length."""
        with self._lock:
            view = memoryview(s)
            while view:
                view = view[self._out.write(view) or 0 :]
        return len(s)

    def close(self) -> None:
        """Copy what the sources contain now, then stop."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _copy(self, path: str) -> None:
        position = 0
        while True:
            ended = self._ended.is_set()  # before reading, so that all that was written until then is copied
            with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
                file.seek(position)
                while block := file.read(_BLOCK):
                    position += self.write(block)
            if ended:
                return
            self._ended.wait(_PAUSE_S)
