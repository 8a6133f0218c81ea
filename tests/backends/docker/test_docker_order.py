"""Roles in order, in containers: the contract, and probes over the network."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.backends.docker.conftest import SESSION, at, role_of
from tests.backends.docker.test_docker_watcher import kill
from tests.backends.orders import PROGRAM, STAYS, UP, Case, OrderContract, OrderGround, is_there, once, orders_of
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs import AppState, Role


@pytest.fixture
def ground(scheduler: DockerScheduler, docker_image: str, meet: Path) -> Iterator[OrderGround]:
    def role(name: str, script: str) -> Role:
        return role_of(script, name=name, image=docker_image, mounts=at(meet))

    def left(handle: str) -> list[str]:
        listed = scheduler._on_engine.listed().get(handle.rpartition("/")[2])
        return [c.name for c in listed.containers if c.state is AppState.RUNNING] if listed else []

    example = (["--program", "program.py", "--image", docker_image], f"file://{PROGRAM}")
    more = {"cfg": {"cancel_grace_s": 2}, "example": example}
    with orders_of(SESSION, "local_docker", role, left=left, first=lambda: once("/meet"), **more) as made:
        yield made


class TestDockerOrder(OrderContract):
    """The contract."""

    def test_its_watcher_is_killed(self, ground: OrderGround, meet: Path) -> None:
        """While a role waits, and while it runs: whoever looks next has the job go on."""
        server = f"until test -e /meet/go; do sleep 0.1; done; {UP}; {STAYS}"
        driver = "until test -e /meet/end; do sleep 0.1; done"
        case = Case(
            [("server", server, {"ready": UP}), ("driver", driver, {"after": ["server"], "ends_job": True})], ""
        )
        handle = ground.submit(case)
        app_id = handle.rpartition("/")[2]
        for file, state in (("go", "RUNNING"), ("end", "SUCCEEDED")):
            kill(app_id)
            (meet / file).touch()
            ground.until(handle, partial(is_there, f"driver {state}"))
        assert ground.ended(handle).state is AppState.SUCCEEDED
