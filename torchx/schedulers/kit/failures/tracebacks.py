"""Finds Python tracebacks in the output of a program, and the chain of exceptions of each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchx.schedulers.kit.failures.rows import shapes
from torchx.util.records import dataclass, replace

HEADER = "Traceback (most recent call last):"

_MESSAGE_LINES = 30
_MESSAGE_CHARS = 2000
_EXCEPTION = r"((?:[^\W\d]\w*\.)*[^\W\d]\w*(?:\(\w+\))?)(?:: ?(.*))?$"
_RAY = "ray.exceptions.RayTaskError"  # frames and exception of the task follow, without a header
_FRAME = r'(?:> |\s+)File "(.*)", line \d+'
_SYNTAX = r"(?:SyntaxError|IndentationError|TabError): "


@dataclass(frozen=True)
class Link:
    """One exception of a chain.

    Attributes:
        name: of its class, as in the traceback, for example ``torch.OutOfMemoryError``.
        text: its message, which may have several lines.
        file: of the innermost frame; empty if there is none.
        code: the source line of that frame.
    """

    name: str
    text: str = ""
    file: str = ""
    code: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" if self.text else self.name


@dataclass(frozen=True)
class Trace:
    """One traceback, with all exceptions of its chain.

    Attributes:
        start: index of its first line.
        end: index of the line after its last one.
        links: the exceptions; the original one first.
        ignored: Python only reports it and does not exit.
    """

    start: int
    end: int
    links: tuple[Link, ...]
    ignored: bool = False

    @property
    def message(self) -> str:
        """The original error, followed by the last one of the chain if it differs."""
        told = [link for link in self.links if link.text or link.name in shapes.BARE] or self.links[-1:]
        first, last = bounded(str(told[0])), bounded(str(told[-1]))
        return first if told[0].text == told[-1].text else f"{first}\n-> {last}"


def find_traces(lines: Sequence[str]) -> list[Trace]:
    """All tracebacks, in order.

    >>> [trace.message for trace in find_traces([HEADER, '  File "a.py", line 1', "ValueError: x", "  y", "srun: z"])]
    ['ValueError: x\\n  y']
    """
    found: list[Trace] = []
    at = 0
    while at < len(lines):
        if HEADER in lines[at]:
            links, end = _read_chain(lines, at)
            ignored = at > 0 and re.match(shapes.IGNORED, lines[at - 1]) is not None
            if ignored and found and (found[-1].end, found[-1].links) == (at - 1, tuple(links)):
                found[-1] = replace(found[-1], ignored=True)  # Cython prints an ignored exception twice
            found.append(Trace(at, end, tuple(links), ignored))
            at = end
        elif _is_bare_syntax_error(lines, at):
            end = next(i for i in range(at, len(lines)) if re.match(_SYNTAX, lines[i]))
            name, _, text = lines[end].partition(": ")
            found.append(Trace(at, end + 1, (Link(name, text, _frame(lines[at])),)))
            at = end + 1
        else:
            at += 1
    return found


def bounded(text: str, chars: int = _MESSAGE_CHARS) -> str:
    """Truncate a text to a number of characters, with a mark at the end."""
    return text if len(text) <= chars else f"{text[: chars - 4]} ..."


def _read_chain(lines: Sequence[str], at: int) -> tuple[list[Link], int]:
    links: list[Link] = []
    while True:
        found, at = _read_one(lines, at)
        links += found
        mark = _after_blanks(lines, at)
        if mark >= len(lines) or lines[mark].strip(" |") not in shapes.CHAINED:
            return links, at
        header = _after_blanks(lines, mark + 1)
        if header >= len(lines) or HEADER not in lines[header]:
            return links, at
        at = header


def _read_one(lines: Sequence[str], at: int) -> tuple[list[Link], int]:
    """Read the exception whose header is at this line. Exceptions in its message come first."""
    if "Exception Group" in lines[at]:
        return _read_group(lines, at)
    frame, code = "", ""
    at += 1
    while at < len(lines) and (lines[at].startswith((" ", "\t", "> File ")) or not lines[at]):
        if path := _frame(lines[at]):
            frame, code = path, ""
        elif frame and not code and lines[at].strip(" ~^"):
            code = lines[at].strip()
        at += 1
    if at >= len(lines):
        return [Link("", "", frame, code)], at
    head = re.match(_EXCEPTION, lines[at])
    name, first = (head[1], head[2] or "") if head else ("", lines[at])
    inner: list[Link] = []
    if name.startswith(_RAY) and at + 1 < len(lines) and re.match(rf"{_FRAME}|{_EXCEPTION}", lines[at + 1]):
        inner, at = _read_chain(lines, at)
        return [*inner, Link(name, first, frame, code)], at
    message = [first]
    at += 1
    below = at
    while at < len(lines):
        if HEADER in lines[at]:
            if not (lines[at].startswith("Original ") or re.match(shapes.NESTED, lines[at - 1])):
                break
            found, at = _read_chain(lines, at)
            inner += found
            continue
        if _ends_message(lines, at):
            break
        message.append(lines[at])
        at += 1
    if sum(not line.startswith((" ", "\t")) for line in message) > _MESSAGE_LINES:
        del message[1:]  # so many lines are not part of the message
        at = below
    text = "\n".join(line.rstrip() for line in message).strip().strip('"').strip()
    if name.endswith("_RemoteTraceback"):
        return inner or [Link(name, text, frame, code)], at
    return [*inner, Link(name, text, frame, code)], at


def _ends_message(lines: Sequence[str], at: int) -> bool:
    line = lines[at]
    if (
        line.strip(" |") in shapes.CHAINED
        or re.match(shapes.FOREIGN, line, re.IGNORECASE)
        or _is_bare_syntax_error(lines, at)
    ):
        return True
    if line.strip():
        return False
    below = _after_blanks(lines, at)
    return below >= len(lines) or not (lines[below].startswith((" ", "\t")) or re.match('"""', lines[below]))


