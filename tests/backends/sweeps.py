"""What a sweep must do on every backend: inherit :class:`SweepContract`, and say where the tasks run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from torchx.runner import Runner, get_runner
from torchx.schedulers.kit.logs import LogQuery
from torchx.settings import torchx_home
from torchx.specs import AppDef, AppState, Role
from torchx.specs.tasks import TaskList, TaskTable

PATIENCE_S = 180.0


class Ground(NamedTuple):
    """Where tasks run.

    Attributes:
        role: a role that runs ``sh -c SCRIPT`` in so many replicas.
        native: sweeps are the scheduler's own; else they are paced.
    """

    runner: Runner
    scheduler: str
    role: Callable[[str, int], Role]
    cfg: dict[str, Any] = {}  # noqa: RUF012  # a named tuple's
    native: bool = False

    def sweep(
        self, script: str, count: int, width: int, *, replicas: int = 1, workspace: str | None = None, pack: int = 1
    ) -> str:
        app = AppDef("sweep-test", [self.role(script, replicas)])
        info = self.runner.dryrun(app, self.scheduler, cfg=self.cfg, workspace=workspace)
        tasks = TaskList(names=["k"], points=[(f"v{k}",) for k in range(count)], max_parallel=width, pack=pack)
        return self.runner.schedule_sweep(info, tasks)

    def table(self, handle: str) -> TaskTable:
        status = self.runner.status(handle)
        assert status is not None
        assert status.tasks is not None, status
        return status.tasks

    def ended(self, handle: str) -> TaskTable:
        status = self.runner.wait(handle, wait_interval=1, timeout=PATIENCE_S)
        assert status is not None
        assert status.tasks is not None
        return status.tasks

    def lines(self, handle: str) -> list[str]:
        replicas = self.runner.log_replicas(handle)
        return [line for lines in self.runner.open_logs(handle, replicas, LogQuery()) for line in lines]

    def until(self, handle: str, wanted: Callable[[TaskTable], bool]) -> TaskTable:
        deadline = time.monotonic() + PATIENCE_S
        while not wanted(table := self.table(handle)):
            assert time.monotonic() < deadline, table
            time.sleep(0.2)
        return table


@contextmanager
def sweeps_of(
    session: str, scheduler: str, role: Callable[[str, int], Role], cfg: dict[str, Any] | None = None, **more: bool
) -> Iterator[Ground]:
    """Sweeps by a Runner of its own; what is left of them at the end is cancelled."""
    with get_runner(session) as runner:
        yield Ground(runner, scheduler, role, cfg or {}, **more)
        for run in runner.runs():
            runner.cancel(run.handle)
            runner.wait(run.handle)


def pacers(handle: str) -> list[int]:
    """The processes that look after a paced sweep."""
    folder = os.fsencode(torchx_home("sweeps", handle.rpartition("/")[2]))
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if folder in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(int(pid))
        except OSError:
            continue
    return found


def _succeeded(n: int, table: TaskTable) -> bool:
    return table.counts().get(AppState.SUCCEEDED, 0) >= n


class SweepContract:
    """The fixture ``ground`` is the backend's; it removes what is left."""

    def test_each_task_runs_once_with_its_values(self, ground: Ground) -> None:
        """One that fails ends no other, and has its log and its cause; `SWEEP/2` is a job as any other, with its id."""
        handle = ground.sweep(
            "echo {k} $TORCHX_TASK ${TORCHX_JOB_ID#*://*/}; test {k} != v2 || { echo no data; exit 3; }", 4, 2
        )
        table = ground.ended(handle)
        assert [state.name for state in table.states] == ["SUCCEEDED", "SUCCEEDED", "FAILED", "SUCCEEDED"]
        assert (table.exit_codes[2], table.max_parallel) == (3, 2)
        written = [f"v{k} {k} {handle.rpartition('/')[2]}/{k}" for k in range(4)]
        lines = sorted(line.strip() for line in ground.lines(handle))
        assert lines == ["no data", *written]
        assert ground.lines(f"{handle}/3") == [f"{written[3]}\n"]
        task = ground.runner.status(f"{handle}/2")
        assert task is not None
        assert (task.state, "exit code 3" in task.msg, "no data" in task.msg) == (AppState.FAILED, True, True)
        info, again = ground.runner.retry_sweep(handle)
        assert again.points == [["v2"]] or again.points == [("v2",)]
        ground.runner.discard(info)

    def test_cancel_while_tasks_are_to_come(self, ground: Ground) -> None:
        """One task, then all: none is left, and none begins."""
        handle = ground.sweep("exec sleep 600", 5, 2)
        ground.until(handle, lambda t: t.counts().get(AppState.RUNNING, 0) == 2)
        ground.runner.cancel(f"{handle}/1")
        table = ground.until(handle, lambda t: t.states[1] is AppState.CANCELLED)
        assert AppState.RUNNING in table.counts() or AppState.PENDING in table.counts()
        ground.runner.cancel(handle)
        assert ground.ended(handle).counts() == {AppState.CANCELLED: 5}

    def test_tasks_of_two_replicas(self, ground: Ground) -> None:
        """All replicas of a task run, with the task's value."""
        handle = ground.sweep("echo {k} ${replica_id}", 2, 2, replicas=2)
        assert ground.ended(handle).counts() == {AppState.SUCCEEDED: 2}
        assert sorted(ground.lines(f"{handle}/1")) == ["v1 0\n", "v1 1\n"]

    def test_its_pacer_is_killed(self, ground: Ground) -> None:
        """Whoever looks next has the sweep go on; each task is one job."""
        if ground.native:
            pytest.skip("the scheduler itself starts the tasks")
        handle = ground.sweep("echo {k}", 6, 2)
        for seen in range(1, 4):
            ground.until(handle, partial(_succeeded, seen))
            for pid in pacers(handle):
                os.kill(pid, signal.SIGKILL)
        assert ground.ended(handle).counts() == {AppState.SUCCEEDED: 6}
        assert sorted(ground.lines(handle)) == [f"v{k}\n" for k in range(6)]
