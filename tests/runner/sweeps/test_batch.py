"""`Runner.run_many`: apps are submitted as one sweep, and results arrive as tasks end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchx.errors import BackendError, NotSupportedError, SpecError, TransientError
from torchx.runner import Runner, get_runner
from torchx.runner.sweeps.batch import Batch, TaskResult, template
from torchx.runner.sweeps.sweeps import check, check_job
from torchx.runner.watching.wait import WaitTimeoutError
from torchx.specs import AppDef, AppState, AppStatus, Resource, Role, UnknownAppException, macros
from torchx.specs.macros import split_macros
from torchx.specs.tasks import TaskList, fill
from torchx.testing import FakeClock


def app(script: str, *args: str, **env: str) -> AppDef:
    return AppDef("many", [Role("r", "", entrypoint="sh", args=["-c", script, "sh", *args], env=env)])


@pytest.fixture
def runner() -> Iterator[Runner]:
    with get_runner("many") as made:
        yield made


def test_results_of_all(runner: Runner) -> None:
    """In the order of the apps, with exit codes; there is one row on record."""
    batch = runner.run_many([app("exit $1", str(k)) for k in range(3)], "local_cwd", max_parallel=2)
    assert len(batch) == 3
    found = batch.results()
    assert [(r.number, r.exit_code, r.state) for r in found] == [
        (0, 0, AppState.SUCCEEDED),
        (1, 1, AppState.FAILED),
        (2, 2, AppState.FAILED),
    ]
    assert [run.handle for run in runner.runs()] == [batch.handle]
    status = runner.status(found[1].handle)
    assert status is not None
    assert status.state is AppState.FAILED


def test_results_as_they_come(runner: Runner, tmp_path: Path) -> None:
    """A task that waits for an action after the first result comes last."""
    gate = tmp_path / "gate"
    waits = app(f"until [ -e {gate} ]; do sleep 0.01; done", "0")
    goes = app(f"until [ -e {gate} ]; do sleep 0.01; done", "1")
    goes.roles[0].args[1] = "exit 5"
    results = runner.run_many([waits, goes], "local_cwd", max_parallel=2).as_completed()
    assert next(results).number == 1
    gate.touch()
    assert [result.number for result in results] == [0]


def test_await(runner: Runner) -> None:
    """`await batch` returns all results, and does not block other tasks of the loop."""

    async def work() -> list[int | None]:
        return [result.exit_code for result in await runner.run_many([app("exit 3")], "local_cwd")]

    assert asyncio.run(work()) == [3]


def test_a_timeout_and_cancel(runner: Runner) -> None:
    """Tasks that have not ended in time keep running, and can be cancelled."""
    batch = runner.run_many([app("sleep 1000", "0"), app("sleep 1000", "1")], "local_cwd", max_parallel=1)
    with pytest.raises(WaitTimeoutError, match="2 tasks"):
        batch.results(timeout=0)
    batch.cancel()
    assert {result.state for result in batch.results()} == {AppState.CANCELLED}


def test_a_batch_that_is_gone_and_one_that_nobody_can_ask_about(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is an error; for the second, no task counts as ended."""
    batch = runner.run_many([app("true")], "local_cwd")
    batch.results()
    monkeypatch.setattr(runner, "status", lambda _: AppStatus(state=AppState.RUNNING))
    assert batch._ended({0}) == []
    for status in (None, AppStatus(state=AppState.FAILED), AppStatus(state=AppState.UNKNOWN, gone=True)):
        monkeypatch.setattr(runner, "status", lambda _, status=status: status)
        with pytest.raises(UnknownAppException):
            batch._ended({0})


