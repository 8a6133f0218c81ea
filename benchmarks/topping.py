"""How long ``torchx top`` takes to answer a key, behind a pseudo-terminal of 100 columns and 30 lines."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable

from benchmarks import stage
from benchmarks.contestants import OURS, Contestant
from benchmarks.timing import Cannot, Sample

PATIENCE_S = 60.0
_QUIET_S = 0.3  # without a byte: it has drawn what it had to
_KEYS = (b"j", b"\x1b[6~", b"k", b"\x1b[5~", b"G", b"g")


class Screen:
    """The program behind its terminal, with all runs in its list."""

    def __init__(self, argv: list[str], env: dict[str, str], folder: str) -> None:
        self._pressed = 0
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execve(argv[0], argv, {**env, "TERM": "xterm-256color"})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        seen, until = b"", time.monotonic() + PATIENCE_S
        while b"succeeded" not in seen:  # a row of its list
            if not (some := self._read(until - time.monotonic())):
                raise Cannot((seen.decode(errors="replace").split("\n")[0] or "showed nothing")[:120])
            seen += some
        self._settle()

    def press(self) -> float:
        """Seconds from the next key until the first byte of what it changes."""
        self._settle()
        key = _KEYS[self._pressed % len(_KEYS)]
        self._pressed += 1
        began = time.perf_counter()
        os.write(self._fd, key)
        if not self._read(PATIENCE_S):
            raise Cannot("a key was not answered")
        return time.perf_counter() - began

    def close(self) -> None:
        """Ends it."""
        os.close(self._fd)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _settle(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while self._read(_QUIET_S) and time.monotonic() < until:
            pass

    def _read(self, patience_s: float) -> bytes:
        if not select.select([self._fd], [], [], max(patience_s, 0))[0]:
            return b""
        try:
            return os.read(self._fd, 1 << 16)
        except OSError:  # it has ended
            return b""


def key() -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds of one key."""
    screens: list[Screen] = []

    def sampler(contestant: Contestant | None, where: stage.Stage) -> Sample:
        def sample() -> float:
            if contestant is None or contestant.name != OURS:
                raise Cannot("no `torchx top`")
            if not screens:
                screens.append(Screen([contestant.torchx, "top"], where.env(contestant), where.folder))
                where.at_last(screens[0].close)
            return screens[0].press()

        return sample

    return sampler
