"""Polls each scheduler from a single process of this machine; all others read its results from the run registry.

Each process that watches jobs has a :class:`Poller` per scheduler. One of them holds a lock and polls, the others stand
by; if it dies, the kernel releases the lock. See ``docs/contributing/decisions/002-no-daemon.md``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from contextlib import suppress

from torchx.errors import TorchXError
from torchx.runner.ground.backends import Backends
from torchx.runner.notices import plans
from torchx.runner.watching import listing
from torchx.runs import Run, RunRegistry
from torchx.runs.records import RunQuery
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.abilities import PushesChanges
from torchx.settings import make_private, torchx_home
from torchx.specs.api import AppState
from torchx.supervisor.layout import private
from torchx.supervisor.proctree import is_stopped
from torchx.util.records import dataclass

LEAST_S = 2.0
"""Minimum time between two queries to a remote scheduler."""

LEAST_NEAR_S = 0.2
MAX_S = 60.0

_STANDBY_S = 1.0
_LOOK_S = 5.0  # between two checks of a process that stands by whether the holder is late
_UNWANTED_S = 30.0
_ONCE_MORE_S = 1.0
_HEARING_S = 30.0  # between two queries for all jobs, if the scheduler reports changes
_CLOSE_S = 0.5
_JOBS_A_SECOND = 500
_ANSWER_TIMES = 10  # at most a tenth of the time is spent on queries
_LATE_S = 90.0  # a holder whose query takes longer than this hangs
_MAX_STAND_INS = 4
_UNKNOWN_EVERY_S = 600.0
_ASK_S = 3600.0  # longer than any timeout of the backend itself


@dataclass(frozen=True)
class Heartbeat:
    """The result of a poller's last query, for processes that stand by or read. Times are monotonic, in seconds.

    Attributes:
        pid: the polling process.
        due: when the next query is due.
        error: why the scheduler could not be queried; empty if it could.
        unknown: app ids of jobs that it no longer knows.
        idle: there were no jobs to query; new jobs are queried at once, not only when due.
        every: seconds between two queries.
    """

    pid: int
    due: float
    error: str = ""
    unknown: tuple[str, ...] = ()
    idle: bool = False
    every: float = 0.0

    def is_late(self) -> bool:
        """Whether the poller is overdue because it was stopped, hangs or died."""
        now = time.monotonic()
        # A due time far in the future is from before the last boot.
        return now > self.due + _LATE_S or self.due - now > 2 * MAX_S or (now > self.due and is_stopped(self.pid))


def interval_s(jobs: int, took_s: float, *, near: bool, before_s: float = MAX_S) -> float:
    """Seconds between two queries, from the number of jobs and the duration of the last query.

    Args:
        before_s: the previous interval, which a slow answer doubles at most: a single one does not make a slow site.

    >>> interval_s(10, 0.05, near=False), interval_s(10_000, 0.5, near=False), interval_s(10, 8.0, near=False)
    (2.0, 20.0, 60.0)
    >>> interval_s(10, 8.0, near=False, before_s=2.0), interval_s(10_000, 4.0, near=False, before_s=0.0)
    (4.0, 20.0)
    """
    slow = min(_ANSWER_TIMES * took_s, 2 * before_s)
    return min(max(LEAST_NEAR_S if near else LEAST_S, jobs / _JOBS_A_SECOND, slow), MAX_S)


class Poller:
    """Polls one scheduler for all unfinished runs on record, while no other process does.

    Its thread uses and closes ``backends``, which no other thread may use.
    """

    def __init__(self, scheduler: str, registry: RunRegistry, backends: Backends) -> None:
        self._scheduler = scheduler
        self._registry = registry
        self._backends = backends
        self._files = _Files(scheduler)
        self._answers: dict[str, DescribeAppResponse] = {}
        self._wanted = time.monotonic()
        self._ear: PushesChanges | None = None  # reports which of the polled jobs have changed
        self._polled: dict[str, Run] = {}
        self._missed = False  # a change may have been missed: all jobs are queried,
        self._full_query_from = 0.0  # but not before this time
        self._once_more: dict[str, float] = {}
        self._seq = 0
        self._closed = threading.Event()
        self._unknown: dict[str, float] = {}  # jobs that the scheduler does not know, and when to query them again
        self._thread = threading.Thread(target=self._work, name=f"torchx poller of {scheduler}", daemon=True)
        self._thread.start()

    def read_heartbeat(self) -> Heartbeat | None:
        """Return the last beat of the process that polls; None if there is none, or it is late."""
        beat = self._files.read_heartbeat()
        return None if beat is None or beat.is_late() else beat

    def request_poll(self) -> None:
        """Keep this poller alive: without a call for a while it ends, and another process takes over."""
        self._wanted = time.monotonic()

    def is_over(self) -> bool:
        """Whether this poller has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Asks the thread to end, so that another process can take over."""
        self._closed.set()

    def close(self) -> None:
        """End the thread, but does not wait for a query that takes long."""
        self.stop()
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        try:
            while not self._closed.is_set() and time.monotonic() < self._wanted + _UNWANTED_S:
                self._closed.wait(self._turn())
        finally:
            self._files.release()
            self._backends.close()

    def _turn(self) -> float:
        """Query the scheduler if this process is the poller and a query is due; return the seconds to sleep."""
        if not self._files.is_ours():
            return _STANDBY_S
        beat = self._files.read_heartbeat()
        now = time.monotonic()
        if beat is not None and not beat.idle and not beat.is_late() and now < beat.due:
            if not self._missed:
                return self._listen(min(beat.due - now, _STANDBY_S))
            if now < self._full_query_from:
                return min(self._full_query_from - now, _STANDBY_S)
        self._missed = False
        self._seq = self._registry.last_change()
        runs = self._registry.list(RunQuery(scheduler=self._scheduler), unfinished=True)
        runs = [run for run in runs if self._unknown.get(run.app_id, 0.0) <= now]
        if not runs:
            plans.send_due(self._scheduler, self._registry)
            if beat is None or not beat.idle or now > beat.due:
                self._files.write(Heartbeat(os.getpid(), now + MAX_S, idle=True))
            return _STANDBY_S
        near = listing.refresh(self._registry, runs, self._backends.get, _ASK_S, self._answers)
        took = time.monotonic() - now
        plans.send_due(self._scheduler, self._registry)
        pause = interval_s(len(runs), took, near=near, before_s=0.0 if beat is None else beat.every)
        self._polled = {run.app_id: run for run in runs if not run.is_terminal()}
        self._full_query_from = _next(now, pause)
        if self._hears_all():
            pause = max(pause, _HEARING_S)
        beat = self._beat_of(runs, _next(now, pause), pause)
        self._files.write(beat)
        return min(beat.due - time.monotonic(), _STANDBY_S)

    def _hears_all(self) -> bool:
        """Whether the scheduler reports every change of the polled jobs; they must be of one session."""
        sessions = {run.session for run in self._polled.values()}
        self._ear = None
        with suppress(TorchXError):  # it is not installed: the beat reports that
            if len(sessions) == 1 and isinstance(
                found := self._backends.get(self._scheduler, *sessions), PushesChanges
            ):
                self._ear = found
        return self._ear is not None and self._ear.hears_all

    def _listen(self, most_s: float) -> float:
        """Query the jobs that the scheduler reports as changed; return the seconds to sleep."""
        if self._ear is None:
            return most_s
        seq, began = self._registry.last_change(), time.monotonic()
        if seq != self._seq:
            self._seq = seq
            unfinished = self._registry.list(RunQuery(scheduler=self._scheduler), unfinished=True)
            self._missed = any(run.app_id not in self._polled and run.app_id not in self._unknown for run in unfinished)
        if self._missed:
            return 0.0
        due = min(self._once_more.values(), default=began + most_s)
        changed = self._ear.changed([*self._polled], max(min(due - began, most_s), 0.0))
        if changed is None:
            self._missed = self._ear.hears_all
            return max(most_s - (time.monotonic() - began), 0.0)
        now = time.monotonic()
        again = {app_id for app_id, at in self._once_more.items() if at <= now}
        runs = [self._polled[app_id] for app_id in changed | again if app_id in self._polled]
        if not runs:
            return 0.0
        listing.refresh(self._registry, runs, self._backends.get, _ASK_S, self._answers)
        plans.send_due(self._scheduler, self._registry)
        for run in runs:
            self._once_more.pop(run.app_id, None)
            if run.is_terminal():
                del self._polled[run.app_id]
            elif run.app_id in changed:  # the scheduler may report a change before a query returns it
                self._once_more[run.app_id] = now + _ONCE_MORE_S
        return interval_s(len(runs), time.monotonic() - now, near=True)

    def _beat_of(self, runs: list[Run], due: float, every: float) -> Heartbeat:
        unknown = [run.app_id for run in runs if run.note and run.state is AppState.UNKNOWN]
        self._unknown.update(dict.fromkeys(unknown, time.monotonic() + _UNKNOWN_EVERY_S))
        errors = [run.note for run in runs if run.note and run.state is not AppState.UNKNOWN]
        return Heartbeat(os.getpid(), due, errors[0] if errors else "", tuple(unknown), every=every)


def _next(asked: float, every: float) -> float:
    """When the next query is due, counted from the start of the last one, but at least half an interval from now."""
    return max(asked + every, time.monotonic() + every / 2)


class _Files:
    """The locks of a scheduler's pollers on this machine, and their beat.

    The holder of the first lock polls. If it is late, the holder of the second lock stands in for it, and so on.
    """

    def __init__(self, scheduler: str) -> None:
        name = re.sub(r"[^\w.-]", "_", scheduler)
        self._path = torchx_home("pollers", f"{name}@{os.uname().nodename}")
        self._lock_fd: int | None = None
        self._rank = 0
        self._checked_at = 0.0
        self._written: Heartbeat | None = None
        self._read: tuple[int, int, Heartbeat | None] = (0, 0, None)  # inode and time of the file, and its beat

    def is_ours(self) -> bool:
        """Whether this process is the one that polls now; takes a lock if one is free."""
        if self._lock_fd is not None:
            if self._rank == 0 or not self._is_another_polling():
                return True
            self.release()
        for rank in range(_MAX_STAND_INS):
            if self._lock(rank):
                return True
            if time.monotonic() - self._checked_at < _LOOK_S:  # a holder that dies releases its lock; few are late
                return False
            if self._is_another_polling():
                self._checked_at = time.monotonic()
                return False
        return False

    def read_heartbeat(self) -> Heartbeat | None:
        """Return the last beat; None if there is none, or it cannot be read.

        A file is parsed again only if it has changed.
        """
        try:
            found = os.stat(f"{self._path}.json")
        except OSError:
            return None
        if self._read[:2] != (found.st_ino, found.st_mtime_ns):
            self._read = found.st_ino, found.st_mtime_ns, self._parse()
        return self._read[2]

    def _parse(self) -> Heartbeat | None:
        try:
            with open(f"{self._path}.json", encoding="utf-8") as file:
                read = json.load(file)
            unknown = tuple(map(str, read["unknown"]))
            idle, every = bool(read.get("idle")), float(read.get("every", 0.0))  # an older torchx has none
            return Heartbeat(int(read["pid"]), float(read["due"]), str(read["error"]), unknown, idle, every)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, beat: Heartbeat) -> None:
        """Publish a beat. In a home that cannot be written there is none, and all processes poll for themselves."""
        draft = f"{self._path}.{beat.pid}.new"
        self._written = beat
        try:
            with open(draft, "w", encoding="utf-8", opener=private) as file:
                json.dump(beat.__dict__, file)
            os.replace(draft, f"{self._path}.json")
        except OSError:
            pass

    def release(self) -> None:
        """Releases the lock, if this process holds one."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = self._written = None

    def _is_another_polling(self) -> bool:
        beat = self.read_heartbeat()
        # No beat yet: the holder's first query is in progress.
        return beat is None or (beat != self._written and not beat.is_late())

    def _lock(self, rank: int) -> bool:
        file = -1
        try:
            make_private(os.path.dirname(self._path))
            file = os.open(f"{self._path}.lock{rank or ''}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process holds it, or the home cannot be written
            if file >= 0:
                os.close(file)
            return False
        self._lock_fd, self._rank = file, rank
        return True
