"""Sweeps on the look-alike of LSF: each task is a job of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.sweeps import Ground, SweepContract, sweeps_of
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import Resource, Role


def role_of(script: str, n: int) -> Role:
    small = Resource(cpu=1, gpu=0, memMB=512)
    return Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=n, resource=small)


@pytest.fixture
def ground(scheduler: LsfScheduler) -> Iterator[Ground]:
    with sweeps_of("test", "lsf", role_of) as made:
        yield made


class TestSweepsOnLsf(SweepContract):
    """The contract."""
