"""Parts of sweeps: descriptions of many jobs, causes of failures, quoted placeholders, and which scheduler is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler
from torchx.errors import BackendError, NotSupportedError, SpecError, TransientError
from torchx.runner.jobs import lookup
from torchx.runner.jobs.paced import tasks as paced
from torchx.runner.jobs.views import TaskAsJob
from torchx.runner.sweeps import sweeps
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.abilities import RunsTasks
from torchx.specs import AppDef, AppState, Role
from torchx.specs.failures import Failure
from torchx.specs.serialize import appdef_to_dict
from torchx.specs.tasks import TaskList, TaskTable


class Arrays(MemoryScheduler, RunsTasks):
    """Runs sweeps itself; the cause of each task is what a test gives."""

    def __init__(self, *causes: str) -> None:
        super().__init__("test", jobs={"a": DescribeAppResponse("a", AppState.RUNNING)})
        self.causes = causes
        self.described: list[int] = []

    def check_tasks(self, dryrun_info: Any, tasks: TaskList) -> None: ...

    def submit_tasks(self, dryrun_info: Any, tasks: TaskList) -> str:
        return "sweep"

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse]:
        self.described += numbers
        found = []
        for k in numbers:
            why = Failure(self.causes[k], exit_code=1, kind="code").to_structured_msg() if self.causes[k] else "<NONE>"
            found.append(
                DescribeAppResponse(f"{app_id}/{k}", AppState.FAILED, structured_error_msg=why, msg="it ended")
            )
        return found

    def cancel_task(self, app_id: str, number: int) -> None: ...


def table(codes: Sequence[int]) -> TaskTable:
    """A sweep whose tasks failed with these exit codes."""
    return TaskTable(states=[AppState.FAILED] * len(codes), exit_codes=[*codes], ended=[1.0] * len(codes))


def groups(backend: Arrays, codes: Sequence[int]) -> list[tuple[str, str, int]]:
    return [(g.kind, g.cause, len(g.tasks)) for g in sweeps.failures(backend, "sweep", table(codes))]


def test_tasks_with_one_cause() -> None:
    """Ten of an exit code are described; if they agree, apart from numbers, so do the others."""
    backend = Arrays(*(f"loss is {k}.5" for k in range(25)))
    ((kind, cause, count),) = groups(backend, [1] * 25)
    assert (kind, "loss is 0.5" in cause, count) == ("code", True, 25)
    assert backend.described == [*range(10)]


def test_tasks_with_several_causes() -> None:
    """Those that were not described are a group of their own; the largest group comes first."""
    backend = Arrays(*["no data"] * 9, "no disk", *["no data"] * 10)
    found = groups(backend, [3] * 20)
    assert [count for _, _, count in found] == [10, 9, 1]
    assert found[0][:2] == ("unknown", "exit code 3, not looked into")
    assert len(backend.described) == 10


def test_as_many_as_are_described() -> None:
    """With different causes among exactly ten, nothing is left over."""
    assert [count for _, _, count in groups(Arrays(*["no data"] * 9, "no disk"), [3] * 10)] == [9, 1]


def test_tasks_without_a_report() -> None:
    """Their message is the cause, of an unknown class."""
    assert groups(Arrays("", ""), [1, 2]) == [("unknown", "it ended", 2)]


def test_only_some_exit_codes_are_looked_into() -> None:
    """Eight, so that a sweep with any number of them is explained quickly."""
    backend = Arrays(*(f"cause {'x' * k}" for k in range(9)))
    assert len(groups(backend, [*range(1, 10)])) == 8
    assert backend.described == [*range(8)]


HEAD = {"host": "elsewhere", "width": 1, "app": appdef_to_dict(AppDef("j", [Role("w", "")])), "cwd": "/"}


def test_many_jobs_and_paced_sweeps() -> None:
    """The scheduler is queried once for its jobs, and not at all if there are only sweeps of this machine."""
    backend, sweep = Arrays(), "sweep-test"
    paced.create(sweep, HEAD, [("1",)])
    assert lookup.describe_many(backend, []) == {}
    assert backend.asked == []
    (found,) = lookup.describe_many(backend, [sweep]).values()
    assert (found is not None and found.app_id, backend.asked) == (sweep, [])
    both = lookup.describe_many(backend, [sweep, "a", "b"])
    assert {app_id: job and job.state for app_id, job in both.items()} == {
        sweep: AppState.PENDING,
        "a": AppState.RUNNING,
        "b": None,
    }
    assert backend.asked == [["a", "b"]]
    assert lookup.describe_many(backend, ["a"]).keys() == {"a"}


@pytest.mark.parametrize("app_id", ["a", "a/x", "/1", "a/", "a/²", "a/" + "1" * 20])
def test_what_is_no_task(app_id: str) -> None:
    """It is asked for as a job: only a number after the sweep means a task."""
    backend = Arrays()
    assert lookup.resolve_backend(backend, app_id) == (backend, app_id)


def test_which_scheduler_is_asked_for_a_task() -> None:
    """That of the sweep as a whole; if it runs no sweeps, itself; for a paced sweep, that of the task's own job."""
    backend, plain, sweep = Arrays(), MemoryScheduler("test"), "sweep-test"
    view, app_id = lookup.resolve_backend(backend, "a/7")
    assert (type(view), app_id) == (TaskAsJob, "a/7")
    assert lookup.resolve_backend(plain, "a/7") == (plain, "a/7")
    folder = paced.create(sweep, HEAD, [("1",), ("2",)])
    with paced.Tasks(folder) as tasks:
        tasks.change(1, paced.WAITING, phase=paced.SUBMITTED, app_id="job-1")
    assert lookup.resolve_backend(plain, f"{sweep}/1") == (plain, "job-1")
    view, app_id = lookup.resolve_backend(plain, f"{sweep}/0")
    assert (type(view), app_id) == (TaskAsJob, f"{sweep}/0")
    assert lookup.resolve_backend(plain, sweep)[0] is not plain


