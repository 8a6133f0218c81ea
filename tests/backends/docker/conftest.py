"""Real jobs on a real Docker engine: nothing of them may be left behind in it."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("docker")

from tests.backends import leftovers
from tests.backends.docker import engine
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.docker_scheduler import DockerScheduler, create_scheduler
from torchx.specs.api import AppDef, AppState, BindMount, Resource, Role, is_terminal

MEET = 'meet() { : > /meet/$1-$(hostname); until [ $(ls /meet | grep -c "^$1-") -ge $2 ]; do sleep 0.1; done; }; '
"""Shell: ``meet NAME N`` returns once N replicas have come to the meeting of that name."""
Job = Callable[..., str]
SESSION = f"docker-tests-{os.getpid()}"
PATIENCE_S = 180.0
"""For what comes in any case, on a machine however slow."""


@pytest.fixture(scope="session")
def docker_image() -> Iterator[str]:
    """The test image on the engine of this machine, which is started (and stopped again) if none answers."""
    try:
        started = engine.up()
        tag = engine.image()
    except engine.Unavailable as e:
        pytest.skip(f"no Docker engine can be had: {e}")
    yield tag
    leftovers.gone("watcher.py", PATIENCE_S)  # of jobs whose containers a slow engine is still removing
    if started:
        engine.down()


@pytest.fixture
def scheduler(docker_image: str) -> Iterator[DockerScheduler]:
    """A scheduler whose jobs are all gone at the end of the test."""
    made = create_scheduler(SESSION)
    yield made
    for job in made.list():
        if f"//{SESSION}/" in job.app_handle:
            made.delete(job.app_id)
    made.close()


@pytest.fixture
def meet(tmp_path: Path) -> Path:
    """A folder of this machine that a role with ``mounts=at(meet)`` has as /meet: there replicas wait for each other, or
    for the test."""
    folder = tmp_path / "meet"
    folder.mkdir()
    return folder


def at(meet: Path) -> list[BindMount]:
    return [BindMount(str(meet), "/meet")]


@pytest.fixture
def submit(scheduler: DockerScheduler, docker_image: str) -> Job:
    """Submit ``sh -c command`` in ``n`` replicas; further keywords are the role's, ``cfg`` the run options."""

    def run(command: str, n: int = 1, *, cfg: dict | None = None, **role: Any) -> str:
        return scheduler.submit(AppDef("job", [role_of(command, n, image=docker_image, **role)]), cfg or {})

    return run


def role_of(command: str, n: int = 1, *, name: str = "r", image: str = engine.IMAGE, **role: Any) -> Role:
    """A role that runs a line of shell."""
    role.setdefault("resource", Resource(cpu=0.5, gpu=0, memMB=128))  # type: ignore[arg-type]  # a part of a CPU: more than the annotation promises
    return Role(name, image, entrypoint="sh", args=["-c", command], num_replicas=n, **role)


def ended(scheduler: DockerScheduler, app_id: str, within_s: float = PATIENCE_S) -> DescribeAppResponse:
    """What became of the job, once all of its replicas have ended."""
    return reached(scheduler, app_id, lambda states: all(map(is_terminal, states)), within_s)


def running(scheduler: DockerScheduler, app_id: str, within_s: float = PATIENCE_S) -> DescribeAppResponse:
    """The job, once all of its replicas run."""
    return reached(scheduler, app_id, lambda states: set(states) == {AppState.RUNNING}, within_s)


def reached(
    scheduler: DockerScheduler, app_id: str, condition: Callable[[list[AppState]], bool], within_s: float = PATIENCE_S
) -> DescribeAppResponse:
    """The job, once the states of its replicas are as they should be."""
    deadline = time.monotonic() + within_s
    while True:
        found = scheduler.describe(app_id)
        assert found is not None, f"{app_id} is gone"
        if condition([r.state for role in found.roles_statuses for r in role.replicas]):
            return found
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.1)


def lines(scheduler: DockerScheduler, app_id: str, k: int = 0, role: str = "r", **query: Any) -> list[str]:
    """The replica's output."""
    return list(scheduler.log_iter(app_id, role, k, **query))


def wrote(
    scheduler: DockerScheduler, app_id: str, expected: list[str], k: int = 0, role: str = "r", **query: Any
) -> None:
    """Wait until this is the replica's whole output: an engine may be a moment behind, even after the end."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := lines(scheduler, app_id, k, role, **query)) != expected:
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.1)


def watcher_gone(app_id: str) -> None:
    """Wait until the job's watcher has ended."""
    leftovers.gone(f"watcher.py {app_id}", PATIENCE_S)


def state_of(app: DescribeAppResponse) -> list[AppState]:
    """The states of all replicas."""
    return [r.state for role in app.roles_statuses for r in role.replicas]


def put_file(scheduler: DockerScheduler, container: str, name: str) -> None:
    """An empty file in the container's /tmp. (By a command in it, Podman would leave a process for five minutes.)"""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    scheduler._docker_client.api.put_archive(container, "/tmp", packed.getvalue())


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[engine.Engine]:
    """An engine that is the test's own, in a network namespace of its own; not started yet."""
    try:
        engine.install("dockerd", "docker.io")
    except engine.Unavailable as e:
        pytest.skip(str(e))
    # A socket's path has 108 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="own-", dir=engine.STATE.parent))
    made = engine.Engine(folder, f"{folder}/e.sock", own_network=True)
    yield made
    made.remove()
