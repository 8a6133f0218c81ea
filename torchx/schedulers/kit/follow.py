"""Follows logs: yields the lines that a query selects, as they are written and in bounded memory.

A backend provides the source of a replica's lines, which is one of two kinds:

* files that are read by offset, on this or another machine: a subclass of :class:`Follower`;
* streams of an API whose chunks have timestamps: a subclass of :class:`Lines` that uses
  :mod:`torchx.schedulers.kit.timed_lines`.

Callers iterate over the result (text) or copy it in blocks (:meth:`Lines.chunks`). Logs in files can also be polled and
read from their last lines on; see :mod:`torchx.util.log_streams`. A line longer than 1 MiB comes in several parts, of
which only the last one has a line end, so that it is never held in memory as a whole.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from io import BytesIO, StringIO
from operator import itemgetter

from torchx.schedulers.kit.logs import LogQuery, stamped
from torchx.supervisor import lines as long_lines
from torchx.supervisor.lines import Part
from torchx.util.records import dataclass

_Blocks = Iterator[tuple[Hashable, bytes, int]]
"""Tuples of the stream's name, a block of whole lines, and its time in nanoseconds since the epoch (0 if unknown)."""

_BLOCK = 1 << 16  # fits the processor's cache
_PATIENCE_S = 0.2  # maximum time spent on lines that do not match before other logs get their turn
_REDRAWN_S = 0.1  # interval between two updates of a progress bar


class Lines(ABC):
    """The lines of one replica's log that a query selects, each with its line end.

    This class applies ``regex``, ``timestamps`` and ``live`` of the query. A regular expression is applied to each part
    of a long line separately, and a part that matches counts as a line.
    """

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._lines: Iterator[str] | None = None

    @abstractmethod
    def _read(self, *, patient: bool) -> _Blocks:
        """Yield all lines in blocks of whole lines, see ``_Blocks``. Each part of a long line but the last is a
        :class:`Part`.

        Args:
            patient: wait for new lines; otherwise yield an empty block whenever there are none.
        """

    def __iter__(self) -> Iterator[str]:
        # Returns the generator itself, so that a loop does not pass through __next__ for each line.
        if self._lines is None:
            self._lines = self._read_lines()
        return self._lines

    def __next__(self) -> str:
        return next(iter(self))

    def _read_lines(self) -> Iterator[str]:
        for block in self.chunks():
            yield from StringIO(block.decode("utf-8", "replace"), newline="\n")

    def chunks(self) -> Iterator[bytes]:
        """Yield blocks of whole lines as they were written. Only the last line may lack its line end."""
        return filter(None, self._wanted(self._read(patient=True)))

    def _wanted(self, blocks: _Blocks) -> Iterator[bytes]:
        """Yield the lines that match. Ends the line of a :class:`Part` when another stream continues after it."""
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
    """Return the lines of a block that match. A :class:`Part` that matches gets a line end."""
    found = regex.search
    if isinstance(block, Part):
        return block + b"\n" if found(block.decode("utf-8", "replace")) else b""
    try:
        return "".join(filter(found, StringIO(block.decode(), newline="\n"))).encode()
    except UnicodeDecodeError:
        return b"".join([line for line in BytesIO(block) if found(line.decode("utf-8", "replace"))])


