"""The script of LSF's replicas, run by bash with a scripted ``bjobs``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppDef, Resource, Role

RANK0 = "rank0.0.0"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder of a job of two replicas, which print the host of replica 0; they poll without pauses."""
    folder = tmp_path / "job"
    folder.mkdir()
    args = ["-c", 'echo "$TORCHX_RANK0_HOST ${TORCHX_RANK0_PORT-}"']
    role = Role("r", "", entrypoint="sh", args=args, num_replicas=2, resource=Resource(1, 0, 64))
    (folder / "replicas.sh").write_text(without_pauses(role))
    return folder


def without_pauses(role: Role) -> str:
    """The script of the replicas of a role."""
    script = LsfScheduler("s").submit_dryrun(AppDef("job", [role]), {}).request.replicas()
    pause = "torchx_pause() { local _; "
    assert pause in script
    return script.replace(pause, 'ls() { :; }; torchx_pause() { [ "$1" = 0.5 ] || sleep 0.01; return; ')


def second(job: Path, bjobs: str) -> int:
    """Run replica 1; its exit code. ``bjobs``: what that program does, in the job's folder, each time it is asked about
    replica 0."""
    programs = job.parent / "bin"
    programs.mkdir()
    asked = f'case "$*" in *-J*) echo x >>asked; {bjobs} ;; esac'
    for name, text in (("bjobs", f"cd {job}; {asked}"), ("bkill", ":")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LSB_JOBID": "7"}
    argv = ["bash", str(job / "replicas.sh"), "0", "1"]
    return subprocess.run(argv, cwd=job, env=env, capture_output=True, check=False).returncode


@pytest.mark.parametrize("stat", ["RUN", "DONE", "EXIT"])
def test_replica_0_says_where_it_is_while_lsf_is_asked(job: Path, stat: str) -> None:
    """Its own file counts, including the port, even if it has ended since or LSF's answer is late."""
    assert second(job, f"echo here 20007 >{RANK0}; echo {stat},4*elsewhere:other") == 0
    assert (job / "r" / "1" / "stdout.log").read_text() == "here 20007\n"


def test_the_error_file_of_another_job(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is submitted in a job writes to its own."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/elsewhere/error.json")
    script = job / "replicas.sh"
    script.write_text(script.read_text().replace("$TORCHX_RANK0_HOST ", "$TORCHELASTIC_ERROR_FILE "))
    assert second(job, f"echo here 20007 >{RANK0}; echo RUN,4*elsewhere:other") == 0
    assert (job / "r" / "1" / "stdout.log").read_text() == f"{job}/r/1/error.json 20007\n"


def test_a_role_named_like_a_file_of_the_job(job: Path) -> None:
    """Its folder has another name."""
    role = Role("replicas.sh", "", entrypoint="echo", args=["hi"], num_replicas=2, resource=Resource(1, 0, 64))
    (job / "replicas.sh").write_text(without_pauses(role))
    assert second(job, f"echo here 20007 >{RANK0}; echo RUN,4*elsewhere:other") == 0
    assert Path(JobFolder(LocalFiles(), str(job)).log_paths("replicas.sh", 1).stdout).read_text() == "hi\n"


def test_replica_0_starts_slowly(job: Path) -> None:
    """LSF reports it as running before its script has written the file: the others wait."""
    assert second(job, f"[ $(wc -l <asked) -lt 3 ] || echo here 20007 >{RANK0}; echo RUN,4*elsewhere") == 0
    assert (job / "r" / "1" / "stdout.log").read_text() == "here 20007\n"


def test_replica_0_is_never_heard(job: Path) -> None:
    """If the file never appears, the host from LSF is used, without a port."""
    assert second(job, "echo RUN,4*elsewhere:other") == 0
    assert (job / "r" / "1" / "stdout.log").read_text() == "elsewhere \n"


@pytest.mark.parametrize("answer", ["EXIT,", "DONE,elsewhere", ""])
def test_replica_0_is_over(job: Path, answer: str) -> None:
    """A replica that has not found it before fails."""
    assert second(job, f"echo {answer}") == 1
    assert "replica 0 is over" in (job / "r" / "1" / "stderr.log").read_text()
