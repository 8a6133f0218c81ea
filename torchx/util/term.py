"""Terminals: colours, width, and safe output."""

from __future__ import annotations

import os
import time

from torchx.util.redaction import redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

DEFAULT_WIDTH = 80

ask: Callable[[str], bool] | None = None
"""Asks the user a question with the answers yes and no; None where nobody can answer. The command line sets it."""


def is_tty(stream: TextIO) -> bool:
    """Whether the stream is a terminal."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # an object without isatty(), or a closed stream
        return False


def has_color(stream: TextIO) -> bool:
    """Whether to write colours to the stream: by default, if it is a terminal.

    ``NO_COLOR`` and ``TERM=dumb`` disable colours; ``FORCE_COLOR`` enables them for other streams.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and is_tty(stream)


def printable(text: str, *, lines: bool = False) -> str:
    r"""Replace control characters, so that text of users and jobs cannot control the terminal; mask known secrets.

    The text becomes one line, unless ``lines`` keeps line feeds and tabs.

    >>> printable("a\x1b[31mb\nc"), printable("a\x1b]52;c;eA==\x07\n\tb", lines=True)
    ('a?[31mb c', 'a?]52;c;eA==?\n\tb')
    """
    text = redact(text)
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else " " if c.isspace() else "?" for c in text)


def only_colors(data: bytes) -> bytes:
    r"""Remove escape sequences other than colours (SGR) from the output of a job, also incomplete ones.

    Others are unsafe: OSC 52, for example, writes the clipboard. https://invisible-island.net/xterm/ctlseqs/ctlseqs.html

    >>> only_colors(b"\x1b[31mred\x1b[0m \x1b]52;c;eA==\x07\x1b[2Jtext\r\n")
    b'\x1b[31mred\x1b[0m text\r\n'
    """
    if _STEERING.isdisjoint(data) and b"\xc2" not in data:
        return data
    import re

    def kept(found: re.Match[bytes]) -> bytes:
        return found[0] if found[0].startswith(b"\x1b[") and found[0].endswith(b"m") else b""

    return re.sub(_SEQUENCE, kept, data)


_STEERING = frozenset(range(32)) - frozenset(b"\t\n\r\b") | {127}
_SEQUENCE = (
    rb"\x1b\[[0-9;:]*m"
    rb"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI
    rb"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC
    rb"|\x1b[ -/]*[0-~]?"
    rb"|\xc2[\x80-\x9f]"  # C1 in UTF-8
    rb"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]"
)


def width(stream: TextIO) -> int:
    """Return the number of columns: ``COLUMNS``, or the width of the terminal, or 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except (AttributeError, ValueError, OSError):
        return DEFAULT_WIDTH


def text_width(text: str) -> int:
    """Return the columns of a text on a terminal: East Asian wide characters take two, combining ones none.

    >>> text_width("echo"), text_width("\u65e5\u672c"), text_width("e\u0301")
    (4, 4, 1)
    """
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(c) in ("Mn", "Me", "Cf") else 1 + (east_asian_width(c) in "WF") for c in text)


def fit(text: str, room: int, *, pad: bool = True) -> str:
    """Fit a text to ``room`` columns: truncated with ``\u2026``, or padded with blanks.

    >>> fit("echo", 6), fit("trainer", 5), fit("echo", 6, pad=False)
    ('echo  ', 'trai\u2026', 'echo')
    """
    taken = text_width(text)
    if taken > room:
        while text and text_width(text) > room - 1:
            text = text[:-1]
        text += "\u2026"
        taken = text_width(text)
    return text + " " * (room - taken) if pad else text


def iso(seconds: float | None) -> str | None:
    """Format a Unix time as ISO 8601 in UTC, with milliseconds; None stays None.

    >>> iso(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    if seconds is None:
        return None
    millis = round(seconds * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(millis // 1000))}.{millis % 1000:03d}Z"
