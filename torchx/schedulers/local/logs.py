"""Reads the logs of local replicas, with the times in ``times.idx``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.follow import Cursor, Follower
from torchx.schedulers.kit.logs import LogQuery, not_started_again
from torchx.specs.api import is_terminal
from torchx.supervisor.layout import COMBINED_LOG, STARTS_INDEX, STDERR_LOG, STDOUT_LOG, TIMES_INDEX

_SOONEST_S = 0.005
_LATEST_S = 0.1
_SAME_S = 0.05  # for this long, the replicas of a job share the answer whether it has ended
_FILES = (STDOUT_LOG, STDERR_LOG, COMBINED_LOG)


class JobEnd:
    """Whether a job has ended, shared by the readers of its logs."""

    def __init__(self) -> None:
        self.asked = float("-inf")
        self.ended = False


class LogIterator(Follower):
    """The lines of a log file, each with its line end. Waits for more until the job has ended.

    Subclasses may override :meth:`_check_finished`, which sets ``_app_finished``.

    Args:
        app_id: the job that writes the file.
        log_file: its path; it need not exist yet.
        scheduler: used to find out whether the job has ended.
        should_tail: wait for more lines at the end of the file.
        query: selects the lines; its stream is ignored.
        job_end: shared with the other readers of the job's logs.
    """

    def __init__(
        self,
        app_id: str,
        log_file: str,
        scheduler: Scheduler[Any],
        should_tail: bool = True,
        *,
        query: LogQuery | None = None,
        job_end: JobEnd | None = None,
    ) -> None:
        super().__init__(query or LogQuery(follow=should_tail))
        self._app_id = app_id
        self._log_file = log_file
        self._scheduler = scheduler
        self._app_finished = not should_tail
        self._job_end = job_end or JobEnd()
        self._pause = _SOONEST_S
        self._fd = -1

    def __iter__(self) -> Iterator[str]:
        own = self.__dict__.copy()
        if "_query" not in own:  # a program's subclass that does not call our __init__, and whose file appears later
            LogIterator.__init__(self, self._app_id, self._log_file, self._scheduler, not self._app_finished)
            self.__dict__.update(own)
            self._check_finished()
            while not (self._app_finished or os.path.isfile(self._log_file)):
                time.sleep(_LATEST_S)
                self._check_finished()
        return super().__iter__()

    def _check_finished(self) -> None:
        """Find out whether the job has ended; sets ``_app_finished``."""
        described = self._scheduler.describe(self._app_id)
        if described is None or is_terminal(described.state):
            self._app_finished = True

    def _files(self) -> list[Cursor]:
        return [self._within_times(self._attempt(Cursor(self._log_file)))]

    def _attempt(self, cursor: Cursor) -> Cursor:
        """Restricts a cursor to the attempt before the last restart, if the query asks for it."""
        if self._query.previous:
            starts = self._records(STARTS_INDEX)
            if not starts:
                raise not_started_again()
            begin, end = ([0] + [length for _, length in starts])[-2:]
            cursor.begin_at(begin)
            cursor.end = end
        return cursor

    def _notes(self, cursor: Cursor) -> list[tuple[float, int]]:  # noqa: ARG002  # there is one file
        """Return the times at which the supervisor saw the lines: a fraction of a second late,
        up to a second in long jobs.
        """
        return self._records(TIMES_INDEX)

    def _records(self, index: str) -> list[tuple[float, int]]:
        """Return the times in an index, with the size of this log file at each."""
        from torchx.supervisor.follow import RECORD

        folder, name = os.path.split(self._log_file)
        column = 1 + _FILES.index(name)
        try:
            with open(os.path.join(folder, index), "rb") as f:
                data = f.read()
        except FileNotFoundError:
            return []
        return [(r[0], r[column]) for r in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])]

    def _size(self, cursor: Cursor) -> int:
        try:
            return os.stat(cursor.path).st_size
        except FileNotFoundError:
            return 0

    def _read_at(self, cursor: Cursor, offset: int, size: int) -> bytes:
        try:
            if self._fd < 0:
                self._fd = os.open(cursor.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        return os.pread(self._fd, size, offset)

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _ended(self, *, patient: bool) -> bool:
        shared, now = self._job_end, time.monotonic()
        if not self._app_finished and not patient and now - shared.asked < _SAME_S:
            self._app_finished = shared.ended
        elif not self._app_finished:
            self._check_finished()
            shared.asked, shared.ended = now, self._app_finished
        return self._app_finished

    def _news(self, *, patient: bool, over: bool, moved: bool) -> None:
        self._pause = _SOONEST_S if moved else min(self._pause * 1.5, _LATEST_S)
        if patient and not (over or moved):
            self._scheduler.wait_for_end(self._app_id, self._pause)  # returns at once when the job ends


def open_log(scheduler: Scheduler[Any], app_id: str, folder: str, query: LogQuery, job_end: JobEnd) -> LogIterator:
    """Return the lines of one replica that the query selects."""
    path = os.path.join(folder, f"{query.stream.value}.log" if query.stream else COMBINED_LOG)
    return LogIterator(app_id, path, scheduler, query.follow, query=query, job_end=job_end)
