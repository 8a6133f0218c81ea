"""A poller step by step, on a clock that only tests advance: when it queries, for what, and what it tells the others."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler
from tests.runs.run_rows import add
from torchx.errors import BackendError
from torchx.runner.ground.backends import Backends
from torchx.runner.watching import poller
from torchx.runner.watching.poller import Heartbeat, Poller, interval_s
from torchx.runs import RunRegistry, default_registry
from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import AppState
from torchx.testing import FakeClock

Make = Callable[[], Poller]


class Cluster(MemoryScheduler):
    """Each query takes a time that a test gives."""

    def __init__(self, clock: FakeClock, jobs: dict[str, DescribeAppResponse]) -> None:
        super().__init__("test", jobs=jobs)
        self.clock = clock
        self.takes_s = 0.0
        self.error = ""
        self.news: deque[set[str] | None] = deque()
        self.listened_s: list[float] = []

    def describe_many(self, app_ids: Any) -> Any:
        self.clock.advance(self.takes_s)
        if self.error:
            raise BackendError(self.error)
        return super().describe_many(app_ids)


class Hears(Cluster):
    """Reports the changes that a test gives."""

    hears_all = True

    def changed(self, app_ids: list[str], most_s: float) -> set[str] | None:
        self.listened_s.append(most_s)
        if self.news:
            return self.news.popleft()
        self.clock.advance(most_s)
        return set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    found = FakeClock(now=1000.0)
    monkeypatch.setattr(poller, "time", found)
    return found


@pytest.fixture
def cluster(clock: FakeClock, jobs: dict[str, DescribeAppResponse], request: pytest.FixtureRequest) -> Cluster:
    return (Hears if "hearing" in request.fixturenames else Cluster)(clock, jobs)


@pytest.fixture
def registry() -> RunRegistry:
    return default_registry()


@pytest.fixture
def make(cluster: Cluster, registry: RunRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes pollers whose threads end at once: the test takes their turns."""
    monkeypatch.setattr(Poller, "_work", lambda self: None)
    made: list[Poller] = []

    def one() -> Poller:
        made.append(Poller("memory", registry, Backends({"memory": lambda session_name, **_: cluster}, {})))
        return made[-1]

    yield one
    for each in made:
        each.close()
        each._files.release()


def launch(registry: RunRegistry, cluster: Cluster, *names: str, state: AppState = AppState.RUNNING) -> None:
    for name in names:
        add(registry, name, scheduler="memory")
        cluster.jobs[name] = DescribeAppResponse(name, state)


def test_a_query_at_each_interval(make: Make, registry: RunRegistry, cluster: Cluster, clock: FakeClock) -> None:
    """It takes no second one before the next is due, and sleeps at most a second at a time until then."""
    launch(registry, cluster, "a")
    one = make()
    assert one._turn() == 1.0
    assert cluster.asked == [["a"]]
    assert one.read_heartbeat() == Heartbeat(os.getpid(), 1002.0, every=2.0)
    clock.advance(1.5)
    assert one._turn() == 0.5
    assert len(cluster.asked) == 1
    clock.advance(0.5)
    one._turn()
    assert len(cluster.asked) == 2


def test_a_slow_query_is_repeated_seldom(make: Make, registry: RunRegistry, cluster: Cluster, clock: FakeClock) -> None:
    """The first slow answer changes little; each further one doubles the interval, and half of it remains free."""
    launch(registry, cluster, "a")
    one, cluster.takes_s = make(), 3.0
    found = []
    for _ in range(6):
        one._turn()
        beat = one.read_heartbeat()
        assert beat is not None
        found.append((beat.every, beat.due - clock.now))
        clock.now = beat.due
    assert found == [(2.0, 1.0), (4.0, 2.0), (8.0, 5.0), (16.0, 13.0), (30.0, 27.0), (30.0, 27.0)]


def test_nothing_to_poll(make: Make, registry: RunRegistry, cluster: Cluster, clock: FakeClock) -> None:
    """The beat says so, and is renewed before it is late; a new job is queried without waiting for its end."""
    one = make()
    assert one._turn() == 1.0
    assert one.read_heartbeat() == Heartbeat(os.getpid(), 1060.0, idle=True)
    clock.advance(60.0)
    one._turn()
    assert one.read_heartbeat() == Heartbeat(os.getpid(), 1060.0, idle=True)
    clock.advance(0.1)
    one._turn()
    assert one.read_heartbeat() == Heartbeat(os.getpid(), 1120.1, idle=True)
    launch(registry, cluster, "a")
    one._turn()
    assert cluster.asked == [["a"]]


def test_another_process_polls(make: Make, registry: RunRegistry, cluster: Cluster, clock: FakeClock) -> None:
    """It stands by, and takes over once that one has ended."""
    launch(registry, cluster, "a")
    one, other = make(), make()
    one._turn()
    clock.advance(2.0)
    assert other._turn() == 1.0
    assert len(cluster.asked) == 1
    assert other.read_heartbeat() == one.read_heartbeat()
    one._files.release()
    other._turn()
    assert len(cluster.asked) == 2


