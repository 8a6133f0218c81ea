"""Reads the growing output of batch jobs' replicas, through the ``Files`` of a site.

Only byte offsets are kept, so reading resumes after a lost connection. The job writes a line ``<Unix time> <bytes of
stdout> <bytes of stderr>`` to a replica's ``times.idx`` whenever one of them has grown: it gives lines their times, and
both outputs their order, to a second or so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.schedulers.api import Stream
from torchx.schedulers.kit.files import MAX_GROWN, Files
from torchx.schedulers.kit.follow import Cursor, Follower
from torchx.schedulers.kit.logs import LogQuery, not_started_again

if TYPE_CHECKING:
    from torchx.schedulers.batch.folders import LogPaths

    Times = list[tuple[float, int, int]]

_LISTEN_S = 2.0
"""How long a reader of one replica waits for new output before it checks whether the job has ended."""

_LOOK_S = 0.25
"""Interval at which readers of many replicas poll together."""

_OVER_S = 2.0


class Growth:
    """New content of the files at one site; readers share each poll."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._held: dict[str, tuple[int, bytes]] = {}  # offset, and the data from there on that may be read again
        self._full: set[str] = set()  # whose last answer had the maximum size
        self._looked = 0.0

    def reads(self, path: str) -> bool:
        """Whether a reader has the file open."""
        return path in self._held

    def begin(self, path: str, offset: int) -> None:
        """Start to read a file at ``offset``."""
        self._held[path] = (offset, b"")

    def look(self, *, wait_s: float = 0) -> None:
        """Poll all files whose last data was consumed."""
        self._ask([path for path, (_, data) in self._held.items() if len(data) <= MAX_GROWN], wait_s)
        self._looked = time.monotonic()

    def look_if_due(self) -> None:
        """Poll all files, unless another reader has just done so."""
        if time.monotonic() - self._looked >= _LOOK_S:
            self.look(wait_s=self.files.wait_s)

    def _ask(self, paths: list[str], wait_s: float = 0) -> None:
        offsets = {path: self._held[path][0] + len(self._held[path][1]) for path in paths}
        for path, data in (self.files.grown(offsets, wait_s) if offsets else {}).items():
            begin, held = self._held[path]
            self._held[path] = (begin, held + data)
            self._full.add(path) if len(data) == MAX_GROWN else self._full.discard(path)

    def read(self, path: str, offset: int, size: int, *, keep: int, ask: bool) -> bytes:
        """Return the data from ``offset`` on; drops cached data before ``keep``.

        If the cache has no more data, it reads the file with ``ask``, or if the last answer had the maximum size.
        """
        begin, data = self._held[path]
        if keep > begin:
            begin, data = self._held[path] = (keep, data[keep - begin :])
        if offset > begin + len(data):  # the reader looks for the last lines
            return self.files.read(path, offset, size) or b""
        if offset == begin + len(data) and (ask or path in self._full):
            self._ask([path])
            data = self._held[path][1]
        return data[offset - begin : offset - begin + size]

    def end(self, path: str) -> None:
        """Stop reading a file."""
        self._held.pop(path, None)


