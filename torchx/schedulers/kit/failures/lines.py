"""Splits a stream into plain lines: no escapes, prefixes of loggers, boxes, reports of steps, source below warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchx.schedulers.kit.failures.tracebacks import HEADER, bounded
from torchx.settings import STEPS_LINE

_LONGEST_LINE = 4000  # bounds the time of regular expressions
_ANSI = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
_OF_RANK = r"(?:\[[^\[\]]{0,60}\d\]: ?){0,2}"  # the reader needs these prefixes of torchrun and torch
_HEAD = rf"({_OF_RANK})(.*?)((?:[ |+]*Exception Group |Original )?Traceback \(most recent call last\):.*)$"
# A traceback in a box of rich, or a message in one of typer: the title has words; nvidia-smi's tables have none.
_BOX = r"\s*[╭┌+][-─━]+ (.*\w.*) [-─━]+[╮┐+]\s*$"
_BOX_END = r"\s*[╰└+][-─━]+[╯┘+]\s*$"
_BOX_FRAME = r"(\S.*):(\d+) in (\S+)\s*$"
_WARNING = r"[^:]{1,300}:\d+: \w*Warning: "
_WARNING_LINES = 6
_TIMES = re.compile(r"\d+(?:[-:/.T]\d+)+Z?")


class Line(str):
    """A line without its prefix; ``writer`` is that prefix without times, which tells processes apart."""

    __slots__ = ("writer",)
    writer: str


def clean(text: str) -> list[str]:
    """Return the plain lines of a stream. A traceback that begins in the middle of a line is moved to a new one.

    >>> clean("0: Traceback (most recent call last):\\n0:   File 'a'\\n0: KeyError: 1")[2:]
    ['KeyError: 1']
    """
    text = re.sub(_ANSI, "", text.replace("\r\n", "\n").replace("\r", "\n"))
    lines = [bounded(line, _LONGEST_LINE) for line in text.split("\n") if STEPS_LINE not in line]
    if HEADER in text:
        lines = _by_writer(lines)
    if " in " in text or "─" in text:
        lines = list(_unboxed(lines))
    if "Warning: " in text:
        lines = list(without_warned_lines(lines))
    cleaned: list[str] = []
    for line in lines:
        head = re.match(_HEAD, line) if HEADER in line else None
        if head is not None and head[2].strip(" |+"):
            cleaned += [head[1] + head[2], head[1] + head[3]]
        else:
            cleaned.append(line)
    return cleaned


def _by_writer(lines: list[str]) -> list[str]:
    """Remove prefixes that stand before all lines of a traceback; their numbers may differ, as times do.

    The lines of each prefix are put together, so that processes that write at the same time are told apart.
    """
    shapes = set()
    for at, line in enumerate(lines[:-1]):
        head = re.match(_HEAD, line) if HEADER in line else None
        if head is not None and head[2].strip(" |+"):
            prefix = head[1] + head[2]
            shape = re.sub(r"\d+", r"\\d+", re.escape(prefix.rstrip()))
            shape = rf"({shape})(?: (.*)|\s*)$" if prefix.endswith(" ") else rf"({shape})(.*)$"
            if (below := re.match(shape, lines[at + 1])) and re.match(r"\s+\S|\s*$", below[2] or ""):
                shapes.add(shape)
    if not shapes:
        return lines
    longest_first = sorted(shapes, key=lambda shape: (-len(shape), shape))
    found: dict[str, list[str]] = {}
    last: dict[str, int] = {}
    for at, line in enumerate(lines):
        head = next(filter(None, (re.match(shape, line) for shape in longest_first)), None)
        writer, rest = (_TIMES.sub("", head[1]), head[2] or "") if head else ("", line)
        if head is not None:
            rest = Line(rest)
            rest.writer = writer
        found.setdefault(writer, []).append(rest)
        last[writer] = at
    return [line for writer in sorted(found, key=last.__getitem__) for line in found[writer]]


def _unboxed(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of boxes as Python would print them, and the wrapped message below each as one line."""
    inside = traced = False
    width, pending = 0, ""  # the width is 0 unless the message of a box may follow
    for line in lines:
        title = None if inside else re.match(_BOX, line)
        if title is not None:
            inside, traced = True, HEADER[:9] in title[1]
            if pending:
                yield pending
            width, pending = len(line), ""
            if traced:
                yield HEADER
        elif inside and re.match(_BOX_END, line):
            inside, width = False, width * traced
        elif inside:
            yield from _unframed(line, traced=traced)
        elif width and line.strip():
            last = pending.rpartition("\n")[2]
            wraps = last.endswith(" ") or len(last) + 1 + len(line.split()[0]) > width
            if pending and not wraps:
                yield pending.replace(" \n", " ").replace("\n", " ")
                pending = ""
            pending = f"{pending}\n{line}" if pending else line
        else:
            yield from (text.replace(" \n", " ").replace("\n", " ") for text in (pending,) if text)
            yield line
            width, pending = 0, ""
    if pending:
        yield pending.replace(" \n", " ").replace("\n", " ")


def _unframed(line: str, *, traced: bool) -> Iterator[str]:
    """Yield what a line in a box says: of a traceback, frames and the lines that were running."""
    content = re.sub(r"^\s*[│┃|] ?|\s*[│┃|]?\s*$", "", line)
    if not traced:
        yield content
    elif frame := re.match(_BOX_FRAME, content):
        yield f'  File "{frame[1]}", line {frame[2]}, in {frame[3]}'
    elif code := re.match(r"\s*[❱>] *\d+ [│|\s]*(.*)$", content):
        yield f"    {code[1]}"


def without_warned_lines(lines: Sequence[str]) -> Iterator[str]:
    """Leaves out the source line below a warning, and the further lines of the warning above it."""
    skip_to = 0
    for at, line in enumerate(lines):
        if at >= skip_to:
            yield line
            if re.match(_WARNING, line):
                below = lines[at + 1 : at + 1 + _WARNING_LINES]
                stop = next((i for i, one in enumerate(below) if not one.strip() or HEADER in one), len(below))
                source = next((i for i, one in enumerate(below[:stop]) if re.match(r"  \S", one)), None)
                skip_to = at + 2 + source if source is not None else 0
