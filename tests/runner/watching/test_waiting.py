"""Waiting: polls, pauses and timeouts at exactly the right time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler
from torchx.errors import BackendError, TorchXError, TransientError
from torchx.runner.ground import backends
from torchx.runner.ground.backends import answers_within, is_near
from torchx.runner.watching.wait import Waiter, WaitTimeoutError
from torchx.specs import AppState, AppStatus
from torchx.testing import FakeClock


def _scheduler(wait_hint: float = 1.0) -> Any:
    scheduler = MemoryScheduler("s")
    scheduler.wait_hint = wait_hint
    return scheduler


class Job:
    """Ends at a given time; before that it has the given states, and repeats the last one."""

    def __init__(
        self, clock: FakeClock, *states: AppState, ends: float = 1e9, error: TorchXError | None = None
    ) -> None:
        self.clock, self.states, self.ends, self.error = (
            clock,
            list(states) or [AppState.RUNNING],
            clock.now + ends,
            error,
        )
        self.asked: list[float] = []
        self.began = clock.now

    def __call__(self) -> AppStatus:
        self.asked.append(round(self.clock.now - self.began, 6))
        if self.clock.now >= self.ends:
            return AppStatus(AppState.SUCCEEDED)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return AppStatus(state, error=self.error) if self.error else AppStatus(state)


def _until_over(
    ask: Any, scheduler: Any, *, interval_s: float = 10, timeout_s: float | None = None, waiter: Waiter | None = None
) -> Any:
    waiter = waiter or Waiter()
    return waiter.until_over(ask, scheduler, "a-1", interval_s=interval_s, timeout_s=timeout_s, what="x://s/a-1")


@pytest.mark.parametrize(
    ("hint", "interval", "pauses"),
    [
        (0.05, 10, [0.001, 0.0015, 0.00225]),
        (0.19, 0.0012, [0.001, 0.0012, 0.0012]),
        (0.05, 0.0004, [0.0004, 0.0004, 0.0004]),
        (0.2, 10, [0.2, 0.3, 0.45]),
        (1.0, 1.2, [1.0, 1.2, 1.2]),
        (5.0, 2.0, [2.0, 2.0, 2.0]),
    ],
    ids=["near", "near, short interval", "near, shorter", "as soon as it is far", "far", "hint beyond the interval"],
)
def test_pauses(clock, hint, interval, pauses) -> None:
    """The first is short for a local scheduler, else the scheduler's hint; each is half as long again, up to the interval."""
    _until_over(Job(clock, ends=interval * 2.9 if hint >= 1 else sum(pauses)), _scheduler(hint), interval_s=interval)
    assert clock.slept[:3] == pytest.approx(pauses)


def test_the_longest_pause_on_this_machine(clock) -> None:
    """A tenth of a second, however long the interval."""
    _until_over(Job(clock, ends=3.0), _scheduler(0.05), interval_s=60)
    assert max(clock.slept) == pytest.approx(0.1)
    assert clock.slept.count(0.1) > 20


def test_the_time_to_wait_is_to_the_moment(clock) -> None:
    """The last pause is the remaining time; then the job is polled once more."""
    job = Job(clock, ends=4.0)
    assert _until_over(job, _scheduler(), interval_s=3, timeout_s=4.0).state is AppState.SUCCEEDED
    assert job.asked == [0, 1.0, 2.5, 4.0]
    with pytest.raises(WaitTimeoutError, match=r"is RUNNING after 3\.5 s of waiting"):
        _until_over(Job(clock), _scheduler(), timeout_s=3.5)


def test_no_pause_at_all(clock) -> None:
    """An interval of 0 polls as fast as the scheduler answers."""
    answers = iter([AppStatus(AppState.RUNNING), AppStatus(AppState.RUNNING), AppStatus(AppState.SUCCEEDED)])
    assert _until_over(lambda: next(answers), _scheduler(), interval_s=0).state is AppState.SUCCEEDED
    assert clock.slept == [0, 0]


@pytest.mark.parametrize("status", [None, AppStatus(AppState.FAILED)])
def test_what_is_over_is_not_waited_for(clock, status) -> None:
    """An unknown job is not, either."""
    assert _until_over(lambda: status, _scheduler(), timeout_s=0) is status
    assert clock.slept == []


