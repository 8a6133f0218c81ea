"""The shell script that starts a process inside a container, and says there who it is, so that it can be signalled."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torchx.schedulers.kit.shell import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.schedulers.inside import Tty

_MOST_NOISE = 1 << 14  # what may come before the mark: warnings of a shell

_FRAMES = """\
exec 3<&0 </dev/null
frames() {
  trap '' INT TERM HUP QUIT USR1 USR2
  while read -r size && [ "$size" -gt 0 ]; do dd bs="$size" count=1 iflag=fullblock 2>/dev/null || exit; done
}
trap : INT TERM HUP QUIT USR1 USR2
{ frames <&3 2>/dev/null & exec 3<&-; } | { exec 3<&-; exec "$@"; }
"""
"""A stdin whose end the connection cannot announce: each piece after its length and a line end, and 0 at the end."""


class Mark:
    """What the script says before the program has the word, and which is taken out of the output again.

    >>> mark = Mark()
    >>> mark.take(mark.text.encode() + b"42\\nhello"), mark.pid
    (b'hello', 42)
    """

    def __init__(self) -> None:
        self.text = f"torchx-{os.urandom(8).hex()}:"
        self.pid = 0
        """Of the program there, and of its group; 0 until it is known."""
        self._held: bytes | None = b""

    def words(self, argv: Sequence[str], tty: Tty | None, *, framed: bool = False) -> list[str]:
        """The command that starts ``argv``.

        Args:
            framed: its stdin comes by :func:`frame`.
        """
        lines = [f"echo {self.text}$$ >&2"]
        if tty is not None:
            lines = [f"stty cols {tty.columns} rows {tty.rows} 2>/dev/null", *lines]
            lines += [f"TERM={quote(tty.term)}; export TERM"]
        lines += [_FRAMES if framed else 'exec "$@"']
        return ["sh", "-c", "\n".join(lines), "sh", *argv]

    def take(self, data: bytes) -> bytes:
        """The output of the program alone, of the stream with the mark in it."""
        if self._held is None:
            return data
        self._held += data
        before, _, after = self._held.partition(self.text.encode())
        number, newline, rest = after.partition(b"\n")
        if newline:
            self.pid = int(number)
            self._held = None
            return before + rest
        return self.left() if len(self._held) > _MOST_NOISE else b""

    def left(self) -> bytes:
        """What is held back, for good."""
        held, self._held = self._held or b"", None
        return held


def frame(data: bytes) -> bytes:
    """A piece of stdin for a program that was started with frames; an empty one is the end.

    >>> frame(b"abc"), frame(b"")
    (b'3\\nabc', b'0\\n')
    """
    return b"%d\n%s" % (len(data), data)


def kill_words(pid: int, number: int) -> list[str]:
    """The command that sends a signal to the group of a process, or to it alone where it has none of its own."""
    import signal

    kill = f"kill -s {signal.Signals(number).name.removeprefix('SIG')}"
    return ["sh", "-c", f"{kill} -- -{pid:d} 2>/dev/null || {kill} {pid:d}"]