def test_a_scheduler_that_cannot_be_queried(make: Make, registry: RunRegistry, cluster: Cluster) -> None:
    """The beat has the reason, until a query succeeds; no job is taken for unknown."""
    launch(registry, cluster, "a", "b")
    one, cluster.error = make(), "connection refused"
    one._turn()
    beat = one.read_heartbeat()
    assert beat is not None
    assert ("connection refused" in beat.error, beat.unknown) == (True, ())


def test_a_job_that_its_scheduler_does_not_know(
    make: Make, registry: RunRegistry, cluster: Cluster, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait for it are told; it is queried again after ten minutes, and the others at each interval."""
    monkeypatch.setattr("torchx.runner.watching.answers.FRESH_S", 0.0)
    launch(registry, cluster, "a", "b")
    del cluster.jobs["a"]
    one = make()
    one._turn()
    beat = one.read_heartbeat()
    assert beat is not None
    assert (beat.error, beat.unknown) == ("", ("a",))
    for _ in range(2):
        clock.advance(2.0)
        one._turn()
    assert cluster.asked == [["b", "a"], ["b"], ["b"]]
    clock.advance(596.0)
    one._turn()
    assert cluster.asked[-1] == ["b", "a"]


# -- a scheduler that reports changes --------------------------------------------------------------


@pytest.fixture
def hearing(make: Make, registry: RunRegistry, cluster: Cluster) -> Poller:
    """A poller of two jobs that has queried them once."""
    launch(registry, cluster, "a", "b")
    one = make()
    one._turn()
    del cluster.asked[:]
    return one


def test_who_hears_of_changes_asks_seldom(hearing: Poller, cluster: Cluster, clock: FakeClock) -> None:
    """All jobs are queried every half a minute; meanwhile it listens, for at most a second at a time."""
    beat = hearing.read_heartbeat()
    assert beat is not None
    assert (beat.due, beat.every) == (1030.0, 30.0)
    for _ in range(30):
        hearing._turn()
    assert (cluster.asked, cluster.listened_s) == ([], [1.0] * 30)
    hearing._turn()
    assert cluster.asked == [["b", "a"]]


def test_what_has_changed_is_queried_twice(hearing: Poller, cluster: Cluster, clock: FakeClock) -> None:
    """At once, and a second later: the report may come before a query returns the change. Then no more."""
    cluster.news.append({"b", "foreign"})
    assert hearing._turn() == 0.2
    assert cluster.asked == [["b"]]
    for _ in range(3):
        hearing._turn()
    assert cluster.asked == [["b"], ["b"]]
    assert clock.now == 1003.0


def test_a_job_that_has_ended_is_not_queried_again(hearing: Poller, cluster: Cluster) -> None:
    """Neither a moment later, nor if it is reported once more."""
    cluster.jobs["b"].state = AppState.SUCCEEDED
    cluster.news += [{"b"}, {"b"}]
    for _ in range(4):
        hearing._turn()
    assert cluster.asked == [["b"]]


def test_changes_of_other_jobs_are_no_reason_to_query(hearing: Poller, cluster: Cluster) -> None:
    """Jobs of others on the cluster."""
    cluster.news.append({"foreign"})
    assert (hearing._turn(), cluster.asked) == (0.0, [])


def test_a_new_job_is_queried_at_once(
    hearing: Poller, registry: RunRegistry, cluster: Cluster, clock: FakeClock
) -> None:
    """All jobs are, but not sooner than the interval allows."""
    launch(registry, cluster, "c")
    assert hearing._turn() == 0.0
    clock.advance(0.5)
    assert hearing._turn() == 1.0
    clock.advance(1.0)
    assert hearing._turn() == 0.5
    assert cluster.asked == []
    clock.advance(0.5)
    hearing._turn()
    assert cluster.asked == [["c", "b", "a"]]


def test_a_stream_that_was_interrupted(hearing: Poller, cluster: Cluster, clock: FakeClock) -> None:
    """Changes may have been missed: all jobs are queried as soon as the interval allows; until then it sleeps."""
    cluster.news.append(None)
    assert hearing._turn() == 1.0
    clock.advance(2.0)
    hearing._turn()
    assert cluster.asked == [["b", "a"]]
    clock.advance(2.0)
    hearing._turn()
    assert len(cluster.asked) == 1, "from now on it listens again"


# -- figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "took_s", "near", "before_s", "interval"),
    [
        (1, 0.0, False, 60.0, 2.0),
        (1, 0.0, True, 60.0, 0.2),
        (2000, 0.0, False, 60.0, 4.0),
        (1, 0.5, False, 60.0, 5.0),
        (1, 0.5, True, 1.0, 2.0),
        (1, 100.0, False, 60.0, 60.0),
        (100_000, 0.0, True, 0.0, 60.0),
    ],
)
def test_intervals(jobs: int, took_s: float, near: bool, before_s: float, interval: float) -> None:
    """500 jobs a second, a tenth of the time, at most twice the interval before, and a minute at most."""
    assert interval_s(jobs, took_s, near=near, before_s=before_s) == interval


@pytest.mark.parametrize(
    ("due_in_s", "late"), [(0.0, False), (-90.0, False), (-90.1, True), (120.0, False), (120.1, True)]
)
def test_when_a_beat_is_late(clock: FakeClock, due_in_s: float, late: bool) -> None:
    """A query may take a minute and a half; a beat is never due later than in two minutes."""
    assert Heartbeat(os.getpid(), clock.now + due_in_s).is_late() is late