@dataclass
class Cursor:
    """A read position in a file.

    Attributes:
        path: of the file; it need not exist yet.
        position: offset of the next line.
        scanned: offset up to which there is no line end after the position.
        end: offset to stop at; None: the end of the file.
        inside: the position is inside a long line whose first part was already yielded.
        written: time of the data read last, nanoseconds since the epoch; 0 if unknown.
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
        """Move to an offset."""
        self.position = self.scanned = position
        self.inside = inside


class Follower(Lines):
    """The lines of a log in one or several growing files. Waits for more until the job has ended.

    Of an incomplete line only its offset is kept, so that following thousands of files takes little memory. A subclass
    implements the first methods, which locate and read the files.
    """

    block = _BLOCK
    """Maximum number of bytes per read."""

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
        """Return the files to read, each with the range of the selected lines. Called once."""

    @abstractmethod
    def _size(self, cursor: Cursor) -> int:
        """Return the current size of a file in bytes; 0 if it does not exist."""

    @abstractmethod
    def _read_at(self, cursor: Cursor, offset: int, size: int) -> bytes:
        """Read at most ``size`` bytes from ``offset`` on; empty if there are none now."""

    @abstractmethod
    def _ended(self, *, patient: bool) -> bool:
        """Whether the job has ended. Called before each read, so that all that was written until then is still read.

        Args:
            patient: the caller waits for this log only; otherwise it polls several logs in turn.
        """

    def _news(self, *, patient: bool, over: bool, moved: bool) -> None:
        """Prepare the next read. Waits for new data if ``patient``, unless the job is ``over`` or the read before has
        found some (``moved``)."""

    def _notes(self, cursor: Cursor) -> Sequence[tuple[float, int]]:  # noqa: ARG002  # for subclasses
        """Return the recorded pairs of Unix time and size of the file at that time, oldest first."""
        return ()

    def _let_go(self) -> None:
        """Close open files until there is more to read."""

    def _close(self) -> None:
        """Releases all resources when reading has ended."""

    # -- what comes out --

    def poll(self) -> bytes | None:
        """Return the next block of :meth:`chunks`, ``b""`` if there is none yet, None at the end. Never waits.

        With it, one thread can follow thousands of replicas.
        """
        if self._polled is None:
            self._polled = self._wanted(self._read(patient=False))
        return self._first.popleft() if self._first else next(self._polled, None)

    def last(self, count: int) -> Follower:
        """Skips all but the last ``count`` lines that exist now, and returns itself. Call it before reading."""
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
            if self._follow:  # open lines are yielded when they are complete
                self._first.extend(list(first)[: max(0, len(first) - len(open_lines))])
            else:
                self._close()
                self._first, self._cursors = first, []
        self._let_go()
        return self

    def chunks(self) -> Iterator[bytes]:
        """See :meth:`Lines.chunks`."""
        while self._first:
            yield self._first.popleft()
        yield from super().chunks()

    def _within_times(self, cursor: Cursor) -> Cursor:
        """Restricts a cursor to the time range of the query, as far as times are recorded."""
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
        """Yield the unfinished lines that contain a carriage return, at limited intervals."""
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
        """Yield the last lines, which have no line end."""
        for cursor in cursors:
            if rest := self._whole(cursor, cursor.position, cursor.scanned):
                yield cursor.path, rest, cursor.written

    def _now(self, cursors: list[Cursor]) -> _Blocks:
        """Yield what exists now. Subclasses with several files order it by the time of writing where it is known."""
        for cursor in cursors:
            yield from self._up_to(cursor)

    def _up_to(self, cursor: Cursor, until: int | None = None) -> _Blocks:
        """Yield the lines of a file up to an offset, or to its current end."""
        if self._query.timestamps:
            yield from self._noted(cursor, until)
            if not self._over:  # the times of the rest will be recorded later
                return
        while block := self._take(cursor, until):
            yield cursor.path, block, cursor.written

    def _noted(self, cursor: Cursor, until: int | None) -> _Blocks:
        """Yield the lines whose times are recorded. The time of a line is the first one at which it was complete."""
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
        """Return the next block; empty if no line is complete and none is long.

        Reads each byte of an open line only once.
        """
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
        """Return the next part of a long line; empty if the line is not long yet."""
        drawn = self._query.live  # then _progress_bars yields the rest of a line that has begun
        if (drawn or not cursor.inside) and cursor.scanned - cursor.position < long_lines.LONG_LINE:
            return b""
        part = self._whole(cursor, cursor.position, cursor.scanned)
        part = part[: long_lines.whole_characters(part)]
        if part:
            cursor.begin_at(cursor.position + len(part), inside=True)
        return Part(part)

    def _whole(self, cursor: Cursor, start: int, end: int) -> bytes:
        """Read a range that was read before; fewer bytes if the file was truncated."""
        data = b""
        while start + len(data) < end and (more := self._read_at(cursor, start + len(data), end - start - len(data))):
            data += more
        return data

    def _skip_to_last(self, cursor: Cursor, count: int) -> None:
        """Move to the last ``count`` lines that exist now, including a last one without line end."""
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
