"""Tasks of sweeps as jobs: a view passes calls on to the scheduler of the sweep."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler, echo_app
from torchx.errors import NotSupportedError
from torchx.runner.jobs.views import TaskAsJob
from torchx.runner.sweeps.sweeps import failures
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs import AppState, ReplicaStatus, RoleStatus
from torchx.specs.tasks import TaskTable


class Sweeping(MemoryScheduler):
    """Its sweeps have three tasks, each of which identifies itself."""

    wait_hint = 7.0

    def __init__(self) -> None:
        super().__init__("test")
        self.cancelled = []

    def check_tasks(self, dryrun_info, tasks): ...

    def submit_tasks(self, dryrun_info, tasks): ...

    def describe_tasks(self, app_id, numbers):
        known = [n for n in numbers if app_id == "sweep" and n < 3]
        roles = [RoleStatus("echo", [ReplicaStatus(0, AppState.RUNNING, "echo", "")])]
        return [DescribeAppResponse(f"{app_id}/{n}", AppState.RUNNING, roles_statuses=roles) for n in known]

    def log_replicas(self, app_id):
        return [("echo", n) for n in range(3)] if app_id == "sweep" else None

    def cancel_task(self, app_id, number):
        self.cancelled.append((app_id, number))


def task_of(backend: Any, sweep: str = "sweep", number: int = 2) -> TaskAsJob:
    return TaskAsJob(backend, sweep, number)


def test_a_task_is_asked_for_in_its_sweep() -> None:
    """Its state, its replica, and the polling interval."""
    task = task_of(Sweeping())
    assert task.describe("sweep/2").app_id == "sweep/2"
    assert task_of(Sweeping(), number=3).describe("sweep/3") is None
    assert task.log_replicas("sweep/2") == [("echo", 2)]
    assert task_of(Sweeping(), "other").log_replicas("other/2") is None
    assert task.wait_hint == 7.0


def test_a_task_is_entered_in_its_sweep() -> None:
    """By the replica's name in the sweep; other names are passed on for the scheduler to reject."""
    backend = Sweeping()
    task = task_of(backend)
    assert task.job_of("sweep/2", ("echo", 0)) == task.job_of("sweep/2", ("echo", 2)) == (backend, "sweep", ("echo", 2))
    assert task.job_of("sweep/2", ("echo", 7)) == (backend, "sweep", ("echo", 7))


@pytest.mark.parametrize("named", [("b", 1), ("2", 3)], ids=["status", "sweep"])
def test_a_log_is_that_of_the_replica(named: tuple[str, int]) -> None:
    """By its name in the status of the task or in the sweep; tasks may have several roles."""

    class Many(Sweeping):
        def log_replicas(self, app_id):
            return [(str(n), k) for n in range(3) for k in range(4)]

        def describe_tasks(self, app_id, numbers):
            roles = [RoleStatus(r, [ReplicaStatus(k, AppState.RUNNING, r, "") for k in (0, 1)]) for r in "ab"]
            return [DescribeAppResponse(f"{app_id}/{n}", AppState.RUNNING, roles_statuses=roles) for n in numbers]

        def open_logs(self, app_id, replicas, query):
            return [[f"{app_id} {replica}"] for replica in replicas]

    task = task_of(Many())
    assert task.open_logs("sweep/2", [named], LogQuery()) == [["sweep ('2', 3)"]]
    assert task.job_of("sweep/2", named)[1:] == ("sweep", ("2", 3))


def test_what_is_not_about_one_task_is_as_ever() -> None:
    """Submissions and lists."""
    backend = Sweeping()
    task = task_of(backend)
    app_id = task.schedule(task.submit_dryrun(echo_app(), {"queue": "any"}))
    assert [job.app_id for job in task.list()] == [job.app_id for job in backend.list()] == [app_id]


def test_a_task_is_cancelled_alone_and_deleted_with_its_sweep() -> None:
    """Task numbers beyond the sweep are rejected."""
    backend = Sweeping()
    task = task_of(backend)
    task.cancel("sweep/2")
    assert backend.cancelled == [("sweep", 2)]
    with pytest.raises(NotSupportedError, match="cannot be deleted alone"):
        task.delete("sweep/2")


@pytest.mark.parametrize(("odd", "counts"), [(-1, [40]), (1, [30, 9, 1])])
def test_tasks_that_nobody_looked_into_failed_as_their_like(odd: int, counts: list[int]) -> None:
    """They get the common cause of the described ones; else a group of their own."""

    class Failing(Sweeping):
        def describe_tasks(self, app_id, numbers):
            said = {n: "no disk" if n == odd else f"step {n} is bad" for n in numbers}
            return [DescribeAppResponse(f"s/{n}", AppState.FAILED, msg=said[n]) for n in numbers]

    table = TaskTable(states=[AppState.FAILED] * 40, exit_codes=[1] * 40, ended=[1.0] * 40)
    groups = failures(Failing(), "sweep", table)
    assert [len(group.tasks) for group in groups] == counts
    assert any("not looked into" in group.cause for group in groups) == (odd > 0)
