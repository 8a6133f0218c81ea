"""One follower for all logs: whole lines, those that a query wants, as they come, and in bounded memory.

A backend says where the lines of a replica are; this module does the rest. There are two kinds of places:

* files that are read by offset, here or on another machine: a subclass of :class:`Follower`;
* streams of an API, whose pieces have a time: a subclass of :class:`Lines`, over :func:`whole_lines` and
  :func:`within`; :class:`Seen` goes on where a stream broke off, and :func:`split_stamp` reads the times.

What comes out can be iterated over (text), copied in blocks (:meth:`Lines.chunks`), and of files also be polled, and
read from its last lines on; see :mod:`torchx.util.log_streams`. A line of more than 1 MiB comes in pieces, of which
only the last one has the line end: joined they are the line, to the byte, and none is ever held whole.
"""

from __future__ import annotations

import functools
import re
import time
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from io import BytesIO, StringIO
from operator import itemgetter

from torchx.schedulers.kit.logs import LogQuery, stamped
from torchx.supervisor import lines as long_lines
from torchx.supervisor.lines import Part
from torchx.util.records import dataclass

_Blocks = Iterator[tuple[Hashable, bytes, int]]
"""Names of streams, blocks of whole lines, and when they were written: nanoseconds since the epoch; 0: unknown."""

_BLOCK = 1 << 16  # it and what is made of it stay in the processor's cache
_PATIENCE_S = 0.2  # spent on lines that do not match before others have their turn
_REDRAWN_S = 0.1  # a progress bar is shown so often


class Lines(ABC):
    """The lines of one replica's log that a query wants, each with its line end.

    Where there is a regular expression, each piece of a long line is searched by itself, and is a line if it matches.

    Args:
        query: its ``regex`` is applied here.
    """

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._lines: Iterator[str] | None = None

    @abstractmethod
    def _read(self, *, patient: bool) -> _Blocks:
        """All lines, in blocks of whole ones: names of their streams, blocks, and their times in nanoseconds since the
        epoch (0 where that is not known). A piece of a long line is a :class:`Part`, but for the last one.

        Args:
            patient: wait for what is still to come; else there is an empty block whenever there is nothing new.
        """

    def __iter__(self) -> Iterator[str]:
        # The generator itself, so that a loop over many lines runs in it alone.
        if self._lines is None:
            self._lines = self._read_lines()
        return self._lines

    def __next__(self) -> str:
        return next(iter(self))

    def _read_lines(self) -> Iterator[str]:
        for block in self.chunks():
            yield from StringIO(block.decode("utf-8", "replace"), newline="\n")

    def chunks(self) -> Iterator[bytes]:
        """The lines in blocks of whole ones, as they were written; only the last may lack its line end."""
        return filter(None, self._wanted(self._read(patient=True)))

    def _wanted(self, blocks: _Blocks) -> Iterator[bytes]:
        """Those lines that match; where another stream goes on after a :class:`Part`, that line is ended."""
        regex, timestamps = self._query.regex, self._query.timestamps
        open_line: Hashable = None
        is_bar = False
        until = time.monotonic() + _PATIENCE_S
        for stream, block, at in blocks:
            if regex is None:
                begun = open_line is not None
                if block:
                    if begun and stream != open_line:
                        yield Part(b"\r") if is_bar else b"\n"
                        begun = False
                    open_line = stream if isinstance(block, Part) else None
                    is_bar = self._query.live and b"\r" in block
                yield stamped(block, at, begun=begun) if timestamps and block else block
            elif (found := _matching(block, regex)) or not block or time.monotonic() > until:
                yield stamped(found, at) if timestamps and found else found
                until = time.monotonic() + _PATIENCE_S


def _matching(block: bytes, regex: re.Pattern[str]) -> bytes:
    """Those lines of a block that match, as they are; no part of a line is among them."""
    found = regex.search
    if isinstance(block, Part):
        return block + b"\n" if found(block.decode("utf-8", "replace")) else b""
    try:
        return "".join(filter(found, StringIO(block.decode(), newline="\n"))).encode()
    except UnicodeDecodeError:
        return b"".join([line for line in BytesIO(block) if found(line.decode("utf-8", "replace"))])


# -- files -----------------------------------------------------------------------------------------


@dataclass
class Cursor:
    """A place in a file.

    Attributes:
        path: of the file; it need not exist yet.
        position: offset of what comes next.
        scanned: there is no line end between the position and here.
        end: offset to stop at; None: the end of the file.
        inside: the position is in a long line, whose beginning was given away.
        written: when what was read last was written, nanoseconds since the epoch; 0: that is not known.
    """

    path: str
    position: int = 0
    end: int | None = None
    scanned: int = 0
    inside: bool = False
    written: int = 0

    def __post_init__(self) -> None:
        self.scanned = self.position

    def begin_at(self, position: int, *, inside: bool = False) -> None:
        """Goes on at an offset."""
        self.position = self.scanned = position
        self.inside = inside


