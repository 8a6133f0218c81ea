"""What sites and users bring, on a real cluster: their shell, their scripts, wrappers of `sbatch`, and accidents."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.backends.slurm.conftest import Job, becomes, command, ended, lines, running
from torchx.components import utils
from torchx.schedulers.api import NONE
from torchx.schedulers.batch.inherit import RULES
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, Role

_HARMFUL = {
    **{"SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "closed", "SBATCH_ARRAY_INX": "1-3", "SBATCH_WAIT": "1"},
    **{"SBATCH_JOB_NAME": "x", "SBATCH_MEM_PER_CPU": "7", "SBATCH_OUTPUT": "/dev/null", "SQUEUE_PARTITION": "closed"},
    **{"SQUEUE_USERS": "nobody", "SQUEUE_NAMES": "y", "SQUEUE_ACCOUNT": "z", "SQUEUE_QOS": "q", "SQUEUE_SORT": "-i"},
    **{"SQUEUE_LICENSES": "l", "SINFO_FORMAT": "%n", "SCANCEL_USER": "nobody", "SCANCEL_STATE": "SUSPENDED"},
    **{"SLURM_GRES": "gpu:9", "SLURM_EXCLUSIVE": "1", "SLURM_CONSTRAINT": "x", "SLURM_HET_SIZE": "2"},
    **{"SLURM_SRUN_MULTI": "1", "SLURM_TIMELIMIT": "1", "SLURM_HOSTFILE": "/x", "SLURM_LABELIO": "1"},
}


def test_the_shell_of_the_user(
    submit: Job, scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """None of its variables beats what torchx was told, or hides the job."""
    assert {name for name in _HARMFUL if name[:6] != "SBATCH"} <= RULES["slurm"].dropped
    for name, value in _HARMFUL.items():
        monkeypatch.setenv(name, value)
    app_id = submit("echo $SLURM_JOB_PARTITION; exec sleep 1000", cfg={"partition": "main", "time": "9"})
    assert running(scheduler, app_id).state is AppState.RUNNING
    assert app_id in {job.app_id for job in scheduler.list()}
    shown = command("scontrol", "show", "job", app_id)
    assert "TimeLimit=00:09:00" in shown
    assert "ArrayTaskId" not in shown
    becomes(lambda: lines(scheduler, app_id), ["main\n"])
    assert "TimeLimit=UNLIMITED" in command("scontrol", "show", "step", f"{app_id}.0")
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state is AppState.CANCELLED
    assert lines(scheduler, app_id) == ["main\n"]


def test_functions_of_the_shell(scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has them, such as `module`, even if /bin/sh would drop them."""
    monkeypatch.setenv("BASH_FUNC_say_hi%%", "() {  echo hi\n}")
    role = Role("r", "", entrypoint="bash", args=["-c", "say_hi"], resource=Resource(cpu=1, gpu=0, memMB=100))
    app_id = scheduler.submit(AppDef("functions", [role]), {})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == ["hi\n"]


