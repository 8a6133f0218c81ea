"""What a terminal can show: colours and width."""

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
