"""The job script and the file with the secrets: who reads it, and when it is removed. Slurm's messages are those of
22.05.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schedulers.slurm.test_job_script import programs, run, sh

__all__ = ["programs"]

SECRETS = "case $0 in\n*/w/0|*/w/1)\nexport HF_TOKEN='it'\\''s one' ;;\nesac\n"
TERM = """p=$PPID
while q=$(sed -n 's/^PPid:\t//p' /proc/$p/status) && case $(tr '\\0' ' ' </proc/$q/cmdline) in bash\\ job.sh*) ;; *) false ;; esac
do p=$q; done; kill -TERM $p; """
"""What Slurm does to the script when it ends the job."""

CANCELLED = "JobId=7 JobState=COMPLETING Reason=None Requeue=1 Restarts=0 EndTime=2026-11-23T00:43:41 PreemptTime=None"
PUT_BACK = "JobId=7 JobState=COMPLETING Reason=None Requeue=1 Restarts=1 EndTime=Unknown Deadline=N/A"
IN_GRACE = "JobId=7 JobState=RUNNING Requeue=1 EndTime=2026-11-23T00:43:41 PreemptTime=2026-11-23T00:42:41"


@pytest.fixture
def file(programs: Path) -> Path:
    """The file, in the job's folder."""
    folder = programs.parent / "job"
    folder.mkdir()
    (folder / "secrets.sh").write_text(SECRETS)
    return folder / "secrets.sh"


def role(script: str, n: int = 1, **more):
    """A role with a secret."""
    return sh(script, n, env={"HF_TOKEN": "hf_x"}, **more)


@pytest.mark.parametrize("code", [0, 3])
def test_each_step_reads_it_and_the_end_removes_it(programs: Path, file: Path, code: int) -> None:
    """Only the steps have the variable: neither the script nor its environment does."""
    replicas = 1 if code else 2  # one that fails may end another before it has said anything
    found, _, folder = run(programs, role(f'echo "$HF_TOKEN"; exit {code}', replicas))
    assert found == code
    assert [(folder / f"w/{k}/stdout.log").read_text() for k in range(replicas)] == ["it's one\n"] * replicas
    assert "hf_x" not in (folder / "job.sh").read_text()
    assert not file.exists()


def test_it_is_there_for_each_attempt(programs: Path, file: Path) -> None:
    """The last one removes it."""
    code, events, folder = run(programs, role('echo "$HF_TOKEN"; exit 3', max_retries=2))
    assert (code, events.starts) == (3, 3)
    assert (folder / "w/0/stdout.log").read_text() == "it's one\n" * 3
    assert not file.exists()


@pytest.mark.parametrize(
    ("said", "kept"),
    [(CANCELLED, False), (PUT_BACK, True), (IN_GRACE, True), ("", True)],
    ids=["cancelled", "put back", "about to be preempted", "Slurm does not answer"],
)
@pytest.mark.parametrize("retries", [0, 1])
def test_ended_from_outside(programs: Path, file: Path, said: str, kept: bool, retries: int) -> None:
    """It stays if the job is requeued, or if that is unknown."""
    (programs / "scontrol").write_text(f"#!/bin/sh\n[ -n '{said}' ] && echo '{said}'\n")
    run(programs, role(f"{TERM} exit 143", max_retries=retries))
    assert file.exists() is kept


def test_a_job_whose_secrets_are_gone_says_so(programs: Path, file: Path) -> None:
    """For example after an administrator has requeued a finished job."""
    file.unlink()
    code, _, folder = run(programs, role("echo started"))
    assert code == 78
    assert (folder / "w/0/stdout.log").read_text() == ""
    assert (
        "the secrets of this job were removed when it ended; submit it again" in (folder / "w/0/stderr.log").read_text()
    )
