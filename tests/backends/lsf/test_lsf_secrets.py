"""Secrets on LSF: replicas read them from a file that the end of the job removes; LSF gets to know none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.backends.canaries import SHOW, Canaries
from tests.backends.lsf.conftest import Job, command, eventually
from tests.backends.lsf.lookalike.config import Config
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppState, RetryPolicy, is_terminal


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> Canaries:
    """Values of this test, in our environment, as ``export`` puts them there."""
    made = Canaries()
    monkeypatch.setenv("MY_CANARY", made.values[0])
    monkeypatch.setenv("CANARY_TOKEN", made.values[1])
    return made


def lines(scheduler: LsfScheduler, app_id: str, k: int = 0) -> list[str]:
    """The replica's output."""
    return list(scheduler.log_iter(app_id, "r", k))


def ended(scheduler: LsfScheduler, app_id: str) -> AppState:
    """The job's last state."""
    eventually(lambda: (found := scheduler.describe(app_id)) is not None and is_terminal(found.state))
    found = scheduler.describe(app_id)
    assert found is not None
    return found.state


def check(canaries: Canaries, cluster: Config, *, file_is_there: bool = False) -> None:
    """No value is anywhere; while the job has need of it, it is in one file, the user's own."""
    assert canaries.found_in([command("bjobs", "-a", "-l")]) == []
    assert canaries.command_lines() == []
    files = canaries.files_below(os.environ["TORCHX_HOME"], os.environ["LSF_ENVDIR"])
    assert [path.name for path in files] == ["secrets.sh"] * file_is_there
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


@pytest.mark.parametrize("code", [0, 3])
def test_after_the_job_nothing_is_left(
    canaries: Canaries, cluster: Config, scheduler: LsfScheduler, submit: Job, tmp_path: Path, code: int
) -> None:
    """Two replicas have their secrets, and the file is gone with the last of them."""
    go = tmp_path / "go"
    app_id = submit(f"{SHOW}; until [ -e {go} ]; do sleep 0.1; done; exit {code}", 2, env=canaries.env)
    eventually(lambda: [lines(scheduler, app_id, k) for k in (0, 1)] == [canaries.shown()] * 2)
    check(canaries, cluster, file_is_there=True)
    go.touch()
    assert ended(scheduler, app_id) is (AppState.FAILED if code else AppState.SUCCEEDED)
    check(canaries, cluster)


@pytest.mark.parametrize("policy", ["APPLICATION", "REPLICA"])
def test_they_are_there_again(
    canaries: Canaries, cluster: Config, scheduler: LsfScheduler, submit: Job, tmp_path: Path, policy: str
) -> None:
    """A job that is put back into the queue has its secrets once more."""
    again = tmp_path / "again"
    app_id = submit(
        f"{SHOW}; [ -e {again} ] || {{ touch {again}; exit 1; }}",
        env=canaries.env,
        max_retries=1,
        retry_policy=RetryPolicy(policy),
    )
    assert ended(scheduler, app_id) is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == canaries.shown() * 2
    check(canaries, cluster)


def test_cancel(canaries: Canaries, cluster: Config, scheduler: LsfScheduler, submit: Job) -> None:
    """The file of a job that may be put back into the queue is gone, too."""
    app_id = submit(f"{SHOW}; sleep 600", 2, env=canaries.env, max_retries=1)
    eventually(lambda: lines(scheduler, app_id, 1) == canaries.shown())
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id) is AppState.CANCELLED
    check(canaries, cluster)
