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
_known: tuple[tuple[int, str], float, bool] = ((0, ""), 0.0, False)  # job, when it was asked, whether it had ended
_FILES = (STDOUT_LOG, STDERR_LOG, COMBINED_LOG)


class LogIterator:
    """The lines of a log file, each with its line end; waits for more until the job has ended.

    Subclasses may override :meth:`_check_finished`, which sets ``_app_finished``.

    Args:
        app_id: the job that writes the file.
        log_file: its path; it need not exist yet.
        scheduler: asked whether the job has ended.
        should_tail: wait for what is still to come; else the end of the file is the end.
        start: offset to begin at, bytes.
        end: offset to stop at, bytes; None: the end of the file.
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
    ) -> None:
        self._app_id = app_id
        self._log_file = log_file
        self._scheduler = scheduler
        self._app_finished = not should_tail
        self._position = start
        self._end = end
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

    def poll(self) -> bytes | None:
        """The next block of :meth:`chunks`, ``b""`` when there is none just now, None at the end. Never waits.

        Followed like this, a thousand replicas need neither a thread nor an open file each.
        """
        if self._news is None:
            self._news = self.chunks(patient=False)
        return next(self._news, None)

    def chunks(self, *, patient: bool = True) -> Iterator[bytes]:
        """The same as blocks of whole lines, as they stand in the file; only the last may lack its line end.

        Args:
            patient: wait for what is still to come; else there is an empty block instead.
        """
        fd = -1
        rest = b""
        pause = _SOONEST_S
        try:
            while True:
                finished = self._app_finished  # before reading: what was written by then is read below
                fd = self._open() if fd < 0 else fd
                moved = False
                while block := self._read(fd):
                    moved = True
                    end = block.rfind(b"\n") + 1
                    if not end:
                        rest += block
                        continue
                    yield b"".join((rest, memoryview(block)[:end])) if rest or end < len(block) else block
                    rest = block[end:]
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
            if rest:
                yield rest
        finally:
            if fd >= 0:
                os.close(fd)

    def _learn_finished(self) -> None:
        """What one of the job's replicas has found out a moment ago is true of the others, too."""
        global _known
        job, now = (id(self._scheduler), self._app_id), time.monotonic()
        if _known[0] == job and now - _known[1] < _SOONEST_S:
            self._app_finished = self._app_finished or _known[2]
        else:
            self._check_finished()
            _known = (job, now, self._app_finished)

    def _open(self) -> int:
        try:
            return os.open(self._log_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1

    def _read(self, fd: int) -> bytes:
        if fd < 0:
            return b""
        size = _BLOCK if self._end is None else min(_BLOCK, self._end - self._position)
        block = os.pread(fd, size, self._position) if size > 0 else b""
        self._position += len(block)
        return block

    def _sleep(self, pause: float) -> None:
        wait = getattr(self._scheduler, "wait_for_end", None)
        if wait is None:
            time.sleep(pause)
        else:
            wait(self._app_id, pause)  # returns at once when the job ends


def open_log(scheduler: Scheduler[Any], app_id: str, folder: str, query: LogQuery) -> LogIterator:
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
    return LogIterator(app_id, os.path.join(folder, name), scheduler, follow, start=start, end=end)


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
