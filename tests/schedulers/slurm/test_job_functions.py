"""Unit tests of the functions of ``job.sh``, the batch script of a Slurm job."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchx.schedulers.batch.attempts import script
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.slurm import request

PREAMBLE, PROGRAM = read_script(request.__file__, "job.sh").split("# @JOB@\n")
FUNCTIONS = f"{script(request.__file__)}\n" + PROGRAM.partition("# -- the job ---")[0]
"""All that is defined, without the job itself."""


def bash(folder: Path, text: str) -> list[str]:
    """The lines that these words print after the functions were defined, in a job's folder."""
    given = f"folder=$PWD SLURM_JOB_ID=7\n{FUNCTIONS}\n{text}"
    done = subprocess.run(["bash", "-c", given], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11]x", ["n08x", "n09x", "n10x", "n11x"]),
        ("n[1,3-4],login,gpu[7]-ib", ["n1", "n3", "n4", "login", "gpu7-ib"]),
    ],
)
def test_hosts_without_scontrol(tmp_path: Path, given: str, hosts: list[str]) -> None:
    """Ranges keep leading zeros, and text before and after a bracket."""
    assert bash(tmp_path, f"expand '{given}'") == hosts


def test_a_note_is_one_line_with_its_time(tmp_path: Path) -> None:
    """It is appended to the file `events`."""
    bash(tmp_path, "note up w/0 n1; note down w/0 3")
    lines = [line.split(" ", 1) for line in (tmp_path / "events").read_text().splitlines()]
    assert [line[1] for line in lines] == ["up w/0 n1", "down w/0 3"]
    assert all(line[0].isdecimal() for line in lines)


def test_lengths_are_stamped_when_they_change(tmp_path: Path) -> None:
    """`times.idx` of a replica gets a line when its logs have grown, and only then."""
    for k in (0, 1):
        (tmp_path / "w" / str(k)).mkdir(parents=True)
        (tmp_path / "w" / str(k) / "stdout.log").write_text("out\n" * k)
        (tmp_path / "w" / str(k) / "stderr.log").write_text("")
    bash(tmp_path, "paths=(w/0 w/1); stamp; stamp; echo more >>w/1/stderr.log; stamp 0; stamp 1")
    times = (tmp_path / "w" / "1" / "times.idx").read_text().splitlines()
    assert [line.split()[1:] for line in times] == [["4", "0"], ["4", "5"]]
    assert not (tmp_path / "w" / "0" / "times.idx").exists()


def test_a_clock_that_is_set_back_puts_no_end_off(tmp_path: Path) -> None:
    """SIGKILL follows SIGTERM after the grace period by a monotonic clock."""
    words = "scancel() {{ :; }}; stop; SECONDS=-3600; clock; {}; if overdue; then echo force; else echo patience; fi"
    assert bash(tmp_path, words.format("now=$((now + 29))")) == ["patience"]
    assert bash(tmp_path, words.format("now=$((now + 31))")) == ["force"]
    assert bash(tmp_path, "scancel() { :; }; stop; clock; echo $((deadline - now >= 29 && deadline - now <= 30))") == [
        "1"
    ]


POLICY = """
paths=(w/0 w/1 w/2) role_of=(0 0 0) retries=(1) sizes=(3) policy=({policy}) least=({least}) alive=2
start() {{ echo "start $1"; }}; stop() {{ echo stop; }}; kill_steps() {{ echo "kill role $1"; }}
failure 1 0 5; failure 1 0 5; echo "failed $failed code $code"
"""


@pytest.mark.parametrize(
    ("policy", "least", "told"),
    [
        ("REPLICA", 3, ["start 1", "stop", "failed 1 code 5"]),
        ("ROLE", 3, ["kill role 0", "stop", "failed 1 code 5"]),
        ("APPLICATION", 3, ["stop", "stop", "failed 1 code 5"]),
        ("APPLICATION", 2, ["stop", "failed 1 code 5"]),
        ("REPLICA", 1, ["start 1", "failed 0 code 0"]),
    ],
)
def test_what_a_failure_leads_to(tmp_path: Path, policy: str, least: int, told: list[str]) -> None:
    """The policy retries the first failure; the second ends the job, unless it can spare the replica."""
    assert bash(tmp_path, POLICY.format(policy=policy, least=least)) == told


def test_a_lost_node_is_a_failure(tmp_path: Path) -> None:
    """``srun`` exits with 0 when the node of its step fails: its message counts."""
    (tmp_path / "w" / "0").mkdir(parents=True)
    (tmp_path / "w" / "0" / "srun.log").write_text("srun: error: Node failure on n1\n")
    stubs = 'failure() { echo "failure $*"; }; stamp() { :; }; sleep() { :; }'
    told = bash(tmp_path, f"paths=(w/0) role_of=(0) alive=1; {stubs}; down 0 0; echo alive $alive")
    assert told == ["failure 0 0 1", "alive 0"]
    assert (tmp_path / "events").read_text().split()[1:] == ["down", "w/0", "1"]


def test_the_preamble_ends_a_job_that_sees_no_folder(tmp_path: Path) -> None:
    """It exits with 78 and names the node."""
    given = f"SLURMD_NODENAME=n7\n{PREAMBLE}\necho here"
    done = subprocess.run(["bash", "-c", given], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert "node n7 does not see the folder" in done.stderr