class Follower(Lines):
    """The lines of a log in one or several files that may still grow; waits for more until the job has ended.

    Of an open line nothing is kept but where it begins: a thousand of them take no memory. A subclass says
    where the files are and reads them, in the first methods.
    """

    block = _BLOCK
    """The most bytes that are read at once."""

    def __init__(self, query: LogQuery) -> None:
        super().__init__(query)
        self._follow = query.follow and not (query.until is not None and query.until <= time.time())
        self._cursors: list[Cursor] | None = None
        self._first: deque[bytes] = deque()
        self._polled: Iterator[bytes] | None = None
        self._over = not self._follow
        self._redraw_at = 0.0

    # -- the backend's part --

    @abstractmethod
    def _files(self) -> list[Cursor]:
        """The files to read, each from where the wanted lines begin to where they end. Called once."""

    @abstractmethod
    def _size(self, cursor: Cursor) -> int:
        """How long a file is now, bytes; 0 when it does not exist."""

    @abstractmethod
    def _read_at(self, cursor: Cursor, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on; none where there are none just now."""

    @abstractmethod
    def _ended(self, *, patient: bool) -> bool:
        """Whether the job has ended; asked before each look for news: what was written by then is still read.

        Args:
            patient: somebody waits for this log alone; else it is polled along with others.
        """

    def _news(self, *, patient: bool, over: bool, moved: bool) -> None:
        """Gets ready for a look for news: waits for some, if it is patient, the job is not over, and the look before
        has found none (``moved``)."""

    def _notes(self, cursor: Cursor) -> Sequence[tuple[float, int]]:  # noqa: ARG002  # for subclasses
        """Unix times, and how long a file was by then, as far as that has been noted by now; oldest first."""
        return ()

    def _let_go(self) -> None:
        """Closes what is open: nothing more is there just now."""

    def _close(self) -> None:
        """Nobody reads these files any more."""

    # -- what comes out --

    def poll(self) -> bytes | None:
        """The next block of :meth:`chunks`, ``b""`` when there is none just now, None at the end. Never waits.

        Followed like this, a thousand replicas need no threads.
        """
        if self._polled is None:
            self._polled = self._wanted(self._read(patient=False))
        return self._first.popleft() if self._first else next(self._polled, None)

    def last(self, count: int) -> Follower:
        """Itself, from the last ``count`` lines on of what there is now; to be called before anything is read."""
        cursors = self._opened()
        searched = self._query.regex is not None and count > 0
        if not searched:
            for cursor in cursors:
                self._skip_to_last(cursor, count)
        if searched or len(cursors) > 1:
            first: deque[bytes] = deque(maxlen=max(count, 0))
            for block in self._wanted(self._now(cursors)):
                first.extend([block] if isinstance(block, Part) else BytesIO(block))
            open_lines = list(self._wanted(self._open_lines(cursors)))
            first.extend(open_lines)
            if self._follow:  # each of these is shown once it has its end
                self._first.extend(list(first)[: max(0, len(first) - len(open_lines))])
            else:
                self._close()
                self._first, self._cursors = first, []
        self._let_go()
        return self

    def chunks(self) -> Iterator[bytes]:
        """As of :class:`Lines`."""
        while self._first:
            yield self._first.popleft()
        yield from super().chunks()

    def _within_times(self, cursor: Cursor) -> Cursor:
        """Moves a cursor to where the query's times begin, and lets it end where they do."""
        since, until = self._query.since, self._query.until
        notes = self._notes(cursor) if since is not None or until is not None else ()

        def before(moment: float) -> int:
            at = bisect_left(notes, (moment,))
            return notes[at - 1][1] if at else 0

        if since is not None:
            cursor.begin_at(max(cursor.position, before(since)))
        if until is not None and until <= time.time():
            end = before(until)
            cursor.end = max(cursor.position, end if cursor.end is None else min(end, cursor.end))
        return cursor

    def _opened(self) -> list[Cursor]:
        if self._cursors is None:
            self._cursors = self._files()
        return self._cursors

    def _read(self, *, patient: bool) -> _Blocks:
        cursors = self._opened()
        try:
            yield from self._now(cursors)
            moved = True
            while self._follow:
                self._over = over = self._ended(patient=patient)
                self._news(patient=patient, over=over, moved=moved)
                before = [cursor.scanned for cursor in cursors]
                for cursor in cursors:
                    yield from self._up_to(cursor)
                moved = before != [cursor.scanned for cursor in cursors]
                if self._query.live:
                    yield from self._progress_bars(cursors)
                if over and not moved:
                    break
                if not (patient or over):
                    self._let_go()
                    yield "", b"", 0
            yield from self._open_lines(cursors)
        finally:
            self._let_go()
            self._close()

    def _progress_bars(self, cursors: list[Cursor]) -> _Blocks:
        """What there is of lines that went back to their beginning, now and then."""
        now = time.monotonic()
        if now < self._redraw_at:
            return
        self._redraw_at = now + _REDRAWN_S
        for cursor in cursors:
            line = self._whole(cursor, cursor.position, cursor.scanned)
            shown = line[: long_lines.whole_characters(line)]
            if shown and (cursor.inside or b"\r" in shown):
                cursor.begin_at(cursor.position + len(shown), inside=True)
                yield cursor.path, Part(shown), cursor.written

    def _open_lines(self, cursors: list[Cursor]) -> _Blocks:
        """What is there of lines without line end."""
        for cursor in cursors:
            if rest := self._whole(cursor, cursor.position, cursor.scanned):
                yield cursor.path, rest, cursor.written

    def _now(self, cursors: list[Cursor]) -> _Blocks:
        """What there is by now; of several files in the order of writing, as far as that is known."""
        for cursor in cursors:
            yield from self._up_to(cursor)

    def _up_to(self, cursor: Cursor, until: int | None = None) -> _Blocks:
        """The lines of a file up to an offset, or to where it ends now."""
        if self._query.timestamps:
            yield from self._noted(cursor, until)
            if not self._over:  # when the rest was written is not known yet
                return
        while block := self._take(cursor, until):
            yield cursor.path, block, cursor.written

    def _noted(self, cursor: Cursor, until: int | None) -> _Blocks:
        """The lines whose times are known. A line has the first time at which all of it was there."""
        notes = self._notes(cursor)
        stop = min((end for end in (cursor.end, until) if end is not None), default=None)
        known = bisect_right(notes, cursor.scanned, key=itemgetter(1))
        if known:
            cursor.written = int(notes[known - 1][0] * 10**9)
        for at, length in notes[known:]:
            cursor.written = int(at * 10**9)
            while block := self._take(cursor, length if stop is None else min(length, stop)):
                yield cursor.path, block, cursor.written
            if stop is not None and length >= stop:
                break

    def _take(self, cursor: Cursor, until: int | None = None) -> bytes:
        """The next block; empty when no line has come to its end, and none is long. What is there is looked at once."""
        stop = min((end for end in (cursor.end, until) if end is not None), default=None)
        while True:
            scanned = cursor.scanned
            size = self.block if stop is None else min(self.block, stop - scanned)
            block = self._read_at(cursor, scanned, size) if size > 0 else b""
            if not block:
                return b""
            found = block.rfind(b"\n") + 1
            if found:
                if found < len(block):
                    block = block[:found]
                if scanned > cursor.position:
                    block = self._whole(cursor, cursor.position, scanned) + block
                cursor.begin_at(scanned + found)
                return block
            cursor.scanned = scanned + len(block)
            if part := self._part(cursor):
                return part

    def _part(self, cursor: Cursor) -> bytes:
        """What is there of a long line; empty when the line is not long yet."""
        drawn = self._query.live  # by and by, in _progress_bars
        if (drawn or not cursor.inside) and cursor.scanned - cursor.position < long_lines.LONG_LINE:
            return b""
        part = self._whole(cursor, cursor.position, cursor.scanned)
        part = part[: long_lines.whole_characters(part)]
        if part:
            cursor.begin_at(cursor.position + len(part), inside=True)
        return Part(part)

    def _whole(self, cursor: Cursor, start: int, end: int) -> bytes:
        """Bytes of a file that were seen before; fewer when it has become shorter."""
        data = b""
        while start + len(data) < end and (more := self._read_at(cursor, start + len(data), end - start - len(data))):
            data += more
        return data

    def _skip_to_last(self, cursor: Cursor, count: int) -> None:
        """Goes to the last ``count`` lines of what there is now; a last one without line end is one, too."""
        size = self._size(cursor)
        start, end = cursor.position, size if cursor.end is None else min(size, cursor.end)
        position, ends = end, count
        while count > 0 and position > start:
            low = max(start, position - _BLOCK)
            block = self._whole(cursor, low, position)
            if position == end:
                ends += block.endswith(b"\n")
            found = block.count(b"\n")
            if found >= ends:
                at = len(block)
                for _ in range(ends):
                    at = block.rfind(b"\n", 0, at)
                position = low + at + 1
                break
            ends -= found
            position = low
        cursor.begin_at(max(start, position))


# -- streams with times ----------------------------------------------------------------------------

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")


@dataclass
class Piece:
    """A piece of output: ``stream`` is 1 for stdout and 2 for stderr, ``time`` in nanoseconds since the epoch."""

    stream: int
    time: int
    text: bytes


def whole_lines(pieces: Iterable[Piece], *, live: bool = False) -> Iterator[Piece]:
    r"""Pieces joined to lines, each with its line end and the time of its first piece; by stream, so that a line
    of one is not torn by lines of the other. What has no line end is the last; a long line is not held, nor, ``live``,
    is one that goes back to its start.

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
    """The lines of the times that a query asks for. Those of a stream that is followed end with its ``until``."""
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
    """Knows what was read of a stream by time, and how much of the last time: of some systems it is a whole second.

    Attributes:
        last: time of the last piece, nanoseconds since the epoch; 0: there was none.
    """

    def __init__(self) -> None:
        self.last = 0
        self._count = 0

    def news(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces that were not read in an earlier pass."""
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
    r"""The time that stands before a text, RFC 3339 in nanoseconds since the epoch, and the text; 0 when there is none.

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
