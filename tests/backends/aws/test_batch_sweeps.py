"""Sweeps on Batch, on moto's server: each task is a job of its own."""

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
