"""Reads the output of batch jobs' replicas while it grows, through the ``Files`` of a site.

Only byte offsets are kept, so that a connection may break and come back. ``times.idx`` of a replica, written by the
job, has a line ``<Unix time> <bytes of stdout> <bytes of stderr>`` whenever one of them has grown: by it lines are
found by their time, and both outputs are shown in the order of writing, to a second or so.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from io import StringIO

from torchx.errors import NotSupportedError
from torchx.schedulers.api import Stream
from torchx.schedulers.kit.files import MOST_GROWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torchx.schedulers.batch.folders import LogPaths
    from torchx.schedulers.kit.files import Files
    from torchx.schedulers.kit.logs import LogQuery

    Times = list[tuple[float, int, int]]

_LISTEN_S = 2.0
"""How long a reader of one replica waits for news before it asks whether the job has ended."""

_LOOK_S = 0.25
"""Readers of many replicas look for news together, so often."""

_OVER_S = 2.0
_LONG_LINE = 1 << 20


class Growth:
    """What comes into files, for all readers at one site: one look for all of them together.

    Args:
        files: of the site.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._offsets: dict[str, int] = {}
        self._news: dict[str, bytes] = {}
        self._looked = 0.0

    def reads(self, path: str) -> bool:
        """Whether somebody reads the file."""
        return path in self._offsets

    def begin(self, path: str, offset: int) -> None:
        """Read a file from ``offset`` on."""
        self._offsets[path] = offset
        self._news.pop(path, None)

    def take(self, path: str) -> bytes:
        """What came since the last call, at most 1 MiB."""
        return self._news.pop(path, b"")

    def look(self, *, wait_s: float = 0) -> None:
        """Ask for news of all files that have none waiting to be taken."""
        self._ask({path: at for path, at in self._offsets.items() if path not in self._news}, wait_s)
        self._looked = time.monotonic()

    def look_at(self, path: str) -> None:
        """Ask for news of one file."""
        if path not in self._news:
            self._ask({path: self._offsets[path]}, 0)

    def _ask(self, offsets: dict[str, int], wait_s: float) -> None:
        found = self._files.grown(offsets, wait_s) if offsets else {}
        for path, data in found.items():
            self._offsets[path] += len(data)
            self._news[path] = data

    def look_if_due(self) -> None:
        """Ask for news of all files, unless another reader has just done so."""
        if time.monotonic() - self._looked >= _LOOK_S:
            self.look(wait_s=self._files.wait_s)

    def end(self, path: str) -> None:
        """Nobody reads the file any more."""
        self._offsets.pop(path, None)
        self._news.pop(path, None)


class _Cursor:
    """Whole lines of one file, in order."""

    def __init__(self, growth: Growth, path: str, start: int, end: int | None) -> None:
        self.growth = growth
        self.path = path
        self.position = start  # of what has been given away
        self.end = end
        self.rest = b""
        self.at_end = False  # when it was looked at last, nothing more was there
        growth.begin(path, start)

    def fill(self) -> bool:
        """Takes what has come; whether there was anything."""
        data = self.growth.take(self.path)
        self.at_end = len(data) < MOST_GROWN
        if self.end is not None:
            data = data[: max(0, self.end - self.position - len(self.rest))]
        self.rest += data
        return bool(data)

    def lines(self, until: int | None = None, *, all_of_it: bool = False) -> bytes:
        """The whole lines that are here, of those that begin before ``until``; a line that is long, in pieces."""
        data = self.rest
        size = len(data) if until is None else min(len(data), max(0, until - self.position))
        cut = data.rfind(b"\n", 0, size) + 1
        if all_of_it or (not cut and len(data) >= _LONG_LINE):
            cut = size
        self.rest = data[cut:]
        self.position += cut
        return data[:cut]

    def close(self) -> None:
        self.growth.end(self.path)


