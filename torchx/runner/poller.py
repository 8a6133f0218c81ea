"""One process of a machine asks each scheduler how its jobs are; all others read in the record what it saw.

Whoever watches has a :class:`Poller` for each scheduler. One of them holds a lock and asks, the others stand by; when
it dies the kernel gives the lock back. See "Who watches" in ``docs/contributing/design.md``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time

from torchx.runner import listing, notices
from torchx.runner.backends import Backends
from torchx.runs import Run, RunRegistry
from torchx.runs.records import RunQuery
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.abilities import HearsChanges
from torchx.settings import make_private, torchx_home
from torchx.specs.api import AppState
from torchx.supervisor.proctree import is_stopped
from torchx.util.records import dataclass

LEAST_S = 2.0
"""Least time between two questions to a scheduler that is far."""

LEAST_NEAR_S = 0.2
MOST_S = 60.0

_STANDBY_S = 1.0
_LOOK_S = 5.0  # between two looks of one who stands by whether the holder is late
_UNWANTED_S = 30.0
_ONCE_MORE_S = 1.0
_HEARING_S = 30.0  # between two looks at all jobs, where changes are heard of
_CLOSE_S = 0.5
_JOBS_A_SECOND = 500
_ANSWER_TIMES = 10  # of the time at most one part in ten is spent asking
_LATE_S = 90.0  # a holder whose question takes longer than this hangs
_MOST_STAND_INS = 4
_UNKNOWN_EVERY_S = 600.0
_ASK_S = 3600.0  # the backend's own patience decides, not ours


@dataclass(frozen=True)
class Beat:
    """What a poller says of its last question, for those who stand by or read. Times are the machine's monotonic ones.

    Attributes:
        pid: who asked.
        due: when the next question is due.
        error: why the scheduler could not be asked; empty when it could.
        unknown: app ids of jobs that it no longer knows.
        idle: there was nothing to ask about; when there is, nobody waits until it is due.
        every: seconds between two questions.
    """

    pid: int
    due: float
    error: str = ""
    unknown: tuple[str, ...] = ()
    idle: bool = False
    every: float = 0.0

    def is_late(self) -> bool:
        """Whether whoever asked last does not do so any more: it was stopped, or hangs, or is gone."""
        now = time.monotonic()
        # A time far ahead is of before the machine was started.
        return now > self.due + _LATE_S or self.due - now > 2 * MOST_S or (now > self.due and is_stopped(self.pid))


def interval_s(jobs: int, took_s: float, *, near: bool, before_s: float = MOST_S) -> float:
    """Seconds between two questions about so many jobs, to a scheduler that took so long to answer the last one.

    Args:
        before_s: the interval before; one slow answer is not yet a slow site: for its sake this is at most doubled.

    >>> interval_s(10, 0.05, near=False), interval_s(10_000, 0.5, near=False), interval_s(10, 8.0, near=False)
    (2.0, 20.0, 60.0)
    >>> interval_s(10, 8.0, near=False, before_s=2.0), interval_s(10_000, 4.0, near=False, before_s=0.0)
    (4.0, 20.0)
    """
    slow = min(_ANSWER_TIMES * took_s, 2 * before_s)
    return min(max(LEAST_NEAR_S if near else LEAST_S, jobs / _JOBS_A_SECOND, slow), MOST_S)


class Poller:
    """Asks one scheduler about all runs on record that have not ended, while no other process does.

    Args:
        scheduler: its name.
        backends: the schedulers, of nobody else: they are used by a thread, and closed by it.
    """

    def __init__(self, scheduler: str, registry: RunRegistry, backends: Backends) -> None:
        self._scheduler = scheduler
        self._registry = registry
        self._backends = backends
        self._files = _Files(scheduler)
        self._kept: dict[str, DescribeAppResponse] = {}
        self._wanted = time.monotonic()
        self._ear: HearsChanges | None = None  # what says which of the jobs that were asked for have changed
        self._asked: dict[str, Run] = {}
        self._deaf = False  # something may have been missed
        self._again = 0.0  # then all are asked for from this moment on
        self._once_more: dict[str, float] = {}
        self._seq = 0
        self._closed = threading.Event()
        self._asked_again: dict[str, float] = {}  # jobs that the scheduler does not know, and when to ask again
        self._thread = threading.Thread(target=self._work, name=f"torchx poller of {scheduler}", daemon=True)
        self._thread.start()

    def beat(self) -> Beat | None:
        """The last beat of whoever polls; None when there is none that can be trusted."""
        beat = self._files.beat()
        return None if beat is None or beat.is_late() else beat

    def want(self) -> None:
        """Somebody looks at what is polled. Where nobody has for a while, it ends: another process shall do it."""
        self._wanted = time.monotonic()

    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Lets another process do it, soon."""
        self._closed.set()

    def close(self) -> None:
        """Lets another process do it. A question that takes long to be answered is not waited for."""
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
        """Asks, if that is this process' task now; returns the seconds until the next look."""
        if not self._files.is_ours():
            return _STANDBY_S
        beat = self._files.beat()
        now = time.monotonic()
        if beat is not None and not beat.idle and not beat.is_late() and now < beat.due:
            if not self._deaf:
                return self._listen(min(beat.due - now, _STANDBY_S))
            if now < self._again:
                return min(self._again - now, _STANDBY_S)
        self._deaf = False
        self._seq = self._registry.last_change()
        runs = self._registry.list(RunQuery(scheduler=self._scheduler), unfinished=True)
        runs = [run for run in runs if self._asked_again.get(run.app_id, 0.0) <= now]
        if not runs:
            notices.send_due(self._scheduler, self._registry)
            if beat is None or not beat.idle or now > beat.due:
                self._files.write(Beat(os.getpid(), now + MOST_S, idle=True))
            return _STANDBY_S
        near = listing.refresh(self._registry, runs, self._backends.get, _ASK_S, self._kept)
        took = time.monotonic() - now
        notices.send_due(self._scheduler, self._registry)
        pause = interval_s(len(runs), took, near=near, before_s=0.0 if beat is None else beat.every)
        self._asked = {run.app_id: run for run in runs if not run.is_terminal()}
        self._again = _next(now, pause)
        if self._hears_all():
            pause = max(pause, _HEARING_S)
        beat = self._beat_of(runs, _next(now, pause), pause)
        self._files.write(beat)
        return min(beat.due - time.monotonic(), _STANDBY_S)

    def _hears_all(self) -> bool:
        """Whether all jobs that go on are of one scheduler that hears of every change."""
        sessions = {run.session for run in self._asked.values()}
        self._ear = None
        if len(sessions) == 1 and isinstance(found := self._backends.get(self._scheduler, *sessions), HearsChanges):
            self._ear = found
        return self._ear is not None and self._ear.hears_all

    def _listen(self, most_s: float) -> float:
        """Asks for the jobs that are heard to have changed; returns the seconds until the next look."""
        if self._ear is None:
            return most_s
        seq, began = self._registry.last_change(), time.monotonic()
        if seq != self._seq:
            self._seq = seq
            fresh = self._registry.list(RunQuery(scheduler=self._scheduler), unfinished=True)
            self._deaf = any(run.app_id not in self._asked and run.app_id not in self._asked_again for run in fresh)
        if self._deaf:
            return 0.0
        due = min(self._once_more.values(), default=began + most_s)
        changed = self._ear.changed([*self._asked], max(min(due - began, most_s), 0.0))
        if changed is None:
            self._deaf = self._ear.hears_all
            return max(most_s - (time.monotonic() - began), 0.0)
        now = time.monotonic()
        again = {app_id for app_id, at in self._once_more.items() if at <= now}
        runs = [self._asked[app_id] for app_id in changed | again if app_id in self._asked]
        if not runs:
            return 0.0
        asked = time.monotonic()
        listing.refresh(self._registry, runs, self._backends.get, _ASK_S, self._kept)
        notices.send_due(self._scheduler, self._registry)
        for run in runs:
            self._once_more.pop(run.app_id, None)
            if run.is_terminal():
                del self._asked[run.app_id]
            elif run.app_id in changed:  # what is reported may not be listed yet
                self._once_more[run.app_id] = now + _ONCE_MORE_S
        return interval_s(len(runs), time.monotonic() - asked, near=True)

    def _beat_of(self, runs: list[Run], due: float, every: float) -> Beat:
        unknown = [run.app_id for run in runs if run.note and run.state is AppState.UNKNOWN]
        self._asked_again.update(dict.fromkeys(unknown, time.monotonic() + _UNKNOWN_EVERY_S))
        errors = [run.note for run in runs if run.note and run.state is not AppState.UNKNOWN]
        return Beat(os.getpid(), due, errors[0] if errors else "", tuple(unknown), every=every)


