"""What a terminal can show: colours, and how much text."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

DEFAULT_WIDTH = 80


def is_tty(stream: TextIO) -> bool:
    """Whether a person may be looking at the stream."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # replaced by a program, or closed
        return False


def has_color(stream: TextIO) -> bool:
    """Whether to colour what is written to the stream: a terminal, and nobody said no.

    ``NO_COLOR`` and ``TERM=dumb`` say no, ``FORCE_COLOR`` says yes to what is no terminal.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and is_tty(stream)


def width(stream: TextIO) -> int:
    """Columns of the terminal behind the stream; ``COLUMNS``, or 80, when there is none."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except (AttributeError, ValueError, OSError):
        return DEFAULT_WIDTH


def text_width(text: str) -> int:
    """Columns that a text takes on a terminal: Chinese and the like take two, combining accents none.

    >>> text_width("echo"), text_width("\u65e5\u672c"), text_width("e\u0301")
    (4, 4, 1)
    """
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(c) in ("Mn", "Me", "Cf") else 1 + (east_asian_width(c) in "WF") for c in text)


def fit(text: str, room: int, *, pad: bool = True) -> str:
    """The text in so many columns: cut with ``\u2026`` when it is longer, filled with blanks when it is shorter.

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
