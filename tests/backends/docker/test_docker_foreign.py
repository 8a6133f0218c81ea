"""Containers that torchx did not make, on a real engine: as `docker run` and `docker stop` leave them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from torchx.errors import NotSupportedError
from torchx.runner import Runner
from torchx.schedulers.docker_scheduler import create_scheduler
from torchx.specs import AppState
from torchx.specs.failures import parse_failure


@pytest.fixture
def runner() -> Iterator[Runner]:
    """A Runner that knows the engine alone."""
    with Runner("test", {"local_docker": create_scheduler}) as made:
        yield made


@pytest.fixture
def run(docker_image: str) -> Iterator[Callable[..., Any]]:
    """`docker run -d`; containers go with the test."""
    client = docker.from_env()
    made = []

    def start(command: str, **options: Any) -> Any:
        name = f"torchx-foreign-{os.getpid()}-{len(made)}"
        made.append(client.containers.run(docker_image, ["sh", "-c", command], name=name, detach=True, **options))
        return made[-1]

    yield start
    for container in made:
        container.remove(force=True)
    client.close()


def test_why_it_failed(runner: Runner, run: Callable[..., Any]) -> None:
    """Exit code and last words; by name, and by the id that `docker ps` shows."""
    container = run("echo begun; echo 'ValueError: no such frob' >&2; exit 3")
    container.wait()
    found = runner.why(container.name)
    assert found.handle == f"local_docker://foreign/{container.id[:12]}"
    assert found.status.state is AppState.FAILED
    assert found.status.msg == f"{container.name}/0: exit code 3: ValueError: no such frob"
    assert sorted(found.lines) == ["ValueError: no such frob\n", "begun\n"]
    assert found.about["name"] == container.name
    assert runner.why(container.id[:12]).handle == runner.why(f"docker://{container.name}").handle == found.handle
    assert runner.runs() == []


def test_memory(runner: Runner, run: Callable[..., Any]) -> None:
    """The engine's own word for it, as of containers of ours."""
    container = run("tail /dev/zero", mem_limit="16m", memswap_limit="16m")
    container.wait()
    found = runner.why(container.name)
    cause = parse_failure(found.status.structured_error_msg)
    assert cause is not None
    if container.client.containers.get(container.id).attrs["State"]["OOMKilled"]:
        assert cause.kind == "oom"
    assert "killed by SIGKILL" in found.status.msg or "out of memory" in found.status.msg


def test_adopted(runner: Runner, run: Callable[..., Any]) -> None:
    """It is followed by its name, and stopped by force alone."""
    container = run("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done")
    handle = runner.adopt(container.name, name="web")
    assert runner.status("@web").state is AppState.RUNNING
    with pytest.raises(NotSupportedError):
        runner.cancel("@web")
    with pytest.raises(NotSupportedError):
        runner.delete("@web")
    container.reload()
    assert container.status == "running"
    runner.cancel(handle, force=True)
    ended = runner.wait("@web", wait_interval=0.2, timeout=120)
    assert ended is not None
    assert ended.state is AppState.SUCCEEDED, "it handles the signal"
