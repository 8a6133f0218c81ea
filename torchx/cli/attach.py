"""Connects a process inside a replica with this terminal: streams, signals and window size."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torchx.errors import EXIT_INTERRUPTED
from torchx.schedulers.kit.inside import InsideProcess, Tty

_CHUNK = 1 << 20  # bytes; a pipe or a terminal returns less
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_MAX_INTERRUPTS = 3
_END_OF_INPUT = b"\x04"
_LATE_S = 0.5


def terminal() -> Tty:
    """Return size and type of this process's terminal."""
    term = os.environ.get("TERM") or "xterm-256color"
    for fd in (0, 1, 2):
        try:
            size = os.get_terminal_size(fd)
        except OSError:
            continue
        return Tty(size.columns or 80, size.lines or 24, term)
    return Tty(term=term)


def attach(process: InsideProcess, *, stdin: bool, tty: bool) -> int:
    """Connect a process with our stdin, stdout and stderr until it ends, and return its exit code."""
    import threading

    sys.stdout.flush()
    with process, _raw(tty), passing_on(process, tty=tty):
        if stdin:
            threading.Thread(target=_feed, args=(process, tty), daemon=True).start()
        else:
            process.close_stdin()
        while (piece := process.read()) is not None:
            _write(piece[0], piece[1])
        return process.wait()


def _feed(process: InsideProcess, tty: bool) -> None:
    try:
        while data := os.read(0, _CHUNK):
            process.write(data)
        if tty:
            process.write(_END_OF_INPUT)
        process.close_stdin()
    except OSError:
        return  # the process no longer reads


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


@contextmanager
def _raw(tty: bool) -> Iterator[None]:
    """Put the terminal into raw mode, so that the process gets every key, also Ctrl-C and Ctrl-Z."""
    if not (tty and os.isatty(0)):
        yield
        return
    import termios
    from tty import setraw

    before = termios.tcgetattr(0)
    try:
        setraw(0, termios.TCSADRAIN)  # unlike TCSAFLUSH, keeps what was typed ahead
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


class Every:
    """The running processes of a command in several replicas, which get a signal together."""

    def __init__(self) -> None:
        self.running: list[InsideProcess] = []
        self.interrupted = False  # a signal has come, so no further process is to be started

    def send_signal(self, number: int) -> None:
        self.interrupted = True
        for process in list(self.running):
            process.send_signal(number)

    def close(self) -> None:
        self.interrupted = True
        for process in list(self.running):
            process.close()

    def resize(self, columns: int, rows: int) -> None:
        """Do nothing: they have no terminal."""


@contextmanager
def passing_on(process: InsideProcess | Every, *, tty: bool) -> Iterator[None]:
    """Forward signals to the process; the third Ctrl-C disconnects from it."""
    interrupts = 0

    def on_signal(number: int, _: object) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts >= _MAX_INTERRUPTS or (tty and number != signal.SIGWINCH):
            process.close()
            sys.exit(EXIT_INTERRUPTED if number == signal.SIGINT else 128 + number)
        if number == signal.SIGWINCH:
            size = terminal()
            process.resize(size.columns, size.rows)
        else:
            process.send_signal(number)

    numbers = (*_SIGNALS, signal.SIGWINCH) if tty else _SIGNALS
    before = {number: signal.signal(number, on_signal) for number in numbers}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: None)
    # A signal that arrives just before a blocking system call does not interrupt it. The next one of this timer does.
    signal.setitimer(signal.ITIMER_REAL, _LATE_S, _LATE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
