"""Output of the verbs: tables that fit the terminal, colours, times, JSON documents."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torchx.specs.states import RESET, state_text
from torchx.util.redaction import redact
from torchx.util.term import fit, has_color, is_tty, printable, text_width, width

BOLD = "\033[1m"
GRAY = "\033[90m"
_GAP = "  "
_LEAST_WIDTH = 8
Cells = Sequence[Sequence[str]]


def bold(text: str, *, color: bool) -> str:
    return f"{BOLD}{text}{RESET}" if color else text


def gray(text: str, *, color: bool) -> str:
    return f"{GRAY}{text}{RESET}" if color else text


def table(headers: Sequence[str], rows: Cells, *, shrink: Sequence[int] = (), state_column: int | None = None) -> None:
    """Print rows under headers: in columns on a terminal, separated by tabs elsewhere.

    Args:
        shrink: columns to cut when the terminal is too narrow, in this order. Others are never cut, because a cut
            handle cannot be pasted.
        state_column: the column that holds states.
    """
    if is_tty(sys.stdout):
        lines = table_lines(headers, rows, shrink=shrink, state_column=state_column)
    else:
        lines = ["\t".join(map(printable, row)) for row in (headers, *rows)]
    sys.stdout.write("\n".join(lines) + "\n")  # one write: `| head -1`, which ends early, breaks no pipe


def table_lines(
    headers: Sequence[str], rows: Cells, *, shrink: Sequence[int] = (), state_column: int | None = None
) -> list[str]:
    """Return the lines of :func:`table` on a terminal."""
    cells = [[printable(cell) for cell in row] for row in rows]
    color = has_color(sys.stdout)
    widths = column_widths([list(headers), *cells], width(sys.stdout), shrink)
    heading = _GAP.join(fit(h, w) for h, w in zip(headers, widths, strict=True)).rstrip()
    lines = [gray(heading, color=color)]
    for row in cells:
        parts = []
        for i, (cell, w) in enumerate(zip(row, widths, strict=True)):
            text = fit(cell, w)
            parts.append(text.replace(cell, state_text(cell, color=color), 1) if i == state_column and cell else text)
        lines.append(_GAP.join(parts).rstrip())
    return lines


def column_widths(rows: Cells, room: int, shrink: Sequence[int]) -> list[int]:
    """Return the widths of the columns; narrows those of ``shrink`` until a line fits.

    >>> column_widths([["aaaa", "b" * 30]], 20, shrink=[1])
    [4, 14]
    """
    widths = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
    for i in shrink:
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - room
        if excess > 0:
            widths[i] = max(min(widths[i], _LEAST_WIDTH), widths[i] - excess)
    return widths


def fits(rows: Cells, *, shrink: Sequence[int] = ()) -> bool:
    """Whether the rows fit on stdout without wrapping."""
    room = width(sys.stdout)
    widths = column_widths([[printable(cell) for cell in row] for row in rows], room, shrink)
    return sum(widths) + len(_GAP) * (len(widths) - 1) <= room


def fields(pairs: Sequence[tuple[str, str]], *, indent: str = "", color: bool = False) -> str:
    """Format lines of ``label: value`` with aligned values; omits pairs without a value.

    >>> print(fields([("app", "x"), ("started", "now"), ("note", "")]))
    app:      x
    started:  now
    """
    shown = [(label, value) for label, value in pairs if value]
    column = max((len(label) for label, _ in shown), default=0) + 1
    lines = []
    for label, value in shown:
        first, *rest = printable(value, lines=True).splitlines() or [""]
        lines.append(f"{indent}{gray(f'{label}:', color=color)}{' ' * (column - len(label) - 1)}{_GAP}{first}".rstrip())
        lines += [f"{indent}{' ' * column}{_GAP}{line}" for line in rest]
    return "\n".join(lines)


def value_text(value: Any) -> str:
    """Format a value of a run option or of a job on one line: text as it is, anything else as JSON."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable(value) if value else '""'
    import json

    return printable(json.dumps(value, ensure_ascii=False, default=str))


def strict_json(data: Any, **options: Any) -> str:
    """Format JSON, with null for NaN and infinity, which JSON lacks; ``options`` are those of ``json.dumps``."""
    import json

    try:
        return json.dumps(data, default=str, allow_nan=False, **options)
    except ValueError:
        data = json.loads(json.dumps(data, default=str), parse_constant=lambda _: None)
        return json.dumps(data, **options)


def document(data: Any) -> str:
    """Format a JSON document, secrets masked: indented on a terminal, on one line elsewhere."""
    indent = 2 if is_tty(sys.stdout) else None
    text = strict_json(data, indent=indent, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # stdout is ASCII, or a value holds surrogates: escapes keep both
        text = strict_json(data, indent=indent)
    return redact(text)
