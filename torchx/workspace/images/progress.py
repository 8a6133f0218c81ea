"""Progress output of builds and pushes: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TextIO

from torchx.util.strings import size_text
from torchx.util.term import fit, is_tty, printable, width

_REFRESH_S = 0.1


class Display:
    """Writes lines to a stream, followed by a progress line on a terminal; nothing if ``quiet``. Thread-safe."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self.is_live = not quiet and is_tty(stream)
        self.is_plain = not quiet and not self.is_live
        self._quiet = quiet
        self._clock = clock
        self._shown = False
        self._next = 0.0
        self._lock = threading.Lock()

    def doing(self, text: str) -> None:
        """Update the progress line on a terminal, cut to its width; skips updates that follow too quickly."""
        with self._lock:
            now = self._clock()
            if self.is_live and now >= self._next:
                self._next = now + _REFRESH_S
                self._shown = True
                self._write(f"\r{fit(printable(text), width(self.stream) - 1, pad=False)}\x1b[K")

    def line(self, text: str) -> None:
        """Write a permanent line."""
        with self._lock:
            self._clear()
            if not self._quiet:
                self._write(printable(text, lines=True) + "\n")

    def close(self) -> None:
        """Remove the progress line."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._shown:
            self._shown = False
            self._next = 0.0
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # a closed terminal or pipe
            self.is_live, self._quiet = False, True


class Transfer:
    """Progress of a transfer of layers, such as ``Pushing NAME: 2/5 layers, 1.2/4.0 MB``."""

    def __init__(self, display: Display, what: str) -> None:
        self._display = display
        self._what = what
        self._layers: dict[str, tuple[int, int, bool]] = {}

    def layer(self, name: str, *, sent: int = 0, size: int = 0, done: bool = False) -> None:
        """Update one layer: bytes sent of its size."""
        before = self._layers.get(name, (0, 0, False))
        self._layers[name] = (max(sent, before[0]), size or before[1], done or before[2])
        layers = list(self._layers.values())
        whole = sum(one[1] for one in layers)
        # The engine counts tar headers twice, so cap the sum at the total size.
        bytes_ = f", {size_text(min(sum(one[0] for one in layers), whole))}/{size_text(whole)}" if whole else ""
        self._display.doing(f"{self._what}: {sum(one[2] for one in layers)}/{len(layers)} layers{bytes_}")
