"""Processes inside containers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.backends.docker.conftest import Job, ended, lines, running
from tests.backends.inside import InsideContract, Place
from torchx.errors import NotSupportedError
from torchx.schedulers.docker_scheduler import DockerScheduler


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


class TestInsideDocker(InsideContract):
    """The contract."""

    def test_a_client_that_knows_the_way_alone(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where only a program's own client reaches the engine, it is said, and what helps."""
        monkeypatch.setattr(place.scheduler._on_engine, "environment", lambda: None)
        with pytest.raises(NotSupportedError) as refused:
            place.run("true")
        assert "DOCKER_HOST" in refused.value.hint


def test_a_command_in_a_container(place: Place) -> None:
    """Its input, its output and its exit code; a signal ends it."""
    assert place.run("sh", "-c", "cat; exit 7", stdin=b"\0\xff") == (7, b"\0\xff", b"")
    with place.open("sleep", "1000") as process:
        process.send_signal(signal.SIGTERM)
        assert (process.read(), process.wait()) == (None, 143)
