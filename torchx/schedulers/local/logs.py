"""Reads the log files of local replicas: as fast as the file, and to the end of the job."""

from __future__ import annotations

import os
import time

from torchx.specs.api import is_terminal
from torchx.supervisor.layout import COMBINED_LOG, STDERR_LOG, STDOUT_LOG, TIMES_INDEX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from torchx.schedulers.api import Scheduler
    from torchx.schedulers.kit.logs import LogQuery

_BLOCK = 1 << 16  # it and what is made of it stay in the processor's cache
_SOONEST_S = 0.005
_LATEST_S = 0.1
_SAME_S = 0.05  # so long an answer about the job is good for its other replicas
_LOOKS = 16  # of so many looks for news, one opens the file
_FILES = (STDOUT_LOG, STDERR_LOG, COMBINED_LOG)


class JobEnd:
    """Whether a job has ended, shared by the readers of its logs: what one has found out is true for all."""

    def __init__(self) -> None:
        self.asked = float("-inf")
        self.ended = False


class LogIterator:
    """The lines of a log file, each with its line end; waits for more until the job has ended.

    A line of more than :data:`~torchx.supervisor.lines.LONG_LINE` bytes (1 MiB) comes in pieces, of which only the
    last one has the line end: joined they are the line, to the byte, and none is ever held whole.

    Subclasses may override :meth:`_check_finished`, which sets ``_app_finished``.

    Args:
        app_id: the job that writes the file.
        log_file: its path; it need not exist yet.
        scheduler: asked whether the job has ended.
        should_tail: wait for what is still to come; else the end of the file is the end.
        start: offset to begin at, bytes.
        end: offset to stop at, bytes; None: the end of the file.
        job_end: shared with the other readers of the job's logs.
    """

    def __init__(
        self,
        app_id: str,
        log_file: str,
        scheduler: Scheduler[Any],
        should_tail: bool = True,
        *,
        start: int = 0,
        end: int | None = None,
        job_end: JobEnd | None = None,
    ) -> None:
        self._app_id = app_id
        self._log_file = log_file
        self._scheduler = scheduler
        self._app_finished = not should_tail
        self._position = start
        self._scanned = start  # no line end between the position and here
        self._inside = False  # the position is in a long line, whose beginning was given away
        self._looks = 0
        self._end = end
        self._job_end = job_end or JobEnd()
        self._lines: Iterator[str] | None = None
        self._news: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[str]:
        # The generator itself, so that a loop over many lines runs in it alone.
        if self._lines is None:
            self._lines = self._read_lines()
        return self._lines

    def __next__(self) -> str:
        return next(iter(self))

    def _check_finished(self) -> None:
        """Find out whether the job has ended; sets ``_app_finished``."""
        described = self._scheduler.describe(self._app_id)
        if described is None or is_terminal(described.state):
            self._app_finished = True

    def _read_lines(self) -> Iterator[str]:
        from io import StringIO

        for block in self.chunks():
            yield from StringIO(block.decode("utf-8", "replace"), newline="\n")

    def last(self, count: int) -> LogIterator:
        """Itself, from the last ``count`` lines on of what there is now; to be called before anything is read."""
        fd = self._open()
        if fd < 0:
            return self
        try:
            size = os.fstat(fd).st_size
            end = size if self._end is None else min(size, self._end)
            self.begin_at(_last_lines(fd, self._position, end, count))
        finally:
            os.close(fd)
        return self

    def poll(self) -> bytes | None:
        """The next block of :meth:`chunks`, ``b""`` when there is none just now, None at the end. Never waits.

        Followed like this, a thousand replicas need neither a thread nor an open file each.
        """
        if self._news is None:
            self._news = self.chunks(patient=False)
        return next(self._news, None)

    def chunks(self, *, patient: bool = True) -> Iterator[bytes]:
        """The lines in blocks of whole ones, as they stand in the file; only the last may lack its line end.

        A piece of a long line is a block of its own: a :class:`~torchx.util.log_streams.Part`, but for the last one.

        Args:
            patient: wait for what is still to come; else there is an empty block instead.
        """
        fd = -1
        pause = _SOONEST_S
        try:
            while True:
                finished = self._app_finished  # before reading: what was written by then is read below
                fd = self._open() if fd < 0 and (patient or self._has_grown()) else fd
                moved = False
                while fd >= 0 and (block := self._take(fd)):
                    moved = True
                    yield block
                if finished:
                    break
                pause = _SOONEST_S if moved else min(pause * 1.5, _LATEST_S)
                if patient:
                    self._check_finished()
                    if not self._app_finished and not moved:
                        self._sleep(pause)
                    continue
                if fd >= 0:
                    os.close(fd)
                    fd = -1
                self._learn_finished()
                if not self._app_finished:
                    yield b""
            if self._scanned > self._position:
                fd = self._open() if fd < 0 else fd
                yield _read(fd, self._position, self._scanned)
        finally:
            if fd >= 0:
                os.close(fd)

    @property
    def position(self) -> int:
        """Offset of what comes next."""
        return self._position

    def so_far(self) -> LogIterator:
        """Another one, over what is there now of that which has not been read yet."""
        return LogIterator(
            self._app_id, self._log_file, self._scheduler, should_tail=False, start=self._position, end=self._end
        )

    def begin_at(self, position: int, *, inside: bool = False) -> None:
        """Goes on at an offset; ``inside``: it is in a long line, whose beginning was given away."""
        self._position = self._scanned = position
        self._inside = inside

    def _take(self, fd: int) -> bytes:
        """The next block; empty when no line has come to its end, and none is long.

        What a line has so far is looked at once, and stays in the file: a thousand open lines take no memory.
        """
        while True:
            scanned = self._scanned
            size = _BLOCK if self._end is None else min(_BLOCK, self._end - scanned)
            block = os.pread(fd, size, scanned) if size > 0 else b""
            if not block:
                return b""
            found = block.rfind(b"\n") + 1
            if found:
                if found < len(block):
                    block = block[:found]
                if scanned > self._position:
                    block = _read(fd, self._position, scanned) + block
                self.begin_at(scanned + found)
                return block
            self._scanned = scanned + len(block)
            part = self._part(fd)
            if part:
                return part

    def _part(self, fd: int) -> bytes:
        """What is there of a long line; empty when the line is not long yet."""
        from torchx.supervisor.lines import LONG_LINE, whole_characters
        from torchx.util.log_streams import Part

        if not self._inside and self._scanned - self._position < LONG_LINE:
            return b""
        part = _read(fd, self._position, self._scanned)
        part = part[: whole_characters(part)]
        if part:
            self.begin_at(self._position + len(part), inside=True)
        return Part(part)

    def _has_grown(self) -> bool:
        """Cheaper than opening it; but of a file of another machine only opening it shows the truth."""
        self._looks += 1
        try:
            return os.stat(self._log_file).st_size > self._scanned or self._looks % _LOOKS == 0
        except OSError:
            return False

    def _learn_finished(self) -> None:
        """As :meth:`_check_finished`, which is not called when another reader has just done so."""
        shared, now = self._job_end, time.monotonic()
        if now - shared.asked < _SAME_S:
            self._app_finished = self._app_finished or shared.ended
        else:
            self._check_finished()
            shared.asked, shared.ended = now, self._app_finished

    def _open(self) -> int:
        try:
            return os.open(self._log_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1

    def _sleep(self, pause: float) -> None:
        self._scheduler.wait_for_end(self._app_id, pause)  # returns at once when the job ends


def open_log(scheduler: Scheduler[Any], app_id: str, folder: str, query: LogQuery, job_end: JobEnd) -> LogIterator:
    """The lines of one replica that the query wants, its regular expression not yet applied.

    Times are those at which the supervisor saw the lines: a fraction of a second late, in a job of many hours up to
    some seconds.
    """
    name = f"{query.stream.value}.log" if query.stream else COMBINED_LOG
    start, end = 0, None
    follow = query.follow
    if query.since is not None or query.until is not None:
        start, end = _offsets(folder, _FILES.index(name), query)
        if query.until is not None and query.until <= time.time():
            follow = False  # all that it can be is written
    return LogIterator(app_id, os.path.join(folder, name), scheduler, follow, start=start, end=end, job_end=job_end)


def _offsets(folder: str, stream: int, query: LogQuery) -> tuple[int, int | None]:
    """Where in the file the wanted times begin and end."""
    from bisect import bisect_left

    from torchx.supervisor.follow import RECORD

    try:
        with open(os.path.join(folder, TIMES_INDEX), "rb") as f:
            data = f.read()
    except FileNotFoundError:
        data = b""
    records = list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
    times = [record[0] for record in records]

    def before(moment: float) -> int:
        at = bisect_left(times, moment)
        return int(records[at - 1][1 + stream]) if at else 0

    start = 0 if query.since is None else before(query.since)
    if query.until is None or query.until > time.time():
        return start, None
    return start, max(start, before(query.until))


def _read(fd: int, start: int, end: int) -> bytes:
    """Bytes of a file; fewer when it has become shorter."""
    data = os.pread(fd, end - start, start) if end > start else b""
    while data and len(data) < end - start and (more := os.pread(fd, end - start - len(data), start + len(data))):
        data += more
    return data


def _last_lines(fd: int, start: int, end: int, count: int) -> int:
    """Where the last ``count`` lines between two offsets begin; a last one without line end is one, too."""
    if count <= 0 or end <= start:
        return end
    ends = count + (os.pread(fd, 1, end - 1) == b"\n")
    position = end
    while position > start:
        low = max(start, position - _BLOCK)
        block = os.pread(fd, position - low, low)
        found = block.count(b"\n")
        if found >= ends:
            at = len(block)
            for _ in range(ends):
                at = block.rfind(b"\n", 0, at)
            return low + at + 1
        ends -= found
        position = low
    return start
