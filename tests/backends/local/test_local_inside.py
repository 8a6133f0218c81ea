"""Processes inside replicas of local jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.inside import InsideContract, Place
from tests.backends.local.conftest import Job
from torchx.errors import NotFoundError
from torchx.schedulers.local_scheduler import LocalScheduler
from torchx.specs.api import AppState


def until_running(scheduler: LocalScheduler, app_id: str, mark: Path) -> None:
    """Returns when the job has made a file, and is known to run: the one may come before the other."""
    while not mark.exists() or (found := scheduler.describe(app_id)) is None or found.state is not AppState.RUNNING:
        time.sleep(0.01)


@pytest.fixture
def place(scheduler: LocalScheduler, submit: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.chdir(folder)
    app_id = submit(": >mark; exec sleep 1000", env={"GREETING": "hello, 世界", "MARK_FILE": "mark"})
    monkeypatch.chdir(tmp_path)
    until_running(scheduler, app_id, folder / "mark")

    def end() -> None:
        scheduler.cancel(app_id)
        while (found := scheduler.describe(app_id)) is None or found.state is not AppState.CANCELLED:
            scheduler.wait_for_end(app_id, 10)

    yield Place(scheduler, app_id, "r", end)
    end()


class TestInsideLocal(InsideContract):
    """The contract."""

    def test_limits_are_the_replicas(
        self, scheduler: LocalScheduler, submit: Job, place: Place, tmp_path: Path
    ) -> None:
        """Not those of whoever comes to look."""
        narrow = place._replace(app_id=submit(f"ulimit -S -n 77; : >{tmp_path}/limited; exec sleep 1000"))
        try:
            until_running(scheduler, narrow.app_id, tmp_path / "limited")
            assert narrow.run("sh", "-c", "ulimit -n").stdout == b"77\n"
        finally:
            scheduler.cancel(narrow.app_id)

    def test_a_process_of_another_is_not_entered(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pid that the system has given to somebody else since is found out by what its environment lacks."""
        monkeypatch.setattr("torchx.schedulers.local.inside.environment", lambda _: {"HOME": "/"})
        with pytest.raises(NotFoundError, match="just ending"):
            place.run("true")