@contextmanager
def launching(error: Exception | None = None) -> Iterator[tuple[Any, list[str]]]:
    """A runner that submits nothing, and what was called."""
    called: list[str] = []

    def schedule_sweep(info: Any, tasks: TaskList) -> str:
        called.append("schedule")
        if error is not None:
            raise error
        return "x://s/sweep"

    yield SimpleNamespace(schedule_sweep=schedule_sweep, discard=lambda info: called.append("discard")), called


def shell(script: str, entrypoint: str = "/bin/bash", flag: str = "-c") -> Any:
    return SimpleNamespace(_app=AppDef("a", [Role("r", "", entrypoint=entrypoint, args=[flag, script, "'{v}'"])]))


QUOTES = TaskList(names=["n", "v"], points=[("'", "a"), ("'", "it's")], max_parallel=0)


@pytest.mark.parametrize(
    ("info", "typed", "refused"),
    [
        (shell("echo '{v}'"), True, True),
        (shell("echo '{v}'"), False, False),
        (shell("echo {v} '$x' {v}"), True, False),
        (shell("echo '{v}'", "python"), True, False),
        (shell("echo '{v}'", flag="-e"), True, False),
        (SimpleNamespace(_app=None), True, False),
    ],
)
def test_a_quote_within_quotes(info: Any, typed: bool, refused: bool) -> None:
    """A value would end the quotes of a typed shell command: nothing is submitted, and the job folder is removed."""
    with launching() as (runner, called):
        if not refused:
            assert sweeps.submit(runner, info, QUOTES, typed=typed) == "x://s/sweep"
            assert called == ["schedule"]
            return
        with pytest.raises(SpecError, match=r"the value `it's` of `v` contains"):
            sweeps.submit(runner, info, QUOTES, typed=typed)
        assert called == ["discard"]


@pytest.mark.parametrize(("error", "discards"), [(TransientError("cut off"), False), (BackendError("no"), True)])
def test_a_sweep_that_is_refused(error: Exception, discards: bool) -> None:
    """Its job folder is removed, unless the sweep may exist nevertheless."""
    with launching(error) as (runner, called), pytest.raises(type(error)):
        sweeps.submit(runner, shell("x"), QUOTES)
    assert called == ["schedule", *["discard"] * discards]


def test_who_submits_a_sweep(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that can does it itself; for others this machine does, and says so if the jobs are elsewhere."""
    info: Any = SimpleNamespace(_scheduler="memory")
    backend = Arrays()
    assert sweeps.submitter(backend, info, QUOTES) is backend
    assert caplog.messages == []

    def refuse(dryrun_info: Any, tasks: TaskList) -> None:
        raise NotSupportedError("no gangs")

    monkeypatch.setattr(backend, "check_tasks", refuse)
    monkeypatch.setattr(MemoryScheduler, "wait_hint", 5.0)
    for one in (backend, MemoryScheduler("test")):
        assert sweeps.submitter(one, info, QUOTES) is not one
    assert "no gangs" in caplog.messages[0]
    assert "torchx makes no job arrays on `memory`" in caplog.messages[1]
    monkeypatch.setattr(MemoryScheduler, "wait_hint", 0.1)
    assert sweeps.submitter(backend, info, QUOTES) is not backend
    assert len(caplog.messages) == 2
