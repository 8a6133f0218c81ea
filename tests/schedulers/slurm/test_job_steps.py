"""What each function of ``job.sh`` does in each case; Slurm's commands are stand-ins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.schedulers.slurm.steps import lines, steps


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ("SLURM_JOB_NODELIST='n[1-2]'", "n1 n2"),
        ("SLURM_JOB_NODELIST_HET_GROUP_0='m[3-4]' SLURM_JOB_NODELIST='n[1-2]'", "m3 m4"),
        ("scontrol() { echo $3-a; echo $3-b; }", "n[1-4]-a n[1-4]-b"),
    ],
    ids=["one group", "two groups", "scontrol"],
)
def test_the_hosts_of_a_group(given: str, hosts: str, tmp_path: Path) -> None:
    """Slurm's command has precedence; a heterogeneous job has a list for each group."""
    assert " ".join(steps(tmp_path, f"{given}; hosts_of 0").out) == hosts


def test_a_step(tmp_path: Path) -> None:
    """One task on one node, with a name that identifies its replica."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text('#!/bin/sh\necho "$*"\n')
    (tmp_path / "bin" / "srun").chmod(0o755)
    found = steps(tmp_path, "i=3 dir=/data; (step -w n1 prog); echo on")
    assert found.out == ["--nodes=1 --ntasks=1 --export=ALL --job-name=replica.3 --chdir=/data -w n1 prog", "on"]


@pytest.mark.parametrize(("given", "there"), [("/tmp", "/tmp"), ("tmp", "/"), ("/nowhere", "/"), ("", "/")])
def test_the_directory_of_a_step(given: str, there: str, tmp_path: Path) -> None:
    """The image, if it is a directory on this node; else where the job was submitted."""
    (tmp_path / "tmp").mkdir()
    assert steps(tmp_path, f"cwd=/; choose_dir '{given}'; echo $dir").out == [there]


BUS = 'while read -rt 10 -u $bus line; do echo "$line"; [[ $line != down* ]] || break; done'


def test_a_replica_starts(tmp_path: Path) -> None:
    """Its process and its end are reported, whatever the script is told meanwhile; an old error is forgotten."""
    (tmp_path / "w" / "0").mkdir(parents=True)
    (tmp_path / "w" / "0" / "error.json").touch()
    program = """replica_0() {
      local words; read -r -a words </proc/$BASHPID/stat; kill -TERM "${words[3]}"
      echo "$TORCHX_RANK0_HOST $TORCHELASTIC_ERROR_FILE $BASHPID" >got; echo said; return 4; }"""
    given = "alive=3 host=([0]=n2) rank0=([0]=n1) pid=([0]=55); ended[0]=1"
    found = steps(tmp_path, f'{program}; {given}; start 0; echo "$alive ${{ended[0]}} ${{pid[0]-none}}"; {BUS}')
    host, path, pid = (tmp_path / "got").read_text().split()
    assert (host, path) == ("n1", f"{tmp_path}/w/0/error.json")
    assert found.out[:2] == ["4 0 none", f"pid 0 {pid}"]
    assert re.fullmatch(r"down 0 4 \d+", found.out[2])
    assert found.events == ["up w/0 n2"]
    assert not (tmp_path / "w" / "0" / "error.json").exists()
    assert (tmp_path / "w" / "0" / "srun.log").read_text() == "said\n"


@pytest.mark.parametrize(("out", "err", "sizes"), [("abc", "", " 3 0"), ("", "de", " 0 2"), ("", "", "")])
def test_where_a_replica_goes_on(out: str, err: str, sizes: str, tmp_path: Path) -> None:
    """The sizes of the logs at its start are recorded, if there was an earlier one."""
    (tmp_path / "w" / "0").mkdir(parents=True)
    (tmp_path / "w" / "0" / "stdout.log").write_text(out)
    (tmp_path / "w" / "0" / "stderr.log").write_text(err)
    found = steps(tmp_path, f"replica_0() {{ :; }}; host=([0]=n2); start 0; {BUS}")
    assert found.events == [f"up w/0 n2{sizes}"]


@pytest.mark.parametrize(("role", "killed"), [("", "52 53 55"), ("1", "53 55"), ("0", "52"), ("2", "")])
def test_whose_steps_are_ended(role: str, killed: str, tmp_path: Path) -> None:
    """Those that run, of one role or of all; one whose process is not known yet is not."""
    given = "pid=([1]=51 [2]=52 [3]=53 [5]=55) role_of=(0 0 0 1 1 1) ended=([0]=0 [1]=1 [2]=0 [3]=0 [4]=0 [5]=0)"
    found = steps(tmp_path, f"kill() {{ echo $*; }}; {given}; kill_steps {role} | sort")
    assert " ".join(found.out) == killed


@pytest.mark.parametrize("works", [True, False])
def test_the_job_is_stopped(works: bool, tmp_path: Path) -> None:
    """By Slurm, or if it cannot, step by step; there are 30 s until SIGKILL."""
    if works:
        (tmp_path / "accepts").touch()
    given = "clock() { now=100; }; kill_steps() { echo steps $*; }"
    found = steps(tmp_path, f'{given}; stop; echo "$stopping $deadline"')
    assert found.out == [*["steps"] * (not works), "1 130"]
    assert found.said == ["scancel --signal=TERM 7"]


def test_when_the_grace_is_over(tmp_path: Path) -> None:
    """At the deadline, if the job is being stopped."""
    words = "for now in 129 130 131; do overdue && echo $now; done"
    assert steps(tmp_path, f"stopping=1 deadline=130; {words}").out == ["130", "131"]
    assert steps(tmp_path, f"stopping=0 deadline=130; {words}").out == []


LOST = "srun: error: Node failure on n1"


@pytest.mark.parametrize(
    ("status", "given", "out", "sleeps"),
    [
        (0, "", [], 0),
        (3, "", ["failure 1 0 3"], 1),
        (3, "slept() { terminated=1; }", [], 1),  # the whole job ends
        (3, "stopping=1", [], 0),
        (0, "stopping=1", [], 0),
        (3, "again[0]=1", ["restart 0"], 0),
        (0, "again[0]=1", ["restart 0"], 0),
        (3, "again[0]=0", ["failure 1 0 3"], 1),
        (3, "again[0]=1 stopping=1", [], 0),
        (3, "failure() { again[0]=1; }", ["restart 0"], 1),
        (0, f"echo '{LOST}' >w/1/srun.log", ["failure 1 0 1"], 1),
        (0, "echo 'srun: launch/slurm: _step_signal' >w/1/srun.log", [], 0),
        (3, f"echo '{LOST}' >w/1/srun.log", ["failure 1 0 3"], 1),
    ],
)
def test_what_the_end_of_a_replica_leads_to(
    status: int, given: str, out: list[str], sleeps: int, tmp_path: Path
) -> None:
    """A failure, if neither the whole job nor its role is being ended; a role restarts when its replicas have ended."""
    (tmp_path / "w" / "1").mkdir(parents=True)
    (tmp_path / "w" / "1" / "srun.log").touch()
    stubs = "failure() { echo failure $*; }; restart_role() { echo restart $*; }; stamp() { echo stamp $*; }"
    found = steps(tmp_path, f'{stubs}; alive=2 ended=([1]=0)\n{given}\ndown 1 {status}; echo "$alive ${{ended[1]}}"')
    assert found.out == ["stamp 1", *out, "1 1"]
    lost = status == 0 and LOST in given
    assert found.events == [f"down w/1 {1 if lost else status}"]
    assert found.sleeps == ["1"] * sleeps


FAILURES = """
paths=(w/0 w/1 v/0) role_of=(0 0 1) retries=(1 2) sizes=(2 1) least=(2 1) alive=2
start() { echo "start $1"; }; stop() { echo stop; }; kill_steps() { echo "kill $1"; }
"""


@pytest.mark.parametrize(
    ("given", "calls", "out", "end"),
    [
        ("policy=(REPLICA ROLE)", "1:0:5", "start 1", "0 0 0"),
        ("policy=(REPLICA ROLE)", "1:0:5 0:0:6", "start 1 start 0", "0 0 0"),
        ("policy=(REPLICA ROLE)", "1:0:5 1:0:6", "start 1 stop", "1 6 0"),
        ("policy=(ROLE REPLICA)", "1:0:5 0:0:6", "kill 0 stop", "1 6 0"),
        ("policy=(ROLE REPLICA)", "2:1:5 2:1:5 2:1:7", "start 2 start 2 stop", "1 7 1"),
        ("policy=(APPLICATION APPLICATION)", "2:1:5", "stop", "1 5 1"),
        ("policy=(APPLICATION APPLICATION); alive=0", "2:1:5", "", "1 5 1"),
        ("policy=(APPLICATION APPLICATION) least=(1 1)", "1:0:5", "", "0 0 0"),
        ("policy=(APPLICATION APPLICATION) least=(1 1)", "1:0:5 0:0:6", "stop", "1 6 0"),
        ("policy=(REPLICA REPLICA) retries=(0 0)", "1:0:5", "stop", "1 5 0"),
    ],
)
def test_retries_are_counted(given: str, calls: str, out: str, end: str, tmp_path: Path) -> None:
    """For each replica or role of its own; what is left over ends the job, unless it can be spared."""
    done = "; ".join(f"failure {call.replace(':', ' ')}" for call in calls.split())
    found = steps(tmp_path, f'{FAILURES}{given}; {done}; echo "$failed $code $guilty ${{again[0]-}}"')
    assert " ".join(found.out[:-1]) == out
    assert found.out[-1].strip() == (f"{end} 1" if "kill" in out else end)
    again = [event for event in found.events if event.startswith("again")]
    assert len(again) == out.count("start") + out.count("kill")
    assert not again or again[0] == ("again v/0" if calls.startswith("2") else "again w/1")


@pytest.mark.parametrize(
    ("given", "out"),
    [
        ("", "start 0 start 1"),
        ("ended[1]=0", ""),
        ("ended[2]=0", "start 0 start 1"),
        ("unset 'host[1]'; unset 'ended[1]'", "start 0"),
    ],
)
def test_a_role_restarts(given: str, out: str, tmp_path: Path) -> None:
    """When all of its replicas have ended; those without a node are left out, and so are other roles."""
    job = "paths=(w/0 w/1 v/0) role_of=(0 0 1) host=([0]=n1 [1]=n2 [2]=n3) ended=([0]=1 [1]=1 [2]=1) again=([0]=1)"
    found = steps(tmp_path, f"start() {{ echo start $1; }}; {job}; {given}\nrestart_role 0; echo ${{again[0]}}")
    assert " ".join(found.out) == f"{out} {0 if out else 1}".strip()


def test_sizes_of_logs(tmp_path: Path) -> None:
    """One that cannot be read leaves the others' records as they are; a changed length has one line with its time."""
    for k in (0, 1):
        (tmp_path / "w" / str(k)).mkdir(parents=True)
        (tmp_path / "w" / str(k) / "stdout.log").write_text("out")
        (tmp_path / "w" / str(k) / "stderr.log").write_text("")
    steps(tmp_path, "mv w/1/stderr.log away; stamp; mv away w/1/stderr.log; echo a >>w/0/stderr.log; stamp; stamp")
    for k, sizes in ((0, ["3", "2"]), (1, ["3", "0"])):
        (line,) = lines(tmp_path / "w" / str(k) / "times.idx")
        assert line.split()[1:] == sizes
        assert int(line.split()[0]) > 1e9


