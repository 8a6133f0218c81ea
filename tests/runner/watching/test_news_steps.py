"""What those who wait for jobs do, on a clock that only tests advance: when a job must be queried, and when a watch ends."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.runs.run_rows import add
from torchx.errors import BackendError
from torchx.runner.watching import changes
from torchx.runner.watching.changes import StatusFeed, TaskChanges, Watch
from torchx.runner.watching.poller import Heartbeat
from torchx.runs import RunRegistry, default_registry
from torchx.specs import AppState, AppStatus
from torchx.specs.tasks import TaskTable
from torchx.testing import FakeClock

ALIVE = Heartbeat(1, 0.0)


class Pollers:
    """Those of other processes, which do what a test says."""

    last: Pollers

    def __init__(self, *_: object) -> None:
        Pollers.last = self
        self.found: dict[str, Heartbeat | None] = {}
        self.served: set[str] = set()
        self.closed = False

    def serve(self, schedulers: Iterable[str] = ()) -> None:
        self.served |= {*schedulers}

    def beats(self) -> dict[str, Heartbeat | None]:
        return self.found

    def status(self, handle: str) -> AppStatus | None:
        return None

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Whoever sleeps until there is news advances it."""
    found = FakeClock(now=1000.0)
    monkeypatch.setattr(changes, "time", found)
    monkeypatch.setattr(changes, "_Pollers", Pollers)
    monkeypatch.setattr(changes._Cursor, "sleep", lambda _, most_s: found.sleep(most_s))
    return found


@pytest.fixture
def registry(clock: FakeClock) -> RunRegistry:
    return default_registry()


def news(registry: RunRegistry, *handles: str) -> StatusFeed:
    return StatusFeed(registry, None, handles)  # the pollers are ours


@pytest.fixture
def running(registry: RunRegistry) -> str:
    return add(registry, "a", scheduler="x", state=AppState.RUNNING)


def asked(found: StatusFeed, clock: FakeClock, handle: str, seconds: int) -> list[int]:
    """In which of the next seconds the job must be queried."""
    times = []
    for second in range(seconds):
        if found.look([handle]):
            times.append(second)
        clock.advance(1.0)
    return times


def test_a_job_that_is_polled_needs_no_query(registry: RunRegistry, running: str, clock: FakeClock) -> None:
    """As long as some process polls its scheduler, which this one serves as well."""
    found = news(registry, running)
    Pollers.last.found = {"x": ALIVE}
    assert asked(found, clock, running, 60) == []
    assert Pollers.last.served == {"x"}


def test_nobody_polls(registry: RunRegistry, running: str, clock: FakeClock) -> None:
    """After ten seconds without a beat, the job is queried every other second."""
    found = news(registry, running)
    Pollers.last.found = {"x": None}
    assert asked(found, clock, running, 16) == [11, 13, 15]
    Pollers.last.found = {"x": ALIVE}
    assert asked(found, clock, running, 16) == []


@pytest.mark.parametrize("beat", [Heartbeat(1, 0.0, error="connection refused"), Heartbeat(1, 0.0, unknown=("a",))])
def test_a_poller_that_cannot_tell(registry: RunRegistry, running: str, clock: FakeClock, beat: Heartbeat) -> None:
    """The job itself is queried every other second, to learn why; others that the scheduler knows are not."""
    other = add(registry, "b", scheduler="x", state=AppState.RUNNING)
    found = news(registry, running, other)
    Pollers.last.found = {"x": beat}
    assert asked(found, clock, running, 5) == [0, 2, 4]
    assert bool(found.look([other])) is bool(beat.error)


@pytest.mark.parametrize("handle", ["x://s/nobody", "x://torchx/ended"])
def test_a_job_that_nobody_polls(registry: RunRegistry, clock: FakeClock, handle: str) -> None:
    """One that is not on record, or has ended, is queried at once, and then every other second."""
    add(registry, "ended", scheduler="x", state=AppState.SUCCEEDED)
    found = news(registry, handle)
    Pollers.last.found = {"x": ALIVE}
    assert asked(found, clock, handle, 5) == [0, 2, 4]


@pytest.mark.parametrize(
    ("state", "due"),
    [(AppState.SUCCEEDED, True), (AppState.UNKNOWN, True), (AppState.PENDING, False)],
)
def test_a_change_on_record(registry: RunRegistry, running: str, clock: FakeClock, state: AppState, due: bool) -> None:
    """An end, or a job that was lost, is looked at; any other change is on record already."""
    found = news(registry, running)
    Pollers.last.found = {"x": ALIVE}
    assert found.look([running]) == []
    registry.saw(running, state)
    assert found.look([running]) == ([running] if due else [])


def test_a_job_that_was_deleted(registry: RunRegistry, running: str, clock: FakeClock) -> None:
    """That is no change: it is noticed after ten seconds."""
    found = news(registry, running)
    Pollers.last.found = {"x": ALIVE}
    registry.forget(running)
    assert asked(found, clock, running, 13) == [10, 12]


def test_how_long_is_waited(registry: RunRegistry, running: str, clock: FakeClock) -> None:
    """Until a query is due, or for the given time, to the moment; no time at all is one look."""
    found = news(registry, running)
    Pollers.last.found = {"x": ALIVE}
    assert found.wait([running], 7.5) == []
    assert clock.now == 1007.5
    assert found.wait([running], 0.0) == []
    assert clock.slept == [7.5]
    registry.saw(running, AppState.FAILED)
    assert found.wait([running], 7.5) == [running]
    assert clock.now == 1007.5