class BatchLog:
    """The lines that a query wants of one replica; iterates over them, each with its line end.

    Args:
        growth: of the site; a :class:`Growth`, or its files.
        paths: where the output is.
        query: what is wanted.
        is_over: whether the job has ended.
    """

    def __init__(self, growth: Growth | Files, paths: LogPaths, query: LogQuery, is_over: Callable[[], bool]) -> None:
        self._growth = growth if isinstance(growth, Growth) else Growth(growth)
        self._files: Files = self._growth._files
        self._paths = paths
        self._query = query
        self._is_over = is_over
        self._follow = query.follow and not (query.until is not None and query.until <= time.time())
        self._start: dict[str, int] = {}
        self._first: deque[str] | None = None
        self._blocks: Iterator[bytes] | None = None
        self._polled: Iterator[bytes] | None = None
        self._asked_over = 0.0

    def __iter__(self) -> Iterator[str]:
        if self._blocks is None:
            self._blocks = self._read(patient=True)
        if self._first:
            yield from self._first
            self._first = None
        for block in self._blocks:
            yield from self._matching(block)

    def poll(self) -> bytes | None:
        """The next lines, ``b""`` when there are none just now, None at the end. Never waits for the job."""
        if self._polled is None:
            self._polled = self._read(patient=False)
        if self._first:
            first, self._first = self._first, None
            return "".join(first).encode()
        block = next(self._polled, None)
        return "".join(self._matching(block)).encode() if block else block

    def last(self, count: int) -> BatchLog:
        """Itself, from the last ``count`` of the lines on that are there now."""
        follow, self._follow = self._follow, False
        if self._query.regex is None and count > 0:
            self._skip_to_last(count)
        kept: deque[str] = deque(maxlen=max(count, 0))
        for block in self._read(patient=True, keep=follow):
            kept.extend(self._matching(block))
        self._follow = follow
        self._first = kept
        if not follow:
            self._blocks = self._polled = iter(())
        return self

    # -- what to read ------------------------------------------------------------------------------

    def _streams(self) -> list[str]:
        """The files, stdout first."""
        stdout, stderr = self._paths.stdout, self._paths.stderr
        wanted = self._query.stream
        if wanted is Stream.STDERR:
            return [stderr or stdout]
        if wanted is Stream.STDOUT or not stderr:
            return [stdout]
        return [stdout, stderr]

    def _times(self) -> Times:
        """The index; empty when there is none."""
        if not self._paths.times:
            return []
        text, block = b"", bytes(MOST_GROWN)
        while len(block) == MOST_GROWN:  # what is shorter was the end
            block = self._files.read(self._paths.times, len(text), MOST_GROWN) or b""
            text += block
        return parse_times(text.decode("ascii", "replace"))

    def _window(self, streams: list[str]) -> tuple[dict[str, int], dict[str, int | None], Times]:
        """Where each file is read from and to, and the times of what is in it."""
        query = self._query
        timed = query.since is not None or query.until is not None
        times = self._times() if timed or len(streams) > 1 else []
        start = {path: self._start.get(path, 0) for path in streams}
        end: dict[str, int | None] = dict.fromkeys(streams)
        if not timed:
            return start, end, times
        if not times and any(self._files.sizes(streams).values()):
            raise NotSupportedError("the times of this job's lines are not known", hint="omit `--since` and `--until`")
        moments = [t for t, _, _ in times]
        for path in streams:
            sizes = [err if path == self._paths.stderr else out for _, out, err in times]
            if query.since is not None and (at := bisect_left(moments, query.since)):
                start[path] = max(start[path], sizes[at - 1])
            if query.until is not None and query.until <= time.time():
                at = bisect_left(moments, query.until)
                end[path] = sizes[at - 1] if at else 0
        return start, end, times

    def _skip_to_last(self, count: int) -> None:
        """Begin near the end: in each file at its last ``count`` lines."""
        streams = self._streams()
        sizes = self._files.sizes(streams)
        start, end, _ = self._window(streams)
        for path in streams:
            size = sizes[path] or 0
            limit = end[path]
            stop = size if limit is None else min(size, limit)
            self._start[path] = _last_lines(self._files, path, start[path], stop, count)

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, *, patient: bool, keep: bool = False) -> Iterator[bytes]:
        """Blocks of whole lines; only the last may lack its line end. Impatient: an empty one when nothing is new."""
        streams = self._streams()
        start, end, times = self._window(streams)
        if any(self._growth.reads(path) for path in streams):  # another reader of this replica is elsewhere in it
            self._growth = Growth(self._files)
        cursors = [_Cursor(self._growth, path, start[path], end[path]) for path in streams]
        try:
            yield from self._backlog(cursors, times)
            while self._follow:
                over = self._over()
                self._look(over, patient=patient)
                moved = False
                for cursor in cursors:
                    while cursor.fill():
                        moved = True
                        if block := cursor.lines():
                            yield block
                        self._growth.look_at(cursor.path)
                if over and not moved:
                    break
                if not patient and not over:
                    yield b""
            for cursor in cursors:
                if not keep and (block := cursor.lines(all_of_it=True)):
                    yield block
                elif keep:
                    self._start[cursor.path] = cursor.position
        finally:
            for cursor in cursors:
                cursor.close()

    def _look(self, over: bool, *, patient: bool) -> None:
        if over:
            self._growth.look()
        elif patient:
            self._growth.look(wait_s=_LISTEN_S)
        else:
            self._growth.look_if_due()

    def _over(self) -> bool:
        """Whether the job has ended; asked now and then."""
        now = time.monotonic()
        if now - self._asked_over < _OVER_S and self._asked_over:
            return False
        self._asked_over = now
        return self._is_over()

    def _backlog(self, cursors: list[_Cursor], times: Times) -> Iterator[bytes]:
        """What is there by now; of two outputs in the order of writing, as far as the index shows it."""
        if len(cursors) == 2 and times:
            out, err = cursors
            for _, size_out, size_err in times:
                for cursor, until in ((out, size_out), (err, size_err)):
                    yield from _up_to(cursor, until)
        for cursor in cursors:
            yield from _up_to(cursor, None)

    def _matching(self, block: bytes) -> Iterable[str]:
        return self._query.matching(StringIO(block.decode("utf-8", "replace"), newline="\n"))