class BatchLog(Follower):
    """The lines of one replica that a query selects; ``growth`` is that of its site, or the site's files."""

    block = MAX_GROWN

    def __init__(self, growth: Growth | Files, paths: LogPaths, query: LogQuery, is_over: Callable[[], bool]) -> None:
        super().__init__(query)
        self._growth = growth if isinstance(growth, Growth) else Growth(growth)
        self._paths = paths
        self._is_over = is_over
        self._asked_over = 0.0
        self._times: Times = []
        self._lengths: dict[str, list[tuple[float, int]]] = {paths.stdout: [], paths.stderr: []}
        self._indexed = 0
        self._begun_record = b""
        self._backlog = True

    def _files(self) -> list[Cursor]:
        stdout, stderr, times = self._paths.stdout, self._paths.stderr, self._paths.times
        query, files = self._query, self._growth.files
        if query.previous and not self._paths.again:
            raise not_started_again()
        streams = [stdout] if query.stream is Stream.STDOUT or not stderr else [stdout, stderr]
        streams = [stderr or stdout] if query.stream is Stream.STDERR else streams
        if any(self._growth.reads(path) for path in streams):  # another reader of this replica has another position
            self._growth = Growth(files)
        bounded = query.since is not None or query.until is not None
        if times and (bounded or query.timestamps or len(streams) > 1):
            block = bytes(MAX_GROWN)
            while len(block) == MAX_GROWN:  # a shorter block is the last one
                block = files.read(times, self._indexed, MAX_GROWN) or b""
                self._learn_times(block)
        known = self._times if bounded else times or not query.timestamps
        if not known and any(files.sizes(streams).values()):
            raise NotSupportedError(
                "the times of this job's lines are not known", hint="omit `--since`, `--until` and `--timestamps`"
            )
        if query.timestamps:
            self._growth.begin(times, self._indexed)
        cursors = [self._cursor(path) for path in streams]
        for cursor in cursors:
            self._growth.begin(cursor.path, cursor.position)
        return cursors

    def _cursor(self, path: str) -> Cursor:
        which = int(path == self._paths.stderr)
        end = self._paths.end
        return self._within_times(Cursor(path, self._paths.begin[which], end[which] if end else None))

    def _notes(self, cursor: Cursor) -> list[tuple[float, int]]:
        return self._lengths[cursor.path]

    def _learn_times(self, block: bytes) -> None:
        """Parse new data of the index."""
        self._indexed += len(block)
        records, _, self._begun_record = (self._begun_record + block).rpartition(b"\n")
        for record in parse_times(records.decode("ascii", "replace")):
            if not self._times or record[0] >= self._times[-1][0]:
                self._times.append(record)
                for path, length in zip((self._paths.stderr, self._paths.stdout), (record[2], record[1]), strict=True):
                    self._lengths[path].append((record[0], length))

    def _size(self, cursor: Cursor) -> int:
        return self._growth.files.sizes([cursor.path])[cursor.path] or 0

    def _read_at(self, cursor: Cursor, offset: int, size: int) -> bytes:
        return self._growth.read(cursor.path, offset, size, keep=cursor.position, ask=self._backlog)

    def _now(self, cursors: list[Cursor]) -> Iterator[tuple[Hashable, bytes, int]]:
        if len(cursors) == 2:
            for _, *sizes in self._times:
                for cursor, until in zip(cursors, sizes, strict=True):
                    yield from self._up_to(cursor, until)
        yield from super()._now(cursors)
        self._backlog = False

    def _news(self, *, patient: bool, over: bool, moved: bool) -> None:  # noqa: ARG002  # as declared
        if over:
            self._growth.look()
        elif patient:
            self._growth.look(wait_s=_LISTEN_S)
        else:
            self._growth.look_if_due()
        if self._query.timestamps:
            self._learn_times(
                self._growth.read(self._paths.times, self._indexed, MAX_GROWN, keep=self._indexed, ask=False)
            )

    def _ended(self, *, patient: bool) -> bool:  # noqa: ARG002  # as declared
        now = time.monotonic()
        if now - self._asked_over < _OVER_S and self._asked_over:
            return False
        self._asked_over = now
        return self._is_over()

    def _close(self) -> None:
        for path in (*(cursor.path for cursor in self._cursors or ()), self._paths.times):
            self._growth.end(path)


def parse_times(text: str) -> Times:
    """Return the records of an index, without damaged ones.

    >>> parse_times("10.5 3 0\\nxx\\n11 7 2\\n")
    [(10.5, 3, 0), (11.0, 7, 2)]
    """
    found: Times = []
    for line in text.splitlines():
        words = line.split()
        try:
            found.append((float(words[0]), int(words[1]), int(words[2])))
        except (ValueError, IndexError):
            continue
    return found


def check_query(query: LogQuery) -> None:
    """Raise NotSupportedError for queries that a task's output, one file without times, cannot answer."""
    if query.since is not None or query.until is not None:
        raise NotSupportedError(
            "`--since` and `--until` do not work for tasks of a sweep", hint="`--tail N` prints the last lines"
        )
    if query.timestamps or query.previous:
        what = "--timestamps" if query.timestamps else "--previous"
        raise NotSupportedError(f"`{what}` does not work for tasks of a sweep", hint="omit it")
    if query.stream is not None and query.stream.value != "combined":
        raise NotSupportedError(
            f"the tasks of a sweep write both streams to one file: {query.stream.value} is not separate",
            hint="omit `--streams`",
        )