def _next(asked: float, every: float) -> float:
    """When to ask again: it counts from the question, but half of the time the scheduler is left alone."""
    return max(asked + every, time.monotonic() + every / 2)


class _Files:
    """The locks of a scheduler's pollers on this machine, and their beat.

    The first lock makes its holder the poller. When the holder is late, the second lock makes a stand-in, and so on.
    """

    def __init__(self, scheduler: str) -> None:
        name = re.sub(r"[^\w.-]", "_", scheduler)
        self._path = torchx_home("pollers", f"{name}@{os.uname().nodename}")
        self._held: int | None = None
        self._rank = 0
        self._first = -1  # the file of the first lock, while we stand by
        self._looked = 0.0
        self._said: Beat | None = None
        self._read: tuple[int, int, Beat | None] = (0, 0, None)

    def is_ours(self) -> bool:
        """Whether this process is the one to ask now."""
        if self._held is not None:
            if self._rank == 0 or not self._is_another_at_it():
                return True
            self.release()
        for rank in range(_MOST_STAND_INS):
            if self._lock(rank):
                return True
            if time.monotonic() - self._looked < _LOOK_S:  # whoever dies gives the lock back; late are few
                return False
            if self._is_another_at_it():
                self._looked = time.monotonic()
                return False
        return False

    def beat(self) -> Beat | None:
        """What the last poller said; None when nobody has, or it cannot be read. A file that was read is not again."""
        try:
            found = os.stat(f"{self._path}.json")
        except OSError:
            return None
        if self._read[:2] != (found.st_ino, found.st_mtime_ns):
            self._read = (found.st_ino, found.st_mtime_ns, self._parsed())
        return self._read[2]

    def _parsed(self) -> Beat | None:
        try:
            with open(f"{self._path}.json", encoding="utf-8") as file:
                said = json.load(file)
            unknown = tuple(map(str, said["unknown"]))
            idle, every = bool(said["idle"]), float(said["every"])
            return Beat(int(said["pid"]), float(said["due"]), str(said["error"]), unknown, idle, every)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, beat: Beat) -> None:
        """Says how it went. A home that cannot be written has no beat, and its readers ask for themselves."""
        draft = f"{self._path}.{beat.pid}.new"
        self._said = beat
        try:
            with open(draft, "w", encoding="utf-8") as file:
                json.dump(beat.__dict__, file)
            os.replace(draft, f"{self._path}.json")
        except OSError:
            pass

    def release(self) -> None:
        """Gives the lock back."""
        self._forget_first()
        if self._held is not None:
            os.close(self._held)
            self._held = self._said = None

    def _is_another_at_it(self) -> bool:
        beat = self.beat()
        # Nobody has said anything yet: the holder asks its first question.
        return beat is None or (beat != self._said and not beat.is_late())

    def _lock(self, rank: int) -> bool:
        file = -1
        try:
            file = self._first if rank == 0 and self._is_there() else self._open(rank)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is held; or nothing can be written here, and everybody asks for himself
            if file >= 0 and rank:
                os.close(file)
            return False
        self._held, self._rank = file, rank
        if rank == 0:
            self._first = -1
        return True

    def _open(self, rank: int) -> int:
        make_private(os.path.dirname(self._path))
        file = os.open(f"{self._path}.lock{rank or ''}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if rank == 0:
            self._forget_first()
            self._first = file
        return file

    def _is_there(self) -> bool:
        """Whether the file of the first lock is open, and nobody has removed it."""
        return self._first >= 0 and os.fstat(self._first).st_nlink > 0

    def _forget_first(self) -> None:
        if self._first >= 0:
            os.close(self._first)
            self._first = -1