@pytest.mark.parametrize(
    ("given", "action", "out", "events"),
    [
        ("", "cancel", "stop cancel 1 1", ["hang", "silent"]),
        ("", "retry", "stop retry 1 1", ["hang", "silent"]),
        ("", "", "0 0", ["hang"]),
        ("alive=0", "retry", "0 0", ["hang"]),
        ("stopping=1", "retry", "0 0", ["hang"]),
    ],
)
def test_a_finding_of_the_watchdog(given: str, action: str, out: str, events: list[str], tmp_path: Path) -> None:
    """It is recorded; the job ends if that is asked for, and it still runs."""
    found = steps(tmp_path, f"stop() {{ echo stop; }}; hung= alive=1\n{given}\nhang {action}; echo $hung $failed $code")
    assert (" ".join(found.out), found.events) == (out, events)


@pytest.mark.parametrize("works", [True, False])
def test_the_watchdog_starts(works: bool, tmp_path: Path) -> None:
    """What it prints is news for the script; a job that is not watched says so."""
    start = "start_watch() { echo hang cancel; }" if works else "start_watch() { return 1; }"
    news = "read -rt 0.1 -u $bus line; echo $line"
    found = steps(tmp_path, f"{start}; watch; {news if works else ':'}")
    assert (found.out, found.events) == ((["hang cancel"], []) if works else ([], ["hang"]))