def test_two_minutes_unsubmitted(clock) -> None:
    """An error after exactly this time, unless the job had another state before."""
    job = Job(clock, AppState.UNSUBMITTED, ends=120.0)
    assert _until_over(job, _scheduler(120.0), interval_s=120.0).state is AppState.SUCCEEDED
    unsubmitted = Job(clock, AppState.UNSUBMITTED)
    with pytest.raises(BackendError, match="is still UNSUBMITTED 121 s after its scheduler accepted it"):
        _until_over(unsubmitted, _scheduler(60.5), interval_s=60.5)
    assert unsubmitted.asked == [0, 60.5, 121.0]
    at_the_limit = Job(clock, AppState.UNSUBMITTED, ends=121.0)
    assert _until_over(at_the_limit, _scheduler(120.0), interval_s=120.0)
    assert at_the_limit.asked == [0, 120.0, 240.0]
    other = Job(clock, AppState.PENDING, AppState.UNSUBMITTED, ends=500.0)
    assert _until_over(other, _scheduler(), interval_s=60).state is AppState.SUCCEEDED


class _SetBack(FakeClock):
    """Somebody sets the clock of the wall back by an hour with each look at it."""

    def time(self) -> float:
        self.stepped = getattr(self, "stepped", 0.0) - 3600.0
        return self.now + self.stepped


def test_short_waits_for_a_job_that_nobody_submits(monkeypatch) -> None:
    """The two minutes are counted over all of them, by the monotonic clock; a wait after the error counts anew."""
    from torchx.runner.watching import wait

    clock, waiter = _SetBack(), Waiter()
    monkeypatch.setattr(wait, "time", clock)
    for _ in range(2):
        began = clock.now
        with pytest.raises(BackendError, match=r"is still UNSUBMITTED 1[23]"):
            while True:
                with pytest.raises(WaitTimeoutError):
                    _until_over(Job(clock, AppState.UNSUBMITTED), _scheduler(), timeout_s=15, waiter=waiter)
        assert 120 < clock.now - began <= 135
    for state in (AppState.PENDING, *[AppState.UNSUBMITTED] * 10):  # it had another state before
        with pytest.raises(WaitTimeoutError):
            _until_over(Job(clock, state), _scheduler(), timeout_s=15, waiter=waiter)


# -- an outage -----------------------------------------------------------------------------------


def _away() -> TransientError:
    return TransientError("reset")


def test_pauses_in_an_outage(clock, caplog) -> None:
    """One second, doubled each time up to 15 s; a single warning."""
    job = Job(clock, error=_away(), ends=100.0)
    _until_over(job, _scheduler(0.05), interval_s=60)
    assert clock.slept == [1, 2, 4, 8, *[15] * 6]
    assert len(caplog.messages) == 1 and "for 10 minutes" in caplog.messages[0]


def test_ten_minutes_of_outage(clock) -> None:
    """15 s and 39 pauses of 15 s are 600 s; the next poll raises the error."""
    job = Job(clock, error=_away())
    with pytest.raises(TransientError):
        _until_over(job, _scheduler(), interval_s=60)
    assert job.asked[-2:] == [600.0, 615.0]


def test_the_last_pause_of_an_outage_is_what_is_left(clock) -> None:
    """A wait of five seconds ends after five seconds."""
    with pytest.raises(WaitTimeoutError):
        _until_over(Job(clock, error=_away()), _scheduler(), timeout_s=5.0)
    assert clock.slept == [1, 2, 2]


def test_after_an_outage_the_next_one_is_another(clock, caplog) -> None:
    """It has a warning of its own, and pauses start at one second; another wait in the same outage continues it."""
    waiter = Waiter()
    job = Job(clock, error=_away())
    with pytest.raises(WaitTimeoutError):
        _until_over(job, _scheduler(), timeout_s=3.0, waiter=waiter)
    clock.slept.clear()
    with pytest.raises(WaitTimeoutError):
        _until_over(job, _scheduler(), timeout_s=4.0, waiter=waiter)
    assert (clock.slept, len(caplog.messages)) == ([4.0], 1)
    job.error = None
    with pytest.raises(WaitTimeoutError):
        _until_over(job, _scheduler(), timeout_s=0, waiter=waiter)
    job.error = _away()
    clock.slept.clear()
    with pytest.raises(WaitTimeoutError):
        _until_over(job, _scheduler(), timeout_s=1.0, waiter=waiter)
    assert (clock.slept, len(caplog.messages)) == ([1], 2)


def test_what_does_not_pass_is_raised_at_once(clock) -> None:
    """A permanent error is raised, unless the job has ended."""
    with pytest.raises(BackendError, match="no such host"):
        _until_over(Job(clock, error=BackendError("no such host")), _scheduler())
    assert clock.slept == []
    ended = AppStatus(AppState.FAILED, error=BackendError("x"))
    assert _until_over(lambda: ended, _scheduler()) is ended