def test_a_job_is_added_again(registry: RunRegistry, running: str, clock: FakeClock) -> None:
    """One that has begun anew under the same handle is waited for; pollers of its scheduler are served."""
    found = news(registry)
    Pollers.last.found = {"x": ALIVE}
    registry.saw(running, AppState.FAILED)
    found.add([running])
    assert found.look([running]) == [running]
    add(registry, "a", scheduler="x", state=AppState.RUNNING)
    found.add([running])
    clock.advance(5.0)
    assert found.look([running]) == []
    with found:
        pass
    assert Pollers.last.closed


# -- watches ---------------------------------------------------------------------------------------


def watch(registry: RunRegistry, *handles: str) -> Watch:
    return Watch(registry, None, handles or None)  # the pollers are ours


def test_a_watch_of_a_deleted_job_ends(registry: RunRegistry, running: str, clock: FakeClock) -> None:
    """Ten seconds later, since that is no change; so does that of a job which its scheduler has lost, at once."""
    found = watch(registry, running)
    assert next(found).state is AppState.RUNNING
    registry.forget(running)
    assert [*found] == []
    assert clock.now == 1010.0
    lost = add(registry, "b", scheduler="x", state=AppState.RUNNING)
    found = watch(registry, lost)
    registry.lost([lost])
    assert [change.state for change in found] == [AppState.RUNNING, AppState.UNKNOWN]
    assert clock.now == 1010.0
    assert Pollers.last.closed


def test_a_change_within_a_time(registry: RunRegistry, running: str, clock: FakeClock) -> None:
    """None after that time, to the moment; it looks at least every two seconds."""
    found = watch(registry, running)
    assert next(found).state is AppState.RUNNING
    assert found.within(5.0) is None
    assert clock.slept == [2.0, 2.0, 1.0]
    registry.saw(running, AppState.SUCCEEDED)
    change = found.within(0.0)
    assert change is not None and change.state is AppState.SUCCEEDED
    with pytest.raises(StopIteration):
        found.within(5.0)


def test_schedulers_that_cannot_be_queried(registry: RunRegistry, running: str, clock: FakeClock) -> None:
    """Each with its reason; those that can, or that nobody has queried yet, are not named."""
    found = watch(registry, running)
    Pollers.last.found = {"x": Heartbeat(1, 0.0, error="connection refused"), "y": ALIVE, "z": None}
    assert found.problems() == {"x": "connection refused"}


def tasks(*states: AppState) -> AppStatus:
    codes = [1 if state is AppState.FAILED else None for state in states]
    return AppStatus(AppState.RUNNING, tasks=TaskTable(states=[*states], exit_codes=codes, ended=[0.0] * len(states)))


def test_how_often_tasks_are_asked_for(clock: FakeClock) -> None:
    """At most once a second, and a tenth of the time; but at once if that is wanted."""
    asked_at: list[float] = []
    takes_s = 0.0

    def status(handle: str) -> AppStatus:
        asked_at.append(clock.now - 1000.0)
        clock.advance(takes_s)
        return tasks(AppState.RUNNING)

    looks = TaskChanges(status, ["x://s/sweep"])
    for _ in range(5):
        looks.look()
        clock.advance(0.5)
    assert asked_at == [0.0, 1.0, 2.0]
    looks.look(now=True)
    assert asked_at[-1] == 2.5
    takes_s = 0.5
    clock.advance(1.0)
    looks.look()  # ends at 4.0
    for _ in range(51):
        looks.look()
        clock.advance(0.1)
    assert [round(at, 1) for at in asked_at] == [0.0, 1.0, 2.0, 2.5, 3.5, 9.0]


def test_changes_of_tasks(clock: FakeClock) -> None:
    """First those that have started, then each change, with its exit code and time."""
    answers = [tasks(AppState.RUNNING, AppState.PENDING), tasks(AppState.FAILED, AppState.PENDING)]
    looks = TaskChanges(lambda _: answers[0], ["x://s/sweep"])
    (first,) = looks.look(now=True)
    assert (first.handle, first.name, first.was, first.state) == ("x://s/sweep/0", "sweep/0", None, AppState.RUNNING)
    del answers[0]
    (change,) = looks.look(now=True)
    assert (change.was, change.state, change.msg) == (AppState.RUNNING, AppState.FAILED, "exit code 1")
    assert (change.at, change.seq) == (clock.now, 0)
    assert looks.look(now=True) == []


@pytest.mark.parametrize(
    ("status", "times"),
    [(None, 1), (AppStatus(AppState.RUNNING), 1), (AppStatus(AppState.RUNNING, error=BackendError("down")), 3)],
)
def test_a_job_without_tasks_is_asked_for_once(clock: FakeClock, status: AppStatus | None, times: int) -> None:
    """If the scheduler cannot be queried, that is not known yet."""
    asked_for: list[str] = []

    def answer(handle: str) -> AppStatus | None:
        asked_for.append(handle)
        return status

    looks = TaskChanges(answer, ["x://s/a"])
    for _ in range(3):
        assert looks.look(now=True) == []
    assert len(asked_for) == times
