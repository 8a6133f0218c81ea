"""Streams of an API whose pieces have times: joined into lines, cut to a range, and resumed where they broke off."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchx.supervisor import lines as long_lines
from torchx.supervisor.lines import Part
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.schedulers.kit.logs import LogQuery

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")


@dataclass
class Piece:
    """A chunk of output: ``stream`` is 1 for stdout and 2 for stderr, ``time`` in nanoseconds since the epoch."""

    stream: int
    time: int
    text: bytes


def whole_lines(pieces: Iterable[Piece], *, live: bool = False) -> Iterator[Piece]:
    r"""Join pieces into lines, per stream, so that lines of one stream do not interrupt a line of the other.

    A line has the time of its first piece. Lines without line end come last. A long line is yielded in parts, and with
    ``live`` also a line that contains a carriage return.

    >>> pieces = [Piece(1, 1, b"a"), Piece(2, 2, b"x\n"), Piece(1, 3, b"b\n"), Piece(1, 4, b"c")]
    >>> [(line.time, line.text) for line in whole_lines(pieces)]
    [(2, b'x\n'), (1, b'ab\n'), (4, b'c')]
    """
    begun: dict[int, Piece] = {}
    inside: set[int] = set()
    for piece in pieces:
        line = begun.pop(piece.stream, None)
        if line is None:
            line = piece
        else:
            line.text += piece.text
        if line.text.endswith(b"\n"):
            inside.discard(line.stream)
            yield line
        elif line.stream in inside or len(line.text) >= long_lines.LONG_LINE or (live and b"\r" in line.text):
            cut = long_lines.whole_characters(line.text)
            inside.add(line.stream)
            begun[line.stream] = Piece(line.stream, line.time, line.text[cut:])
            yield Piece(line.stream, line.time, Part(line.text[:cut]))
        else:
            begun[line.stream] = line
    yield from sorted((line for line in begun.values() if line.text), key=lambda line: line.time)


def within(lines: Iterable[Piece], query: LogQuery) -> Iterator[Piece]:
    """Yield the lines in the time range of a query.

    With ``follow``, the first line at or after ``until`` ends the stream.
    """
    since = None if query.since is None else int(query.since * 1e9)
    until = None if query.until is None else int(query.until * 1e9)
    for line in lines:
        if since is not None and line.time < since:
            continue
        if until is not None and line.time >= until:
            if query.follow:
                return
            continue
        yield line


class Seen:
    """Resumes a stream by time. Counts the pieces that have the last time, since some systems have whole seconds only.

    Attributes:
        last: time of the last piece, nanoseconds since the epoch; 0 if there was none.
    """

    def __init__(self) -> None:
        self.last = 0
        self._count = 0

    def news(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces that were not read in an earlier pass."""
        last, skip = self.last, self._count
        for piece in pieces:
            if last and piece.time < last:
                continue
            if last and piece.time == last and skip:
                skip -= 1
                continue
            if piece.time > self.last:
                self.last, self._count = piece.time, 0
            if piece.time == self.last:
                self._count += 1
            yield piece


def split_stamp(text: bytes) -> tuple[int, bytes]:
    r"""Split a leading RFC 3339 timestamp from a text: nanoseconds since the epoch (0 if there is none), and the text.

    >>> split_stamp(b"1970-01-01T01:00:01.000000002+01:00 a b\n"), split_stamp(b"x y")
    ((1000000002, b'a b\n'), (0, b'x y'))
    """
    found = _STAMP.match(text)
    if found is None:
        return 0, text
    second, fraction, zone = found.groups()
    try:
        seconds = _seconds(second, zone)
    except ValueError:
        return 0, text
    return seconds * 10**9 + int((fraction or b"").ljust(9, b"0")), text[found.end() :]


@functools.lru_cache(maxsize=4)
def _seconds(text: bytes, zone: bytes) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(f"{text.decode()}{'+00:00' if zone == b'Z' else zone.decode()}").timestamp())
