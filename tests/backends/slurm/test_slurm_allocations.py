"""Jobs within an allocation that the user holds, on a real cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.backends.slurm.conftest import Job, becomes, ended, running, until
from torchx.schedulers.kit.inside.run import run
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppState


def _slurm(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def allocation() -> Iterator[str]:
    """A running allocation of two nodes, as of `salloc`."""
    argv = ["salloc", "--no-shell", "-N2", "-n2", "--mem=200", "-t", "20"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stderr
    job_id = next(word for word in said.split() if word.isdigit())
    yield job_id
    subprocess.run(["scancel", job_id], check=False)


def _log(scheduler: SlurmScheduler, app_id: str, k: int = 0) -> list[str]:
    (lines,) = scheduler.open_logs(app_id, [("r", k)], LogQuery())
    return [*lines]


def test_tries_in_an_allocation(allocation: str, submit: Job, scheduler: SlurmScheduler) -> None:
    """Several at once, each with its nodes, log, end and cause; a cancelled one ends, the others and the allocation go on."""
    cfg = {"in": allocation}
    forever = submit("trap 'echo saving; exit 0' TERM; echo up; while :; do sleep 0.1; done", cfg=cfg)
    running(scheduler, forever)
    becomes(lambda: _log(scheduler, forever), ["up\n"])
    both = submit("echo $TORCHX_REPLICA_ID $SLURM_JOB_ID $SLURMD_NODENAME; exit $TORCHX_REPLICA_ID", 2, cfg=cfg)
    assert {both.partition(".")[0], forever.partition(".")[0]} == {allocation}
    found = ended(scheduler, both)
    assert found.state is AppState.FAILED
    assert "exit code 1" in found.msg
    nodes = _slurm("scontrol", "show", "hostnames", _slurm("squeue", "-h", "-j", allocation, "-o", "%N")).split()
    assert [_log(scheduler, both, k) for k in (0, 1)] == [[f"{k} {allocation} {nodes[k]}\n"] for k in (0, 1)]
    with scheduler.enter(forever, "r", 0, ["sh", "-c", "echo $TORCHX_ROLE_NAME $SLURM_JOB_ID"]) as inside:
        assert run(inside).stdout.decode() == f"r {allocation}\n"
    scheduler.cancel(forever)
    assert ended(scheduler, forever).state is AppState.CANCELLED
    assert _log(scheduler, forever)[:2] == ["up\n", "saving\n"]
    assert _slurm("squeue", "-h", "-j", allocation, "-o", "%T") == "RUNNING"
    assert ended(scheduler, submit("true", cfg=cfg)).state is AppState.SUCCEEDED
    becomes(lambda: _slurm("squeue", "-h", "-s", "-j", allocation, "-o", "%i"), "")


def test_a_job_ends_with_its_allocation(allocation: str, submit: Job, scheduler: SlurmScheduler) -> None:
    """The reason is the allocation."""
    app_id = submit("sleep 1000", cfg={"in": allocation})
    running(scheduler, app_id)
    _slurm("scancel", allocation)
    found = until(scheduler, app_id, lambda job: job.state is AppState.CANCELLED)
    assert f"its allocation {allocation} has ended" in found.msg


def test_a_deaf_job_is_killed(allocation: str, submit: Job, scheduler: SlurmScheduler) -> None:
    """By the second `cancel`, at once."""
    app_id = submit("trap '' TERM; while :; do sleep 0.1; done", cfg={"in": allocation})
    running(scheduler, app_id)
    scheduler.cancel(app_id)
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id, 25).state is AppState.CANCELLED
    becomes(lambda: _slurm("squeue", "-h", "-s", "-j", allocation, "-o", "%i"), "", 25)