# -- a job that is gone --------------------------------------------------------------------------


class Vanishing(Job):
    """Runs, then its cluster does not list it; from ``back`` on it does again."""

    back = 1e9

    def __call__(self) -> AppStatus:
        status = super().__call__()
        if self.asked[-1] < 3.0 or self.asked[-1] >= self.back:
            return status
        return AppStatus(AppState.UNKNOWN, msg="last seen RUNNING", gone=True)


def test_a_job_that_is_gone_is_over(clock) -> None:
    """A cluster must report it as unknown for 15 s, a local scheduler once."""
    job = Vanishing(clock)
    assert _until_over(job, _scheduler(3.0), interval_s=20.0).gone
    assert job.asked == [0, 3.0, 8.0, 13.0, 18.0]
    near = Vanishing(clock)
    assert _until_over(near, _scheduler(0.05), interval_s=10).gone
    assert near.asked[-1] < 3.1


def test_a_job_that_is_there_again_is_waited_for(clock) -> None:
    """A restarting cluster may not list all jobs at once; each disappearance is timed separately."""
    job = Vanishing(clock, ends=30.0)
    job.back = 13.0
    assert _until_over(job, _scheduler(3.0), interval_s=3.0).state is AppState.SUCCEEDED
    waiter = Waiter()
    gone = AppStatus(AppState.UNKNOWN, gone=True)
    for _ in range(2):
        with pytest.raises(WaitTimeoutError):
            _until_over(lambda: gone, _scheduler(), timeout_s=10.0, waiter=waiter)
        with pytest.raises(WaitTimeoutError):
            _until_over(Job(clock), _scheduler(), timeout_s=0, waiter=waiter)


def test_who_waits_in_pieces_is_told_as_soon(clock) -> None:
    """Several short waits share the time of one disappearance: the command line waits a second at a time."""
    waiter, gone = Waiter(), AppStatus(AppState.UNKNOWN, gone=True)
    for _ in range(14):
        with pytest.raises(WaitTimeoutError):
            _until_over(lambda: gone, _scheduler(), timeout_s=1.0, waiter=waiter)
    assert _until_over(lambda: gone, _scheduler(), timeout_s=1.0, waiter=waiter) is gone
    assert clock.slept == [1.0] * 15


class _Taken(dict[str, float]):
    """Another thread removes each entry as soon as this one has read it."""

    def setdefault(self, key: str, default: float = 0.0) -> float:
        super().setdefault(key, default)
        return self.pop(key)


def test_two_threads_wait_for_a_job(clock) -> None:
    """Both are told that it is gone, or was never submitted."""
    waiter = Waiter()
    waiter._gone, waiter._unsubmitted = _Taken({"x://s/a-1": clock.now - 15}), _Taken({"x://s/a-1": clock.now - 121})
    gone = AppStatus(AppState.UNKNOWN, gone=True)
    assert _until_over(lambda: gone, _scheduler(), waiter=waiter) is gone
    with pytest.raises(BackendError, match="is still UNSUBMITTED 121 s"):
        _until_over(Job(clock, AppState.UNSUBMITTED), _scheduler(), waiter=waiter)


# -- schedulers that are told --------------------------------------------------------------------


class Told(MemoryScheduler):
    def __init__(self, clock: FakeClock, nap_s: float, wait_hint: float = 0.05) -> None:
        super().__init__("s")
        self.clock, self.nap_s, self.wait_hint = clock, nap_s, wait_hint
        self.naps: list[float] = []

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        self.naps.append(timeout_s)
        self.clock.advance(min(self.nap_s, timeout_s))


@pytest.mark.parametrize(
    ("interval", "hint", "timeout", "most"),
    [
        (10, 0.05, None, 10),
        (0.001, 0.05, None, 0.05),
        (1, 30.0, None, 30.0),
        (10, 0.05, 4.0, 4.0),
        (0.01, 0.2, None, 0.2),
    ],
    ids=["interval", "a twentieth at least", "the hint of one that is far", "what is left", "just far"],
)
def test_how_long_a_scheduler_is_slept_on(clock, interval, hint, timeout, most) -> None:
    """As long as the interval, without polls in between."""
    scheduler = Told(clock, 1e6, hint)
    job = Job(clock, ends=most)
    _until_over(job, scheduler, interval_s=interval, timeout_s=timeout)
    assert scheduler.naps == [most]
    assert clock.slept == []


