"""Sweeps on a real cluster older than 1.29: each task is a job of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.kubernetes.jobs import Jobs
from tests.backends.sweeps import Ground, SweepContract, sweeps_of


@pytest.fixture
def ground(jobs: Jobs) -> Iterator[Ground]:
    cfg = {"namespace": jobs.namespace, "reserved_millicpu": 1000}
    with sweeps_of("tests", "kubernetes", lambda script, n: jobs.role(script, num_replicas=n), cfg) as made:
        yield made


class TestSweepsInPods(SweepContract):
    """The contract."""