def test_a_cluster_that_does_not_know_a_batch_for_a_moment(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be starting up: the batch is gone only after a while, as for `Runner.wait`."""
    batch = runner.run_many([app("true")], "local_cwd")
    monkeypatch.setattr(runner, "status", lambda _: AppStatus(state=AppState.UNKNOWN, gone=True))
    monkeypatch.setattr(runner, "is_near", lambda _: False)
    assert batch._ended({0}) == []
    monkeypatch.setattr("torchx.runner.watching.wait.GONE_S", 0.0)
    with pytest.raises(UnknownAppException):
        batch._ended({0})


def test_a_cluster_that_cannot_be_queried(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permanent failure is an error at once, and a transient one after a while, as for `Runner.wait`."""
    batch = runner.run_many([app("true")], "local_cwd")
    batch.results()
    for state in (AppState.RUNNING, AppState.SUCCEEDED):  # as last seen
        status = AppStatus(state=state, error=TransientError("no answer"))
        monkeypatch.setattr(runner, "status", lambda _, status=status: status)
        assert batch._ended({0}) == []
    monkeypatch.setattr("torchx.util.outages.OUTAGE_S", -1.0)
    with pytest.raises(TransientError, match="no answer"):
        batch.results()
    monkeypatch.setattr(runner, "status", lambda _: AppStatus(state=AppState.RUNNING, error=BackendError("denied")))
    with pytest.raises(BackendError, match="denied"):
        batch.results()


def test_what_differs_becomes_a_value() -> None:
    """Arguments and variables; text that looks like a placeholder is kept."""
    apps = [app("echo {x} ${y} {{z}}", str(k), A=f"a{k}", B="{b}") for k in range(2)]
    made, names, points = template(apps)
    for point, original in zip(points, apps, strict=True):
        values = dict(zip(names, point, strict=True))
        assert [fill(arg, values) for arg in made.roles[0].args] == original.roles[0].args
        assert {name: fill(value, values) for name, value in made.roles[0].env.items()} == original.roles[0].env
    assert points == [("0", "a0"), ("1", "a1")]


def test_what_is_refused(runner: Runner) -> None:
    """No apps, apps of different shapes, and a negative number at a time; nothing is submitted."""
    bigger = app("true")
    bigger.roles[0].resource = Resource(cpu=2, gpu=0, memMB=10)
    more = app("true")
    more.roles.append(Role("s", "", entrypoint="true"))
    limited = app("true")
    limited.metadata["torchx/timeout"] = "1h"
    unlike = [app("true", "1"), bigger, app("true", A="1"), more, limited]
    for apps in ([], *([app("true"), other] for other in unlike), *([other, app("true")] for other in unlike)):
        with pytest.raises(SpecError):
            runner.run_many(apps, "local_cwd")
    with pytest.raises(SpecError, match="at a time"):
        runner.run_many([app("true")], "local_cwd", max_parallel=-1)
    assert not runner.runs()


@pytest.mark.parametrize("value", [0.1, None, True, b"x", Path("x")])
def test_a_value_that_is_no_text(value: Any) -> None:
    """The error names the value, and says what to do."""
    with pytest.raises(SpecError, match="of `lr`, of task 1, cannot be passed to a program") as e:
        check(TaskList(names=["lr"], points=[("0.1",), (value,)]))
    assert e.value.hint == "write it as a string"


def test_what_a_sweep_cannot_keep_is_refused() -> None:
    """Dependencies on other jobs; the hint says what to do."""
    job = app("true")
    job.metadata["torchx/after"] = "ok:slurm://t/7"
    with pytest.raises(NotSupportedError):
        check_job(job, TaskList(names=["k"], points=[("1",)]))


def _as_tasks(apps: list[AppDef]) -> list[list[str]]:
    """The arguments of each task, as a scheduler makes them: first macros, then values."""
    made, names, points = template(apps)
    values = macros.Values(img_root="/i", app_id="job_1", replica_id="0", rank0_env="R0")
    args = values.apply(made.roles[0]).args
    return [[fill(arg, dict(zip(names, point, strict=True))) for arg in args] for point in points]


_texts = st.lists(
    st.sampled_from(
        ["$", "{", "}", "${app_id}", "$${app_id}", "{v0}", "{{v1}}", "${lr}", "'", '"', "é", "\\", "a", ","]
    ),
    max_size=6,
).map("".join)


@given(st.lists(st.tuples(_texts, _texts), min_size=1, max_size=4))
@example([("{${app_id}}", "{{${app_id}}}")])
@example([("{a${app_id}}", "a{${app_id}${app_id}b}"), ("{a${app_id}}", "{a{${app_id}${app_id}b}")])
@example([("{${app_id}c}", "${${app_id}}")])
def test_each_task_has_the_arguments_of_its_app(rows: list[tuple[str, str]]) -> None:
    """Macros are substituted, and any other text is passed unchanged."""
    apps = [app("x", *row) for row in rows]
    values = macros.Values(img_root="/i", app_id="job_1", replica_id="0", rank0_env="R0")
    try:
        found = _as_tasks(apps)
    except SpecError:
        assert len({tuple(tuple(split_macros(text)[1::2]) for text in row) for row in rows}) > 1
        return
    assert found == [values.apply(each.roles[0]).args for each in apps]


def test_apps_that_differ_beside_a_macro() -> None:
    """`dist.ddp` puts the job's id and the program's arguments into one word."""
    apps = [app(f"torchrun --rdzv_id ${{app_id}} --lr {lr}") for lr in ("1e-4", "3e-4")]
    assert [args[1] for args in _as_tasks(apps)] == [f"torchrun --rdzv_id job_1 --lr {lr}" for lr in ("1e-4", "3e-4")]


class Paced(Batch):
    """A batch of three tasks: a test says when each ends, and how long a query takes."""

    def __init__(self, clock: FakeClock, ends: list[float], takes_s: float = 0.0) -> None:
        self._clock, self._ends, self._takes_s = clock, ends, takes_s
        self.handle, self._count = "x://s/sweep", len(ends)

    def _ended(self, wanted: set[int]) -> list[TaskResult]:
        self._clock.advance(self._takes_s)
        return [
            TaskResult(number=k, handle=f"{self.handle}/{k}", state=AppState.SUCCEEDED, exit_code=0)
            for k in sorted(wanted)
            if self._clock.now >= self._ends[k]
        ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    found = FakeClock(now=0.0)
    monkeypatch.setattr("torchx.runner.sweeps.batch.time", found)
    return found


def test_pauses_between_looks(clock: FakeClock) -> None:
    """They grow to five seconds, and begin anew when a task has ended; after the last one there is none."""
    assert [r.number for r in Paced(clock, [40.0, 0.0, 40.0]).as_completed()] == [1, 0, 2]
    assert clock.slept[:4] == pytest.approx([0.05, 0.075, 0.1125, 0.16875])
    assert max(clock.slept) == clock.slept[-1] == 5.0
    assert 40.0 <= clock.now < 45.0


def test_looks_take_a_tenth_of_the_time(clock: FakeClock) -> None:
    """A sweep of many tasks takes long to read."""
    assert len(Paced(clock, [0.0, 9.0], takes_s=2.0).results()) == 2
    assert clock.slept == [20.0]


@pytest.mark.parametrize("takes_s", [0.0, 1.0])
def test_the_time_for_all_tasks(clock: FakeClock, takes_s: float) -> None:
    """It is over to the moment, and those that have ended by then are results."""
    found = []
    with pytest.raises(WaitTimeoutError, match="1 tasks of `x://s/sweep` have not ended after 7 s"):
        for result in Paced(clock, [7.0 + takes_s, 8.1 + takes_s], takes_s).as_completed(7.0):
            found.append(result.number)
    assert (found, clock.now) == ([0], 7.0 + takes_s)


def test_no_time_at_all(clock: FakeClock) -> None:
    """One look; whoever has ended is a result."""
    assert len(Paced(clock, [0.0]).results(timeout=0.0)) == 1
    with pytest.raises(WaitTimeoutError):
        Paced(clock, [0.1]).results(timeout=0.0)
    assert clock.slept == []
