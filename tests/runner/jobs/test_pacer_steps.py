"""A pacer step by step: pauses, cancellations that are repeated, jobs that are not listed yet, exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from torchx.errors import BackendError
from torchx.runner.jobs.paced import pacer
from torchx.runner.jobs.paced import tasks as paced
from torchx.runner.jobs.paced.pacer import Pacer, exit_code
from torchx.runner.jobs.paced.tasks import ENDED, IN_DOUBT, SUBMITTED, WAITING, Tasks
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchx.specs import AppDef, AppDryRunInfo, AppState, Role
from torchx.specs.failures import Failure
from torchx.testing import FakeClock

Answer = tuple[AppState, str]


class Scripted(Scheduler[Mapping[str, Any]]):
    """Submits any job; answers what a test says, which by default is that it runs."""

    wait_hint = 3.0

    def __init__(self) -> None:
        super().__init__("scripted", "test")
        self.answers: dict[str, Answer | None] = {}
        self.ended_at: float | None = None
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.asked: list[list[str]] = []
        self.refuses: Exception | None = None
        self.on_query: Callable[[], object] = lambda: None
        self.found: str | None = None

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[str]:
        return AppDryRunInfo(app.name, str)

    def schedule(self, dryrun_info: AppDryRunInfo[str]) -> str:
        if self.refuses is not None:
            raise self.refuses
        self.submitted.append(dryrun_info.request)
        return dryrun_info.request

    def find_submission(self, token: str, cfg: Mapping[str, Any], *, age_s: float = 0.0) -> str | None:
        self.age_s = age_s
        return self.found

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        answer = self.answers.get(app_id, (AppState.RUNNING, ""))
        if answer is None:
            return None
        return DescribeAppResponse(app_id=app_id, state=answer[0], msg=answer[1], ended_at=self.ended_at)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        wanted = [*app_ids]
        self.asked.append(wanted)
        self.on_query()
        return {app_id: self.describe(app_id) for app_id in wanted}

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        return []

    def cancel(self, app_id: str) -> None:
        self.cancelled.append(app_id)

    def _cancel_existing(self, app_id: str) -> None:
        raise AssertionError(app_id)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    found = FakeClock()
    monkeypatch.setattr(pacer, "time", found)
    return found


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    """Five tasks."""
    with Tasks(paced.create("sweep-test", {}, [(str(k),) for k in range(5)])) as found:
        yield found


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


@pytest.fixture
def made(clock: FakeClock, tasks: Tasks, backend: Scripted) -> Pacer:
    """Two tasks at a time."""
    app = AppDef("job", [Role("w", "", entrypoint="p", args=["{v}"])])
    return Pacer(tasks, backend, app, {"cfg": {}, "names": ["v"], "width": 2, "scheduler": "x", "session": "me"})


def submitted(tasks: Tasks, clock: FakeClock, *numbers: int) -> None:
    for k in numbers:
        tasks.change(k, WAITING, phase=SUBMITTED, app_id=f"job-{k}", since=clock.time())


def states(tasks: Tasks) -> list[str]:
    return [state.name for state in tasks.table(2).states]


def test_as_many_as_may_run(made: Pacer, tasks: Tasks, backend: Scripted) -> None:
    """Two of five are submitted; another one for each that has ended, until none waits."""
    assert made._submit() is True
    assert made._submit() is True
    assert backend.submitted == ["job-0", "job-1"]
    backend.answers["job-0"] = (AppState.SUCCEEDED, "")
    assert made._update() == 1
    assert made._submit() is True
    assert backend.submitted == ["job-0", "job-1", "job-2"]
    tasks.stop(None)
    assert made._submit() is False


@pytest.mark.parametrize("stopped", [False, True], ids=["", "cancelled"])
def test_a_task_that_was_not_submitted_after_all(tasks: Tasks, clock: FakeClock, stopped: bool) -> None:
    """It waits again; if it was cancelled meanwhile, it ends, and is never submitted. One that was, stays."""
    submitted(tasks, clock, 1)
    tasks.change(0, WAITING, phase=IN_DOUBT, app_id="job-0", token="t", since=clock.time())
    if stopped:
        tasks.stop(0)
        tasks.stop(1)
    tasks.withdraw(0)
    tasks.withdraw(1)
    first, second = tasks.some(0, 1)
    assert (first.phase, first.state.name) == ((ENDED, "CANCELLED") if stopped else (WAITING, "PENDING"))
    assert (first.app_id, first.token, bool(first.ended)) == ("", "", stopped)
    assert (second.phase, second.app_id) == (SUBMITTED, "job-1")
    following = tasks.next()
    assert following is not None
    assert following.k == (2 if stopped else 0)


def test_a_sweep_of_a_newer_torchx(tasks: Tasks) -> None:
    """More columns, and states that are not known here: the others are read, and tasks can be cancelled."""
    tasks._db.execute("ALTER TABLE tasks ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'")
    tasks._db.execute("UPDATE tasks SET state = 'SUSPENDED' WHERE k = 0")
    assert states(tasks) == ["UNKNOWN", *["PENDING"] * 4]
    assert [task.state.name for task in tasks.some(0, 1)] == ["UNKNOWN", "PENDING"]
    tasks.stop(None)
    assert states(tasks) == ["CANCELLED"] * 5


def test_pauses_after_refusals(made: Pacer, clock: FakeClock, backend: Scripted) -> None:
    """They grow from a second to a minute; what succeeds begins anew, and is no longer reported as a problem."""
    pauses = []
    for _ in range(8):
        made._delay()
        pauses.append(made._not_before - clock.monotonic())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert made._submit() is True
    clock.advance(59.5)
    assert (made._submit(), backend.submitted) == (True, [])
    clock.advance(0.5)
    assert (made._submit(), backend.submitted) == (True, ["job-0", "job-1"])
    made._delay()
    assert made._not_before - clock.monotonic() == 1


def test_a_refused_task_waits_again(made: Pacer, tasks: Tasks, backend: Scripted, clock: FakeClock) -> None:
    """The problem is on the status page until a submission succeeds."""
    backend.refuses = BackendError("too many jobs")
    assert made._submit() is True
    assert states(tasks) == ["PENDING"] * 5
    assert "too many jobs" in tasks.head()["problem"]
    backend.refuses = None
    clock.advance(1.0)
    made._submit()
    assert tasks.head()["problem"] == ""


def test_a_cancellation_is_repeated(made: Pacer, tasks: Tasks, backend: Scripted, clock: FakeClock) -> None:
    """At once, and every 30 seconds as long as the job is there; other tasks are left alone."""
    submitted(tasks, clock, 0, 1)
    tasks.stop(0)
    made._cancel()
    assert backend.cancelled == ["job-0"]
    clock.advance(29.9)
    made._cancel()
    assert backend.cancelled == ["job-0"]
    clock.advance(0.1)
    made._cancel()
    assert backend.cancelled == ["job-0"] * 2


@pytest.mark.parametrize(("after_s", "state"), [(60.0, "PENDING"), (60.1, "UNKNOWN")])
def test_a_job_that_is_not_listed(
    made: Pacer, tasks: Tasks, backend: Scripted, clock: FakeClock, after_s: float, state: str
) -> None:
    """For a minute it may be too new; afterwards its scheduler no longer knows it."""
    submitted(tasks, clock, 0)
    backend.answers["job-0"] = None
    clock.now += after_s
    assert made._update() == (1 if state == "PENDING" else 0)
    assert states(tasks)[0] == state


@pytest.mark.parametrize(
    ("stop", "state", "recorded"),
    [
        (True, AppState.FAILED, "CANCELLED"),
        (False, AppState.FAILED, "FAILED"),
        (True, AppState.SUCCEEDED, "SUCCEEDED"),
        (False, AppState.CANCELLED, "CANCELLED"),
    ],
)
def test_how_a_task_has_ended(
    made: Pacer, tasks: Tasks, backend: Scripted, clock: FakeClock, stop: bool, state: AppState, recorded: str
) -> None:
    """A job that fails because it was cancelled is CANCELLED; one that was quicker than that has succeeded."""
    submitted(tasks, clock, 0)
    if stop:
        tasks.stop(0)
    backend.answers["job-0"] = (state, "why")
    assert made._update() == 0
    assert states(tasks)[0] == recorded
    assert tasks.some(0)[0].msg == "why"


@pytest.mark.parametrize(("ended_at", "recorded"), [(1234.5, 1234.5), (None, 5000.0)])
def test_when_a_task_has_ended(
    made: Pacer,
    tasks: Tasks,
    backend: Scripted,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    ended_at: float | None,
    recorded: float,
) -> None:
    """As its scheduler says, not when the pacer saw it, unless its scheduler does not say."""
    submitted(tasks, clock, 0)
    monkeypatch.setattr(paced, "time", FakeClock(now=5000.0))
    backend.answers["job-0"], backend.ended_at = (AppState.SUCCEEDED, ""), ended_at
    made._update()
    assert tasks.some(0)[0].ended == recorded


def test_changes_of_a_job_are_recorded(made: Pacer, tasks: Tasks, backend: Scripted, clock: FakeClock) -> None:
    """Its state and its message, with one query for all; without jobs there is none."""
    assert (made._update(), backend.asked) == (0, [])
    submitted(tasks, clock, 0, 1)
    backend.answers = {"job-0": (AppState.RUNNING, "on n1"), "job-1": (AppState.PENDING, "Priority")}
    assert made._update() == 2
    assert backend.asked == [["job-0", "job-1"]]
    assert [(task.state.name, task.msg) for task in tasks.all(SUBMITTED)] == [
        ("RUNNING", "on n1"),
        ("PENDING", "Priority"),
    ]


@pytest.mark.parametrize(("found", "phases"), [("job-9", [SUBMITTED]), ("", [WAITING]), (None, [IN_DOUBT])])
def test_an_answer_that_was_lost(
    made: Pacer, tasks: Tasks, backend: Scripted, clock: FakeClock, found: str | None, phases: list[int]
) -> None:
    """The scheduler is asked for the job, with its age; if it does not know yet, the task stays in doubt."""
    tasks.change(0, WAITING, phase=IN_DOUBT, app_id="job-0", since=clock.time())
    clock.advance(7.0)
    backend.found = found
    made._settle()
    assert backend.age_s == 7.0
    assert [task.phase for task in tasks.some(0)] == phases
    assert made._update() == (0 if found == "" else 1), "one in doubt may run"


@pytest.mark.parametrize(
    ("hint_s", "query_s", "active", "pause_s"),
    [(3.0, 0.0, 1, 1.5), (10.0, 0.0, 1, 2.0), (3.0, 0.4, 1, 4.0), (3.0, 0.0, 2000, 4.0), (3.0, 100.0, 1, 60.0)],
)
def test_pauses_between_queries(
    made: Pacer,
    backend: Scripted,
    clock: FakeClock,
    tasks: Tasks,
    hint_s: float,
    query_s: float,
    active: int,
    pause_s: float,
) -> None:
    """By the scheduler, the number of jobs, and the time that a query takes: it is a tenth of all time at most."""
    backend.wait_hint = hint_s
    backend.on_query = lambda: clock.advance(query_s)
    submitted(tasks, clock, 0)
    made._update()
    before = clock.now
    made._sleep(tasks.version(), active)
    assert clock.now - before == pytest.approx(pause_s)
    assert max(clock.slept) <= 0.1


def test_a_change_of_another_process_ends_the_pause(made: Pacer, clock: FakeClock, tasks: Tasks) -> None:
    """A cancellation is passed on at once, not when the next query is due."""
    version = tasks.version()
    with Tasks(tasks.folder) as other:
        other.stop(0)
    made._sleep(version, 1)
    assert clock.slept == []


@pytest.mark.parametrize(
    ("failure", "state", "code"),
    [
        (None, AppState.SUCCEEDED, 0),
        (None, AppState.FAILED, None),
        (Failure("x", exit_code=3), AppState.FAILED, 3),
        (Failure("x", exit_code=137, signal="SIGKILL"), AppState.FAILED, -9),
        (Failure("x", exit_code=1, signal="SIGNOVEL"), AppState.FAILED, 1),
    ],
)
def test_exit_codes(failure: Failure | None, state: AppState, code: int | None) -> None:
    """That of the replica that failed first, negative for a signal; unknown without a report."""
    text = failure.to_structured_msg() if failure is not None else "<NONE>"
    assert exit_code(DescribeAppResponse(app_id="a", state=state, structured_error_msg=text), state) == code
