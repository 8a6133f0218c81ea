"""The shell script that starts a process inside a container, and says there who it is, so that it can be signalled."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torchx.schedulers.kit.shell import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.schedulers.inside import Tty

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
    """What the script says of itself on stderr (or the terminal), each on a line behind a word that nobody else knows.

    First who it is, perhaps in the end the exit code: both are taken out of the output.

    >>> mark = Mark()
    >>> mark.take(f"{mark.text}42\\nhello{mark.text}= 3\\n".encode()), mark.who, mark.code
    (b'hello', '42', 3)
    """

    def __init__(self) -> None:
        self.text = f"torchx-{os.urandom(8).hex()}:"
        self.who = ""
        """The process there, which leads its group; empty until it is known."""
        self.code: int | None = None
        """The exit code, where the script says it."""
        self._held = b""

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
        """The output of the program alone, of the stream with the marks in it; what may be one is held back."""
        if self.code is not None:
            return b""  # whoever ran the script has something to say of that
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
            self.who = line.decode("ascii", "replace").strip()
        if found:  # its line is not whole
            self._held = key + after
            return out + before
        kept = next((n for n in range(min(len(key) - 1, len(before)), 0, -1) if key.startswith(before[-n:])), 0)
        self._held = before[len(before) - kept :]
        return out + before[: len(before) - kept]

    def left(self) -> bytes:
        """What is held back, for good."""
        held, self._held = self._held, b""
        return held


def frame(data: bytes) -> bytes:
    """A piece of stdin for a program that was started with frames; an empty one is the end.

    >>> frame(b"abc"), frame(b"")
    (b'3\\nabc', b'0\\n')
    """
    return b"%d\n%s" % (len(data), data)


def kill_words(who: str, number: int) -> list[str]:
    """The command that sends a signal to the group of a process, or to it alone where it has none of its own."""
    import signal

    kill = f"kill -s {signal.Signals(number).name.removeprefix('SIG')}"
    return ["sh", "-c", f"{kill} -- -{int(who)} 2>/dev/null || {kill} {int(who)}"]
