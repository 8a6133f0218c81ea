"""Secrets on a real cluster that keeps scripts and environments of jobs: the steps have them, and nothing else does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.backends.canaries import SHOW, Canaries
from tests.backends.slurm import cluster
from tests.backends.slurm.conftest import Job, becomes, command, ended, lines, running, start_now, until, wait_for
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppState, RetryPolicy


@pytest.fixture(scope="module", autouse=True)
def keeps_all(slurm: None) -> None:
    """Slurm's database keeps scripts and environments."""
    if "job_env" not in command("scontrol", "show", "config").partition("AccountingStoreFlags")[2].partition("\n")[0]:
        cluster.write_config()
        command("scontrol", "reconfigure")


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> Canaries:
    """Values of this test; one is in our environment, as ``export`` puts it there."""
    made = Canaries()
    monkeypatch.setenv("MY_CANARY", made.values[0])
    monkeypatch.setenv("CANARY_TOKEN", made.values[1])
    return made


def kept(app_id: str) -> list[str]:
    """What Slurm says of the job, its script and its environment."""
    asked = [
        ["scontrol", "show", "job", app_id],
        ["scontrol", "write", "batch_script", app_id, "-"],
        ["sacct", "-B", "-j", app_id],
        ["sacct", "--env-vars", "-j", app_id],
        ["sacct", "-P", "-o", "ALL", "-j", app_id],
    ]
    return [subprocess.run(argv, capture_output=True, text=True, check=False).stdout for argv in asked]


def check(canaries: Canaries, app_id: str, *, file_is_there: bool = False) -> None:
    """No value is anywhere; while the job has need of it, it is in one file, the user's own."""
    becomes(lambda: "job.sh" in kept(app_id)[2] or "replica_0" in kept(app_id)[2], True)  # accounting hears of it later
    assert canaries.found_in(kept(app_id)) == []
    assert canaries.command_lines() == []
    files = canaries.files_below(os.environ["TORCHX_HOME"])
    assert [path.name for path in files] == ["secrets.sh"] * file_is_there
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


@pytest.mark.parametrize("code", [0, 3])
def test_after_the_job_nothing_is_left(
    canaries: Canaries, scheduler: SlurmScheduler, submit: Job, tmp_path: Path, code: int
) -> None:
    """Two replicas have their secrets, and the file is gone with the job, however it ends."""
    app_id = submit(f"{SHOW}; {wait_for(tmp_path / 'go')}; exit {code}", 2, env=canaries.env)
    running(scheduler, app_id)
    becomes(lambda: [lines(scheduler, app_id, k) for k in (0, 1)], [canaries.shown()] * 2)
    check(canaries, app_id, file_is_there=True)
    (tmp_path / "go").touch()
    assert ended(scheduler, app_id).state is (AppState.FAILED if code else AppState.SUCCEEDED)
    check(canaries, app_id)


def test_cancel(canaries: Canaries, scheduler: SlurmScheduler, submit: Job) -> None:
    """The file is gone, that of a job which may be put back into the queue, too."""
    app_id = submit(f"{SHOW}; sleep 600", env=canaries.env, max_retries=1)
    until(scheduler, app_id, lambda _: lines(scheduler, app_id) == canaries.shown())
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state is AppState.CANCELLED
    check(canaries, app_id)


def test_ended_by_scancel(canaries: Canaries, scheduler: SlurmScheduler, submit: Job) -> None:
    """The script itself removes the file then: Slurm does not put the job back into the queue."""
    app_id = submit(f"{SHOW}; sleep 600", env=canaries.env, max_retries=1)
    until(scheduler, app_id, lambda _: lines(scheduler, app_id) == canaries.shown())
    command("scancel", app_id)
    assert ended(scheduler, app_id).state is AppState.CANCELLED
    check(canaries, app_id)


def test_a_job_that_never_began(canaries: Canaries, scheduler: SlurmScheduler, submit: Job) -> None:
    """Cancelled in the queue."""
    app_id = submit(SHOW, env=canaries.env, cfg={"extra": ["--hold"]})
    scheduler.cancel(app_id)
    assert canaries.files_below(os.environ["TORCHX_HOME"]) == []


@pytest.mark.parametrize("policy", ["APPLICATION", "REPLICA"])
def test_it_is_there_again(
    canaries: Canaries, scheduler: SlurmScheduler, submit: Job, tmp_path: Path, policy: str
) -> None:
    """A job that is put back into the queue, and a replica that is started again, have their secrets once more."""
    app_id = submit(
        f"{SHOW}; [ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; exit 1; }}",
        env=canaries.env,
        max_retries=1,
        retry_policy=RetryPolicy(policy),
    )
    if policy == "APPLICATION":
        until(scheduler, app_id, lambda found: found.num_restarts == 1 or found.state is AppState.PENDING)
        becomes(lambda: "Restarts=1" in kept(app_id)[0], True)
        start_now(app_id)
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == canaries.shown() * 2
    check(canaries, app_id)


def test_preempted(canaries: Canaries, scheduler: SlurmScheduler, submit: Job) -> None:
    """A job of a partition of higher priority takes the node; the secrets are there when it comes back."""
    app_id = submit(
        f'{SHOW}; [ -n "$SLURM_RESTART_COUNT" ] || exec sleep 600',
        env=canaries.env,
        cfg={"nodelist": "n2"},
        max_retries=1,
    )
    until(scheduler, app_id, lambda _: lines(scheduler, app_id) == canaries.shown())
    command("sbatch", "--partition=urgent", "--nodelist=n2", "--exclusive", "--wrap=sleep 5", "--output=/dev/null")
    becomes(lambda: "Restarts=1" in kept(app_id)[0], True)
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == canaries.shown() * 2
    check(canaries, app_id)


def test_slurm_ends_it_and_puts_it_back(canaries: Canaries, scheduler: SlurmScheduler, submit: Job) -> None:
    """As it does when a more important job needs the nodes."""
    app_id = submit(f"{SHOW}; exec sleep 600", env=canaries.env, max_retries=1)
    until(scheduler, app_id, lambda _: lines(scheduler, app_id) == canaries.shown())
    command("scontrol", "requeue", app_id)
    becomes(lambda: "JobState=PENDING" in kept(app_id)[0], True)
    start_now(app_id)
    until(scheduler, app_id, lambda _: lines(scheduler, app_id) == canaries.shown() * 2)
    check(canaries, app_id, file_is_there=True)
    scheduler.delete(app_id)
    assert canaries.files_below(os.environ["TORCHX_HOME"]) == []