def test_a_heterogeneous_script(scheduler: SlurmScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is that of the first component; the others write none."""
    monkeypatch.chdir(tmp_path)
    options = "#SBATCH --time=5 --nodes=1 --tasks=1 --mem=100\n"
    Path("het.sbatch").write_text(f"#!/bin/bash\n{options}#SBATCH hetjob\n{options}echo both\n")
    app_id = scheduler.submit(utils.sbatch("het.sbatch"), {})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    replicas = scheduler.log_replicas(app_id)
    assert replicas == [("component", 0)]
    assert [line for log in scheduler.open_logs(app_id, replicas, LogQuery()) for line in log] == ["both\n"]


def test_a_victim_that_handles_the_signal(submit: Job, scheduler: SlurmScheduler) -> None:
    """It was stopped, whatever its exit code."""
    victim = "trap 'exit 1' TERM; while :; do sleep 0.1; done"
    app_id = submit(f"if [ $TORCHX_REPLICA_ID = 0 ]; then sleep 1; exit 5; fi; {victim}", 2)
    found = ended(scheduler, app_id)
    assert [r.state.name for r in found.roles_statuses[0].replicas] == ["FAILED", "CANCELLED"]


def test_who_holds_it(submit: Job, scheduler: SlurmScheduler) -> None:
    """A job in REQUEUE_HOLD says so, without a forecast."""
    app_id = submit("sleep 1000")
    running(scheduler, app_id)
    command("scontrol", "requeuehold", app_id)
    becomes(lambda: "is held" in (scheduler.describe(app_id) or pytest.fail("gone")).msg, wanted=True)
    assert "expected to start" not in (scheduler.describe(app_id) or pytest.fail("gone")).msg


def test_cancelled_by_somebody_else(submit: Job, scheduler: SlurmScheduler) -> None:
    """It says by whom; of its owner's own cancellation nothing is said."""
    operator = "adminlevel=Operator"
    subprocess.run(
        ["sacctmgr", "-i", "add", "user", "nobody", "account=acct", operator], check=False, capture_output=True
    )
    jobs = [submit("sleep 600"), submit("sleep 600"), submit("true", cfg={"extra": ["--hold"]})]
    for app_id in jobs[:2]:
        running(scheduler, app_id)
    command("scancel", jobs[0])
    command("setpriv", "--reuid=nobody", "--clear-groups", "scancel", *jobs[1:])
    found = [ended(scheduler, app_id) for app_id in jobs]
    assert {answer.state for answer in found} == {AppState.CANCELLED}
    # accounting lags
    becomes(lambda: said(scheduler, jobs), [NONE, *["it was cancelled by nobody"] * 2], within_s=60)


def said(scheduler: SlurmScheduler, jobs: list[str]) -> list[str]:
    """What is said of the jobs."""
    return [answer.msg for answer in scheduler.describe_many(jobs).values() if answer is not None]


def test_a_step_that_cannot_start(submit: Job, scheduler: SlurmScheduler) -> None:
    """The line of its log is the cause."""
    found = ended(scheduler, submit(": " + "x" * 200_000))
    assert "Argument list too long" in found.msg


def test_a_killed_replica_does_not_go_on(submit: Job, scheduler: SlurmScheduler) -> None:
    """All its processes get the signal at once."""
    for _ in range(4):
        app_id = submit("echo up; sleep 1000; echo done")
        becomes(functools.partial(lines, scheduler, app_id), ["up\n"])
        scheduler.simulate(app_id, "kill", ("r", 0)).make()
        assert ended(scheduler, app_id).state is AppState.FAILED
        assert lines(scheduler, app_id) == ["up\n"]


def test_a_sweep_whose_command_is_killed(tmp_path: Path) -> None:
    """Either nothing was submitted, or every task of all arrays runs once."""
    script = f"echo {{k}} >>{tmp_path}/ran.$SLURMD_NODENAME"
    argv = ["sweep", "-s", "slurm", "--workspace=", "--name", "killed", "--grid", "k=0..1499", "utils.sh", "--", script]
    began = time.monotonic()
    whole = subprocess.Popen([sys.executable, "-m", "torchx", *argv], cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert whole.wait() == 0
    took = time.monotonic() - began
    _all_ran(tmp_path, 1500)
    for path in tmp_path.glob("ran.*"):
        path.unlink()
    killed = subprocess.Popen([sys.executable, "-m", "torchx", *argv], cwd=tmp_path, stdout=subprocess.DEVNULL)
    time.sleep(took * random.uniform(0.5, 0.95))  # at any moment
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    if command("squeue", "-h", "--me", "--states=all", "--name=killed", "--format=%i") or list(tmp_path.glob("ran.*")):
        _all_ran(tmp_path, 1500)


def _all_ran(folder: Path, count: int) -> None:
    def ran() -> list[int]:
        return sorted(int(word) for path in folder.glob("ran.*") for word in path.read_text().split())

    becomes(lambda: len(ran()) >= count, wanted=True, within_s=600)
    assert ran() == list(range(count))