@pytest.mark.parametrize(("nap_s", "slept"), [(0.0005, 0), (0.0004, 1)])
def test_what_returns_at_once_is_no_sleep(clock, nap_s, slept) -> None:
    """If it returns within half a millisecond, there is a pause, so that the loop is not busy."""
    clock.now = 0.0  # where sums of such numbers are exact
    _until_over(Job(clock, ends=0.001), Told(clock, nap_s), interval_s=10)
    assert len(clock.slept) == slept


# -- several at once -----------------------------------------------------------------------------


def test_near_is_what_answers_at_once() -> None:
    """A `wait_hint` below 0.2 s; the default is remote."""
    assert is_near(_scheduler(0.19))
    assert not is_near(_scheduler(0.2))
    assert not is_near(object())  # type: ignore[arg-type]


def test_all_answer_in_time() -> None:
    """Results are in the order of the calls, which run concurrently."""
    barrier = threading.Barrier(3, timeout=60)
    questions = [lambda i=i: (barrier.wait(), i)[1] for i in range(3)]
    assert answers_within(60, questions) == [0, 1, 2]
    assert answers_within(0, []) == []


def test_who_is_too_slow_is_not_waited_for() -> None:
    """None for the slow call, and the results of others; its thread does not keep the program from exiting."""
    go = threading.Event()
    threads: list[threading.Thread] = []

    def slow() -> int:
        threads.append(threading.current_thread())
        go.wait(60)
        return 1

    assert answers_within(0.05, [slow, lambda: 2]) == [None, 2]
    assert threads[0].daemon
    go.set()
    threads[0].join()


def test_the_time_is_for_all_together(monkeypatch) -> None:
    """Each call is waited for only for the remaining time, which is never negative."""
    clock = FakeClock(100.0)
    joined: list[float] = []

    real = threading.Thread.join

    def join(self: threading.Thread, timeout: float) -> None:
        real(self)
        joined.append(timeout)
        clock.advance(4.0)

    monkeypatch.setattr(backends, "time", clock)
    monkeypatch.setattr(threading.Thread, "join", join)
    assert answers_within(10.0, [lambda: 1] * 4) == [1] * 4
    assert joined == [10.0, 6.0, 2.0, 0]


def test_a_log_is_waited_for(monkeypatch) -> None:
    """Pauses of 20 ms, doubled each time up to five seconds; the error of a recorded status is raised."""
    import time

    from torchx.runner.watching.tee import wait_until_started

    clock = FakeClock()
    monkeypatch.setattr(time, "sleep", clock.sleep)

    class Runner:
        statuses: list[Any] = [AppStatus(AppState.PENDING)] * 10

        def status(self, handle: str) -> Any:
            return self.statuses.pop(0)

    runner = Runner()
    runner.statuses = [AppStatus(AppState.PENDING)] * 10 + [AppStatus(AppState.RUNNING)]
    assert wait_until_started(runner, "x").state is AppState.RUNNING
    assert clock.slept == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.0, 5.0])
    for last in (None, AppStatus(AppState.FAILED)):
        runner.statuses = [last]
        assert wait_until_started(runner, "x") is last
    runner.statuses = [AppStatus(AppState.PENDING, error=BackendError("down"))]
    with pytest.raises(BackendError, match="down"):
        wait_until_started(runner, "x")


@pytest.mark.parametrize("failures", [1, 2])
def test_an_error_of_another_package_is_raised_the_second_time(clock, failures, caplog) -> None:
    """One may be a race: a container is removed while it is listed. The query is repeated after half a second."""
    answers = [KeyError("c1")] * failures + [AppStatus(AppState.SUCCEEDED)]

    def ask() -> AppStatus:
        answer = answers.pop(0)
        if isinstance(answer, KeyError):
            raise answer
        return answer

    if failures == 1:
        assert _until_over(ask, _scheduler()).state is AppState.SUCCEEDED
    else:
        with pytest.raises(KeyError, match="c1"):
            _until_over(ask, _scheduler())
    assert clock.slept == [0.5]
    assert "the query of `x://s/a-1` is repeated, it failed: KeyError: 'c1'" in caplog.text


def test_an_error_of_torchx_is_raised_at_once(clock) -> None:
    def ask() -> AppStatus:
        raise BackendError("down")

    with pytest.raises(BackendError, match="down"):
        _until_over(ask, _scheduler())
    assert clock.slept == []
