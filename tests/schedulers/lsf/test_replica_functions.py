"""Functions of ``replica.sh``, the program of an LSF job's replica, and the file names that it shares with Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.lsf import replicas
from torchx.schedulers.lsf.replicas import (
    ENDED_FILE,
    ENV_RANK0_HOST,
    ENV_RANK0_PORT,
    EXIT_FILE,
    REQUEUE_CODE,
    RESTARTS_FILE,
    STARTED_FILE,
)
from torchx.supervisor.layout import ERROR_FILE, STDERR_LOG, STDOUT_LOG, TIMES_INDEX

PROGRAM = read_script(replicas.__file__, "replica.sh")


def bash(folder: Path, text: str) -> list[str]:
    """The lines that these words print after the functions were defined; ``$job`` is the folder."""
    given = f"{PROGRAM}\njob={folder}; {text}"
    done = subprocess.run(["bash", "-c", given], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "word",
    [
        *(f"$dir/{name}" for name in (STDOUT_LOG, STDERR_LOG, TIMES_INDEX, ERROR_FILE, EXIT_FILE)),
        *(f"$job/{name}" for name in (STARTED_FILE, ENDED_FILE, RESTARTS_FILE)),
        *(f"export {name}=" for name in (ENV_RANK0_HOST, ENV_RANK0_PORT)),
        f"exit {REQUEUE_CODE}",
    ],
)
def test_the_program_uses_the_names_that_python_reads(word: str) -> None:
    """The script contains each name."""
    assert word in PROGRAM


def test_a_number_in_a_file(tmp_path: Path) -> None:
    """0 if there is none."""
    (tmp_path / "runs").write_text("3\n")
    assert bash(tmp_path, "torchx_number runs; torchx_number none") == ["3", "0"]


def test_lengths_are_noted_when_they_change(tmp_path: Path) -> None:
    """`times.idx` gets a line whenever one of the logs has grown."""
    (tmp_path / "stdout.log").write_text("out\n")
    (tmp_path / "stderr.log").write_text("")
    bash(tmp_path, "dir=$job; sizes=; torchx_tick; torchx_tick; echo e >>$dir/stderr.log; torchx_tick")
    assert [line.split()[1:] for line in (tmp_path / "times.idx").read_text().splitlines()] == [["4", "0"], ["4", "2"]]


def test_the_others_of_a_job(tmp_path: Path) -> None:
    """All of the app or of one role, without this one; with `-a` also ended ones."""
    answer = "printf '%s\\\n' 7,a.0-r.0 8,a.0-r.1 9,a.1-s.0 10,b.0-r.0"
    stub = f'bjobs() {{ echo "$1" >>asked; {answer}; }}; app=a group=/torchx_a LSB_JOBID=7'
    assert bash(tmp_path, f"{stub}; torchx_others '' a.") == ["8", "9"]
    assert bash(tmp_path, f"{stub}; torchx_others -a a.0-") == ["8"]
    assert (tmp_path / "asked").read_text().split() == ["-noheader", "-a"]


RETRY = """
bjobs() { printf '%s\\\n' 7,a.0-r.0 8,a.0-r.1 9,a.1-s.0; }; brequeue() { echo "brequeue $*"; }
app=a group=/torchx_a LSB_JOBID=7 role=0 k=0 scope=$job attempt=0
"""


@pytest.mark.parametrize(
    ("policy", "runs", "retries", "good"),
    [("REPLICA", 1, 1, True), ("REPLICA", 2, 1, False), ("APPLICATION", 1, 0, False)],
)
def test_retries_are_counted(tmp_path: Path, policy: str, runs: int, retries: int, good: bool) -> None:
    """A replica without retries left is not requeued; others are, and recorded."""
    tail = f"policy={policy} runs={runs} retries={retries}; torchx_retried && echo again"
    assert bash(tmp_path, f"{RETRY}{tail}") == (["again"] if good else [])
    assert (tmp_path / "restarts").exists() == good


def test_the_whole_job_is_put_back_once(tmp_path: Path) -> None:
    """The first failure requeues all replicas of this attempt and increments the attempt."""
    (tmp_path / "run.0.8").write_text("")
    assert bash(tmp_path, f"{RETRY}policy=APPLICATION retries=1; torchx_retried && echo again") == ["again"]
    assert (tmp_path / "again.0.8").is_dir()
    assert not (tmp_path / "again.0.9").exists()
    assert (tmp_path / "attempt").read_text() == "1\n"
