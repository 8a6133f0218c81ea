"""Sweeps on a real cluster older than 1.29: each task is a job of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.kubernetes.jobs import Jobs
from tests.backends.sweeps import Ground, SweepContract
from torchx.runner import get_runner


@pytest.fixture
def ground(jobs: Jobs) -> Iterator[Ground]:
    cfg = {"namespace": jobs.namespace, "reserved_millicpu": 1000}
    with get_runner("tests") as runner:
        yield Ground(runner, "kubernetes", lambda script, n: jobs.role(script, num_replicas=n), cfg)
        for run in runner.runs():
            runner.cancel(run.handle)
            runner.wait(run.handle)


class TestSweepsInPods(SweepContract):
    """The contract."""
