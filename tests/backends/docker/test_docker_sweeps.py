"""Sweeps in containers: each task is a job of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.docker.conftest import SESSION, role_of
from tests.backends.sweeps import Ground, SweepContract, sweeps_of
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs import AppState


@pytest.fixture
def ground(scheduler: DockerScheduler, docker_image: str) -> Iterator[Ground]:
    with sweeps_of(SESSION, "local_docker", lambda script, n: role_of(script, n, image=docker_image)) as made:
        yield made


class TestSweepsInContainers(SweepContract):
    """The contract."""

    def test_tasks_have_the_code_of_the_launch(self, ground: Ground, tmp_path: Path) -> None:
        """A workspace goes along, with tasks that are single jobs, too."""
        (tmp_path / "said.txt").write_text("of the launch\n")
        handle = ground.sweep("cat said.txt # {k} ${replica_id}", 2, 1, replicas=2, workspace=f"file://{tmp_path}")
        assert ground.ended(handle).counts() == {AppState.SUCCEEDED: 2}
        assert set(ground.lines(handle)) == {"of the launch\n"}
