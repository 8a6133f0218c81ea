"""Sweeps on Batch, on moto's server: array jobs where all tasks may run at the same time; else each task is a job of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.docker import engine
from tests.backends.sweeps import Ground, SweepContract, sweeps_of
from torchx.specs.api import AppState, Resource, Role


def role_of(script: str, n: int) -> Role:
    small = Resource(cpu=1, gpu=0, memMB=128)
    return Role("w", engine.IMAGE, entrypoint="sh", args=["-c", script], num_replicas=n, resource=small)


@pytest.fixture
def ground(queue: str) -> Iterator[Ground]:
    with sweeps_of("aws-tests", "aws_batch", role_of, {"queue": queue}) as made:
        yield made


class TestSweepsOnBatch(SweepContract):
    """The contract."""

    def test_tasks_of_two_replicas(self, ground: Ground) -> None:
        """They are multi-node jobs, which end as one; what moto keeps of the logs of single nodes is not looked at."""
        handle = ground.sweep("echo {k} ${replica_id}", 2, 2, replicas=2)
        assert ground.ended(handle).counts() == {AppState.SUCCEEDED: 2}

    def test_one_array(self, ground: Ground) -> None:
        """Its tasks have their values and logs; one that failed is a job as any other, and can be run again."""
        handle = ground.sweep(
            "echo {k} $TORCHX_TASK ${TORCHX_JOB_ID##*/}; test {k} != v1 || { echo no data; exit 3; }", 3, 0
        )
        assert not handle.rpartition("/")[2].startswith("sweep-")  # a paced one
        table = ground.ended(handle)
        assert [state.name for state in table.states] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
        assert table.exit_codes == [0, 3, 0]
        written = sorted(line.strip() for line in ground.lines(handle))
        assert written == ["no data", *(f"v{k} {k} {k}" for k in range(3))]
        task = ground.runner.status(f"{handle}/1")
        assert task is not None
        assert (task.state, "exit code 3" in task.msg, "no data" in task.msg) == (AppState.FAILED, True, True)
        assert ground.lines(f"{handle}/2") == ["v2 2 2\n"]
        info, again = ground.runner.retry_sweep(handle)
        assert [list(point) for point in again.points] == [["v1"]]
        ground.runner.discard(info)

    def test_an_array_is_cancelled(self, ground: Ground) -> None:
        """One task, then all."""
        handle = ground.sweep("exec sleep 600", 3, 0)
        ground.until(handle, lambda t: t.counts().get(AppState.RUNNING, 0) == 3)
        ground.runner.cancel(f"{handle}/1")
        table = ground.until(handle, lambda t: t.states[1] is AppState.CANCELLED)
        assert table.counts() == {AppState.CANCELLED: 1, AppState.RUNNING: 2}
        ground.runner.cancel(handle)
        assert ground.ended(handle).counts() == {AppState.CANCELLED: 3}
