"""Sweeps in containers: each task is a job of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.docker.conftest import SESSION, role_of
from tests.backends.sweeps import Ground, SweepContract, sweeps_of
from torchx.schedulers.docker_scheduler import DockerScheduler


@pytest.fixture
def ground(scheduler: DockerScheduler, docker_image: str) -> Iterator[Ground]:
    with sweeps_of(SESSION, "local_docker", lambda script, n: role_of(script, n, image=docker_image)) as made:
        yield made


class TestSweepsInContainers(SweepContract):
    """The contract."""
