"""A process inside a container whose start script reports its pid, so that it can be signalled."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torchx.schedulers.kit.inside import STDERR, STDOUT, InsideProcess
from torchx.schedulers.kit.shell import quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx.schedulers.kit.inside import Tty

_END_S = 10.0


class Mark:
    """Lines with a random prefix by which the script reports its pid, and perhaps its exit code, on stderr or the
    terminal. They are removed from the output.

    >>> mark = Mark()
    >>> mark.once_known(lambda who: print("kill", who))
    >>> mark.take(f"{mark.text}42\\nhello{mark.text}= 3\\n".encode()), mark.who, mark.code
    kill 42
    (b'hello', '42', 3)
    """

    def __init__(self, tty: Tty | None = None) -> None:
        self.text = f"torchx-{os.urandom(8).hex()}:"
        self.who = ""
        """The pid in the container, also that of its process group; empty until it is known."""
        self.absent = False
        """Whether the script has reported `-`: it found no process to join."""
        self.code: int | None = None
        """The exit code, if the script has reported it."""
        self._tty = tty
        self._stream = STDOUT if tty else STDERR
        self._held = b""
        self._due: list[Callable[[str], object]] = []

    def once_known(self, do: Callable[[str], object]) -> None:
        """Call ``do`` with the pid, now or when it has been read."""
        self._due.append(do)
        self._do_due()

    def _do_due(self) -> None:
        while self.who:
            try:
                do = self._due.pop(0)
            except IndexError:  # taken by another thread
                return
            do(self.who)

    def read(self, piece: Callable[[], tuple[int, bytes] | None]) -> tuple[int, bytes] | None:
        """Return the next piece of output, without marks; None at its end, or if the script found no process."""
        while not self.absent and (found := piece()) is not None:
            stream, data = found
            data = self.take(data) if stream == self._stream else data
            if data:
                return stream, data
        held, self._held = self._held, b""
        return (self._stream, held) if held else None

    def seek(self, piece: Callable[[], tuple[int, bytes] | None]) -> None:
        """Read until the pid is known. Output of the program may come before it."""
        while not self.who and not self.absent and (found := piece()) is not None:
            if found[0] == self._stream:
                self.take(found[1])

    def words(self, argv: Sequence[str], start: str = 'exec "$@"') -> list[str]:
        """Return the command of the script, which starts ``argv`` with the shell command ``start``."""
        lines = [f"echo {self.text}$$ >&2"]
        if (tty := self._tty) is not None:
            lines = [f"stty cols {tty.columns} rows {tty.rows} 2>/dev/null", *lines]
            lines += [f"TERM={quote(tty.term)}; export TERM"]
        return ["sh", "-c", "\n".join([*lines, start]), "sh", *argv]

    def take(self, data: bytes) -> bytes:
        """Remove the marks from output of their stream. Holds back data that may be the beginning of a mark."""
        if self.code is not None:
            return b""  # messages of the client that ran the script about its exit
        self._held += data
        out, key = b"", self.text.encode()
        while True:
            before, found, after = self._held.partition(key)
            line, newline, rest = after.partition(b"\n")
            if not newline:
                break
            out += before
            self._held = rest
            if line.startswith(b"= "):
                self.code = int(line[2:])
                self._held = b""
                return out
            self.absent = line.startswith(b"-")
            self.who = "" if self.absent else line.decode("ascii", "replace").strip()
            self._do_due()
        if found:  # its line is incomplete
            self._held = key + after
            return out + before
        kept = next((n for n in range(min(len(key) - 1, len(before)), 0, -1) if key.startswith(before[-n:])), 0)
        self._held = before[len(before) - kept :]
        return out + before[: len(before) - kept]


class MarkedProcess(InsideProcess):
    """A process started by the script of a :class:`Mark` over a connection of the backend."""

    _link: Any
    """The connection, which has ``settimeout``, for all further reads, and ``close``."""
    _over = False
    """Whether the process has ended, if this is known without its exit code."""

    def __init__(self, tty: Tty | None) -> None:
        self._mark = Mark(tty)
        self._tty = tty is not None

    @abstractmethod
    def _piece(self) -> tuple[int, bytes] | None:
        """Return the next output of the script, with its stream; None at the end."""

    @abstractmethod
    def _end_stdin(self) -> None:
        """Close its stdin. Raises OSError if the process has ended."""

    @abstractmethod
    def _signal(self, who: str, number: int | None) -> None:
        """Send a signal to the process with pid ``who``; None: ends it."""

    def close_stdin(self) -> None:
        if not self._tty:
            with suppress(OSError):  # it has ended
                self._end_stdin()

    def read(self) -> tuple[int, bytes] | None:
        return self._mark.read(self._piece)

    def send_signal(self, number: int) -> None:
        self._mark.once_known(lambda who: self._signal(who, number))

    def close(self) -> None:
        import signal

        with suppress(OSError):
            if self._goes_on():
                self._link.settimeout(_END_S)
                self._mark.seek(self._piece)
        if self._goes_on() and self._mark.who:
            self._mark.code = 128 + signal.SIGHUP
            self._signal(self._mark.who, None)
        self._link.close()

    def _goes_on(self) -> bool:
        return self._mark.code is None and not self._over


def kill_words(who: str, number: int | None) -> list[str]:
    """Return the command that signals the group of a process, or the process alone if it leads none; None:
    to end it.
    """
    import signal

    numbers = [signal.SIGHUP, signal.SIGTERM] if number is None else [number]
    kills = (f"kill -s {signal.Signals(number).name.removeprefix('SIG')}" for number in numbers)
    return ["sh", "-c", "; ".join(f"{kill} -- -{int(who)} 2>/dev/null || {kill} {int(who)}" for kill in kills)]