def _up_to(cursor: _Cursor, until: int | None) -> Iterator[bytes]:
    """The lines of a file up to an offset, or to where it ends now."""
    while until is None or cursor.position < until:
        if until is None or cursor.position + len(cursor.rest) < until:
            cursor.growth.look_at(cursor.path)
            more = cursor.fill() and not cursor.at_end
        else:
            more = False
        block = cursor.lines(until)
        if block:
            yield block
        if not more:
            return


def parse_times(text: str) -> Times:
    """The records of an index; what is damaged is left out.

    >>> parse_times("10.5 3 0\\nxx\\n11 7 2\\n")
    [(10.5, 3, 0), (11.0, 7, 2)]
    """
    found: Times = []
    for line in text.splitlines():
        words = line.split()
        try:
            moment, out, err = float(words[0]), int(words[1]), int(words[2])
        except (ValueError, IndexError):
            continue
        if not found or moment >= found[-1][0]:
            found.append((moment, out, err))
    return found


def _last_lines(files: Files, path: str, start: int, end: int, count: int) -> int:
    """Where the last ``count`` lines between two offsets begin."""
    position, missing = end, count + 1
    first = True
    while position > start:
        low = max(start, position - (1 << 16))
        block = files.read(path, low, position - low) or b""
        if first and not block.endswith(b"\n"):
            missing -= 1
        first = False
        ends = block.count(b"\n")
        if ends >= missing:
            at = len(block)
            for _ in range(missing):
                at = block.rfind(b"\n", 0, at)
            return low + at + 1
        missing -= ends
        position = low
    return start
