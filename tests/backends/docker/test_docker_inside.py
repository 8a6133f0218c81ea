"""Processes inside containers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.docker.conftest import SESSION, Job, ended, lines, role_of, running
from tests.backends.inside import CutContract, InsideContract, Place
from tests.backends.shell import Shell
from tests.backends.ssh.sshd import Link
from torchx.errors import BackendError, NotSupportedError
from torchx.runner.inside.copy import download, upload
from torchx.schedulers.docker_scheduler import DockerScheduler, create_scheduler
from torchx.specs.api import AppDef


@pytest.fixture
def place(scheduler: DockerScheduler, submit: Job, tmp_path: Path) -> Place:
    app_id = submit("cd /; : >mark; echo up; exec sleep 1000", env={"GREETING": "hello, 世界", "MARK_FILE": "mark"})
    running(scheduler, app_id)
    while not lines(scheduler, app_id):
        pass

    def end() -> None:
        scheduler.cancel(app_id)
        ended(scheduler, app_id)

    return Place(scheduler, app_id, "r", end)


@pytest.fixture
def link(docker_image: str) -> Iterator[Link]:
    made = Link(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
    yield made
    made.close()


@pytest.fixture
def far(place: Place, link: Link, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The same, by an engine on another machine."""
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{link.port}")
    scheduler = create_scheduler(SESSION)
    yield place._replace(scheduler=scheduler)
    scheduler.close()


class TestCutDocker(CutContract):
    """The contract of links that are cut."""


class TestInsideDocker(InsideContract):
    """The contract."""

    def test_a_client_that_knows_the_way_alone(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where only a program's own client reaches the engine, it is said, and what helps."""
        monkeypatch.setattr(place.scheduler._on_engine, "environment", lambda: None)
        with pytest.raises(NotSupportedError) as refused:
            place.run("true")
        assert "DOCKER_HOST" in refused.value.hint


def test_files_that_the_engine_does_not_see(place: Place, tmp_path: Path) -> None:
    """A file system in memory, which may as well begin below the folder that is copied."""
    (tmp_path / "ours/dev/shm").mkdir(parents=True)
    for name in ("ours/dev/shm/a", "ours/b"):
        (tmp_path / name).write_text(name)
    assert upload(place.start, f"{tmp_path}/ours/dev/shm/", "/dev/shm", archive=place.archive).files == 1
    assert upload(place.start, f"{tmp_path}/ours/", "/", archive=place.archive).files == 1
    assert place.run("cat", "/dev/shm/a", "/b").stdout == b"ours/dev/shm/aours/b"
    place.run("rm", "/dev/shm/a")
    assert upload(place.start, f"{tmp_path}/ours/", "/", archive=place.archive).files == 1
    assert place.run("cat", "/dev/shm/a").stdout == b"ours/dev/shm/a"
    assert download(place.start, "/dev/shm", str(tmp_path / "out"), archive=place.archive).files == 1
    assert (tmp_path / "out/a").read_text() == "ours/dev/shm/a"


@pytest.fixture
def users_image(scheduler: DockerScheduler, docker_image: str) -> Iterator[str]:
    """The test image, whose programs run as a user."""
    made = scheduler._client.containers.create(docker_image)
    image = made.commit("torchx-test/user", "1", changes="USER 1234:2345")
    made.remove()
    yield "torchx-test/user:1"
    for container in scheduler._client.containers.list(all=True, filters={"ancestor": image.id}):
        container.remove(force=True)
    scheduler._client.images.remove(image.id, force=True)


def test_files_belong_to_who_runs_there(scheduler: DockerScheduler, users_image: str, tmp_path: Path) -> None:
    """And where that user may not write, the engine does not, either."""
    app_id = scheduler.submit(AppDef("job", [role_of("exec sleep 1000", image=users_image)]), {})
    running(scheduler, app_id)
    place = Place(scheduler, app_id, "r", lambda: None)
    (tmp_path / "a").write_text("a")
    assert upload(place.start, str(tmp_path / "a"), "/tmp/mine/a", archive=place.archive).files == 1
    assert place.run("stat", "-c", "%u:%g", "/tmp/mine/a", "/tmp/mine").stdout.split() == [b"1234:2345"] * 2
    with pytest.raises(BackendError, match="Permission denied"):
        upload(place.start, str(tmp_path / "a"), "/etc/a", archive=place.archive)
    assert place.run("test", "-e", "/etc/a").exit_code == 1


def test_a_session(docker_image: str, shell: Shell, eventually: Callable[..., object]) -> None:
    """A shell in a container that ends with it."""
    handle = shell.session("-s", "local_docker", "--workspace=", "utils.session", "--image", docker_image)
    eventually(lambda: "CANCELLED" in shell.torchx("status", handle, check=False))
    shell.torchx("delete", handle)


def test_a_command_in_a_container(place: Place) -> None:
    """Its input, its output and its exit code; a signal ends it."""
    assert place.run("sh", "-c", "cat; exit 7", stdin=b"\0\xff") == (7, b"\0\xff", b"")
    with place.open("sleep", "1000") as process:
        process.send_signal(signal.SIGTERM)
        assert (process.read(), process.wait()) == (None, 143)