def _read_group(lines: Sequence[str], at: int) -> tuple[list[Link], int]:
    """Read an exception group: its exceptions, then itself. An exception without frames gets those of the group."""
    end = at + 1
    while end < len(lines) and re.match(r"\s*[|+]", lines[end]):
        end += 1
    plain = [re.sub(r"^\s+\| ?", "", line) for line in lines[at + 1 : end]]
    links: list[Link] = []
    frame = code = ""
    for line in plain:
        if path := _frame(line):
            frame, code = path, ""
        elif line.startswith(" "):
            code = code or line.strip(" ~^")
        elif head := re.match(_EXCEPTION, line):
            where = (frame, code) if frame or not links else (links[0].file, links[0].code)
            links.append(Link(head[1], head[2] or "", *where))
            frame = code = ""
    return [*links[1:], *links[:1]] or [Link("")], end


def _is_bare_syntax_error(lines: Sequence[str], at: int) -> bool:
    """Whether a syntax error of the script itself begins here, which has no traceback header."""
    if not re.match(r'  File ".*", line \d+$', lines[at]):
        return False
    below = next((line for line in lines[at + 1 : at + 6] if not line.startswith(" ")), "")
    return re.match(_SYNTAX, below) is not None


def _after_blanks(lines: Sequence[str], at: int) -> int:
    while at < len(lines) and not lines[at].strip(" |"):
        at += 1
    return at


def _frame(line: str) -> str:
    found = re.match(_FRAME, line)
    return found[1] if found else ""


def read_exception(text: str) -> Link | None:
    """Parse the exception ``Name: text`` at the beginning of a message; None if there is none.

    >>> read_exception("KeyError: 'x'"), read_exception("no data in /data")
    (Link(name='KeyError', text="'x'", file='', code=''), None)
    """
    found = re.match(r"((?:[^\W\d]\w*(?:\.|::))*[^\W\d]\w*(?:\(\w+\))?)(?:: ((?s:.*))|$)", text.strip())
    if (
        found is None
        or found[1] == "Error"
        or not re.search(r"(?:Error|Exception|Interrupt|Exit|Warning)(?:\(\w+\))?$|::\w+$", found[1])
    ):
        return None
    return Link(found[1], found[2] or "")
