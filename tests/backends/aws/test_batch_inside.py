"""Commands inside the container of a Batch job: the contract, in real containers, by a stand-in of AWS's plugin.

Neither AWS nor its agent nor its plugin is here; moto has no ExecuteCommand. See :mod:`tests.schedulers.aws.ecs_exec`.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("docker")

from tests.backends.aws.conftest import QUEUE
from tests.backends.docker import engine
from tests.backends.inside import InsideContract, Place
from tests.schedulers.aws.batch_cloud import Cloud
from tests.schedulers.aws.ecs_exec import FarEnd, install
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.specs.api import AppDef, Resource, Role


class ContainerTerminal:
    """As the agent starts it in a container; nobody ends it with its connection."""

    def __init__(self, container: str, words: list[str]) -> None:
        self.engine = EngineHttp(os.environ)
        what = {"Cmd": words, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": True}
        what["DetachKeys"] = ",".join(["ctrl-]", "ctrl-^", "ctrl-_"] * 5)  # the engine looks for them in the input
        self.id = self.engine.call("POST", f"/containers/{container}/exec", body=what)["Id"]
        self.connection, self.begun = self.engine.upgrade(f"/exec/{self.id}/start", {"Detach": False, "Tty": True})
        self.connection.settimeout(None)  # it may take nothing for as long as nobody reads

    def read(self) -> bytes:
        found, self.begun = self.begun, b""
        return found or self.connection.recv(1 << 16)

    def write(self, data: bytes) -> None:
        self.connection.sendall(data)

    def resize(self, columns: int, rows: int) -> None:
        with contextlib.suppress(RefusedError):  # it has just ended
            self.engine.call("POST", f"/exec/{self.id}/resize", {"h": rows, "w": columns})

    def close(self) -> None:
        socket.socket.close(self.connection)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    try:
        started = engine.up()
        tag = engine.image()
    except engine.Unavailable as e:
        pytest.skip(f"no Docker engine can be had: {e}")
    yield tag
    if started:
        engine.down()


@pytest.fixture
def container(image: str) -> Iterator[Any]:
    """A replica's container, as Batch would have started it."""
    import docker

    client = docker.from_env(timeout=600)
    made = client.containers.run(
        image,
        ["sh", "-c", "cd /; : >mark; echo up; exec sleep 1000"],
        environment={"GREETING": "hello, 世界", "MARK_FILE": "mark", "LINES": "one\ntwo 'x' \\n", "dotted.name": "x"},
        detach=True,
    )
    while b"up" not in made.logs():
        pass
    yield made
    made.remove(force=True)
    client.close()


@pytest.fixture
def far_end(
    container: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FarEnd]:
    folder = tmp_path_factory.mktemp("plugin")
    install(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def start(words: list[str]) -> ContainerTerminal:
        try:
            return ContainerTerminal(container.id, words)
        except RefusedError as e:
            raise OSError(f"the container is gone: {e}") from e

    made = FarEnd(start)
    yield made
    made.close()


@pytest.fixture
def place(far_end: FarEnd, container: Any) -> Iterator[Place]:
    cloud = Cloud((QUEUE,))
    scheduler = AWSBatchScheduler(
        "s", clients=Clients({"batch": cloud, "logs": cloud.logs, "ecs": far_end, "ssm": far_end})
    )
    role = Role("r", "img:1", entrypoint="sleep", args=["1000"], resource=Resource(cpu=1, gpu=0, memMB=128))
    cfg: dict[str, Any] = {
        "queue": QUEUE,
        "execute_command": True,
        "job_role_arn": "arn:aws:iam::123456789012:role/job",
    }
    app_id = scheduler.submit(AppDef("job", [role]), cfg)
    cloud.job(app_id)["status"] = "RUNNING"
    cloud.job(app_id)["container"]["taskArn"] = "arn:aws:ecs:us-east-1:123456789012:task/AWSBatch-ce/0123456789abcdef"

    def end() -> None:
        scheduler.cancel(app_id)
        container.kill()

    yield Place(scheduler, app_id, "r", end)
    scheduler.close()


class TestInsideBatch(InsideContract):
    """The contract."""

    def test_its_environment_is_the_replicas(self, place: Place) -> None:
        """Whatever is in a value."""
        assert place.run("sh", "-c", 'printf %s "$LINES"').stdout == b"one\ntwo 'x' \\n"
