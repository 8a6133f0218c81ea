"""Slurm jobs that torchx did not launch; the answers are those of a real 22.05, with other folder names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.slurm.foreign import parse_scontrol
from torchx.schedulers.slurm.parse import SACCT_FIELDS, SEPARATOR, SQUEUE_FIELDS
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppState
from torchx.specs.failures import parse_failure
from torchx.testing.commands import FakeCommandRunner

NO_SUCH_JOB = "slurm_load_jobs error: Invalid job id specified"
SHOWN = """JobId={id} {array}JobName={name}
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}:0
   Partition=main AllocNode:Sid=localhost:6839
   Command={folder}/train it.sbatch --lr 1
   WorkDir={folder}
   StdErr={folder}/{err}
   StdIn=/dev/null
   StdOut={folder}/{out}
   Power=

"""


def queued(
    job_id: str, state: str, *, reason: str = "None", code: int = 0, start: str = "100", end: str = "160"
) -> str:
    """A line of `squeue`."""
    known = {"JobArrayID": job_id, "State": state, "Reason": reason, "SubmitTime": "90", "StartTime": start}
    known |= {"EndTime": end, "RestartCnt": "0", "exit_code": str(code << 8), "NodeList": "n1", "UserName": "ann"}
    return (
        SEPARATOR.join({**known, "WorkDir": "/work", "Name": "train"}[name] for name in SQUEUE_FIELDS)
        + SEPARATOR
        + "\n"
    )


def accounted(job_id: str, state: str, code: str = "0:0") -> str:
    """A line of `sacct`."""
    known = {"JobID": job_id, "State": state, "Reason": "None", "Submit": "90", "Start": "100", "End": "160"}
    known |= {"ExitCode": code, "NodeList": "n1", "MaxRSS": "", "ReqMem": "", "User": "ann", "WorkDir": "/work"}
    return SEPARATOR.join({**known, "JobName": "train"}[name] for name in SACCT_FIELDS) + "\n"


def view(fake: FakeCommandRunner, *, squeue: str = "", sacct: str = "", scontrol: str = "", places: str = "") -> Any:
    """The view on a Slurm with these answers."""
    fake.on("env", "SLURM_TIME_FORMAT=%s", "squeue", stdout=squeue, returncode=not squeue, stderr=NO_SUCH_JOB)
    fake.on("env", "SLURM_TIME_FORMAT=%s", "sacct", stdout=sacct)
    fake.on("scontrol", "show", "job", stdout=scontrol, returncode=not scontrol, stderr=NO_SUCH_JOB)
    fake.on("sacct", "--allocations", stdout=places)
    found: Any = SlurmScheduler("foreign", commands=fake, sleep=lambda _: None).foreign()
    found.fresh_s = 0
    return found


@pytest.fixture
def fake() -> FakeCommandRunner:
    return FakeCommandRunner()


def test_a_job_says_what_its_log_says(fake: FakeCommandRunner, tmp_path: Path) -> None:
    """The cause is the exit code and the last line; the log is the file that Slurm reports, with both streams."""
    (tmp_path / "out 1.log").write_text("epoch 1\nValueError: no such frob\n")
    job = {"id": 7, "array": "", "name": "my train", "state": "FAILED", "reason": "NonZeroExitCode", "code": 3}
    shown = SHOWN.format(**job, folder=tmp_path, out="out 1.log", err="out 1.log")
    jobs = view(fake, squeue=queued("7", "FAILED", code=3), scontrol=shown)
    found = jobs.describe("7")
    assert (found.state, found.msg) == (AppState.FAILED, "job/0 on n1: exit code 3: ValueError: no such frob")
    assert (found.started_at, found.ended_at) == (100, 160)
    assert jobs.log_replicas("7") == [("job", 0)]
    (log,) = jobs.open_logs("7", [("job", 0)], LogQuery())
    assert list(log) == ["epoch 1\n", "ValueError: no such frob\n"]
    about = {"name": "my train", "user": "ann", "partition": "main", "folder": str(tmp_path)}
    assert jobs.about("7") == {**about, "command": f"{tmp_path}/train it.sbatch --lr 1"}


def test_tasks_of_an_array(fake: FakeCommandRunner, tmp_path: Path) -> None:
    """It fails with its task; while others run, it runs and reports the failed one."""
    shown = "".join(
        SHOWN.format(
            **{
                "id": 10 + k,
                "array": f"ArrayJobId=10 ArrayTaskId={k} ",
                "name": "arr",
                "state": "FAILED",
                "reason": "x",
            },
            **{"code": 7, "folder": tmp_path, "out": f"{k}.out", "err": f"{k}.err"},
        )
        for k in range(3)
    )
    (tmp_path / "2.err").write_text("no more frobs\n")
    over = queued("10_0", "COMPLETED") + queued("10_2", "FAILED", code=7)
    found = view(fake, squeue=over, scontrol=shown).describe("10")
    assert (found.state, found.msg) == (AppState.FAILED, "task/2 on n1: exit code 7: no more frobs")
    assert [r.id for r in found.roles_statuses[0].replicas] == [0, 2]
    going = over + queued("10", "PENDING", reason="Resources", start="N/A", end="N/A")
    found = view(FakeCommandRunner(), squeue=going, scontrol=shown).describe("10")
    assert found.state is AppState.RUNNING
    assert found.msg.startswith(
        "task/2 on n1: exit code 7: no more frobs; the others are still running; other tasks wait: "
    )
    assert "in use (Resources)" in found.msg


def test_a_task_that_ran_too_long(fake: FakeCommandRunner) -> None:
    """The class of the task's end is the job's."""
    found = view(fake, sacct=accounted("10_0", "COMPLETED") + accounted("10_1", "TIMEOUT", "0:15")).describe("10")
    assert found.msg == "task/1 on n1: it reached its time limit"
    assert parse_failure(found.structured_error_msg).kind == "timeout"


def test_a_folder_that_is_not_there(fake: FakeCommandRunner) -> None:
    """Slurm creates no folders for output, and a job that cannot write fails with a code that looks like a signal."""
    found = view(fake, sacct=accounted("7", "FAILED", "0:53")).describe("7")
    assert found.msg == "job/0 on n1: Slurm could not open its output file: is the folder there?"


def test_components(fake: FakeCommandRunner, tmp_path: Path) -> None:
    """The script of a heterogeneous job runs on the first component, whose file has the output."""
    (tmp_path / "slurm-2.out").write_text("srun: error: n3: task 1: Exited with exit code 5\nRuntimeError: frob\n")
    shown = "".join(
        SHOWN.format(
            **{"id": 2 + k, "array": f"HetJobId=2 HetJobOffset={k} ", "name": "het", "state": "FAILED", "reason": "x"},
            **{"code": 5, "folder": tmp_path, "out": f"slurm-{2 + k}.out", "err": f"slurm-{2 + k}.out"},
        )
        for k in (1, 0)
    )
    jobs = view(fake, squeue=queued("2+0", "FAILED", code=5) + queued("2+1", "FAILED", code=5), scontrol=shown)
    found = jobs.describe("2")
    assert found.msg == "component/0 on n1: exit code 5: RuntimeError: frob"
    assert jobs.log_replicas("2") == [("component", 0)]
    with pytest.raises(NotFoundError):
        jobs.open_logs("2", [("component", 1)], LogQuery())


def test_why_it_waits(fake: FakeCommandRunner) -> None:
    """As for torchx's own jobs; an expected start is not a start."""
    found = view(fake, squeue=queued("4", "PENDING", reason="Priority", start="200", end="N/A")).describe("4")
    assert (found.state, found.msg) == (AppState.PENDING, "jobs of higher priority go first (Priority)")
    assert found.roles_statuses[0].replicas[0].started_at is None


@pytest.mark.parametrize(
    ("line", "script", "out", "err"),
    [
        ("sbatch --parsable train.sbatch x", "#SBATCH -o log/%x-%4j-%N.%u\n", "log/train-0007-n1.ann", ""),
        ("sbatch -J other -e '%A err' train.sbatch", "", "slurm-7.out", "7 err"),
        ("sbatch --wrap 'sleep 1' -D /data -o /tmp/%%j", "", "/tmp/%j", ""),
        ("sbatch -D /data train.sbatch", "echo\n#SBATCH -o after-the-first-command\n", "/data/slurm-7.out", ""),
    ],
)
def test_output_of_a_job_that_only_accounting_knows(
    fake: FakeCommandRunner, tmp_path: Path, line: str, script: str, out: str, err: str
) -> None:
    """Its command line has precedence over its script; Slurm's defaults apply otherwise."""
    (tmp_path / "train.sbatch").write_text("#!/bin/sh\n" + script)
    places = "\x1f".join(["7", "7", "ann", "n1", line, str(tmp_path), "train"]) + "\n"
    jobs = view(fake, sacct=accounted("7", "COMPLETED"), places=places)
    shown = jobs._outputs("7").shown["job/0"]
    assert shown["StdOut"] == str(tmp_path / out)
    assert shown["StdErr"] == str(tmp_path / (err or out))


@pytest.mark.parametrize("there", ["7-host.log", ""])
def test_patterns_that_slurm_does_not_fill_in(fake: FakeCommandRunner, tmp_path: Path, there: str) -> None:
    """Slurm shows some unexpanded; the host's name comes from the existing file, else it is that of the node."""
    if there:
        (tmp_path / there).write_text("hi\n")
    job = {"id": 7, "array": "", "name": "t", "state": "RUNNING", "reason": "None", "code": 0, "folder": tmp_path}
    shown = SHOWN.format(**job, out="%j-%N.log", err="%3j.%x.err").replace("   Power", "   NodeList=n1\n   Power")
    paths = view(fake, squeue=queued("7", "RUNNING"), scontrol=shown)._outputs("7").log_paths("job", 0)
    assert (paths.stdout, paths.stderr) == (f"{tmp_path}/{there or '7-n1.log'}", f"{tmp_path}/007.t.err")


def test_output_on_a_terminal(fake: FakeCommandRunner) -> None:
    """Output of `salloc` is not in a file."""
    places = "\x1f".join(["5", "5", "ann", "n1", "salloc srun false", "/work", "inter"]) + "\n"
    jobs = view(fake, sacct=accounted("5", "FAILED", "3:0"), places=places)
    assert jobs.describe("5").msg == "job/0 on n1: exit code 3"
    with pytest.raises(NotFoundError) as refused:
        jobs.open_logs("5", [("job", 0)], LogQuery())
    assert "to the terminal" in refused.value.hint


@pytest.mark.parametrize(
    ("reference", "found"), [("7", "7"), ("7.batch", "7"), ("7+1", "7"), ("9", "7"), ("7_x", None), ("train", None)]
)
def test_names(fake: FakeCommandRunner, reference: str, found: str | None) -> None:
    """References as Slurm's commands print them; also the id of a single task, which differs."""
    named = view(fake, squeue=queued("7", "RUNNING")).find(reference)
    assert (named and named.app_id) == found
    assert found is not None or fake.calls == [], "a word that is none of Slurm's costs no question"


def test_a_job_of_ours_is_told_from_others(fake: FakeCommandRunner, tmp_path: Path) -> None:
    """By the folder that torchx made for it."""
    jobs = view(fake, squeue=queued("7", "RUNNING").replace("/work", str(tmp_path)))
    assert jobs.find("7").ours is False
    (tmp_path / "job.json").write_text("{}")
    assert jobs.find("7").ours is True


def test_unknown(fake: FakeCommandRunner) -> None:
    """It is reported as unknown."""
    jobs = view(fake)
    assert jobs.find("8") is None
    assert jobs.describe("8") is None


def test_nothing_is_done_to_it(fake: FakeCommandRunner) -> None:
    """Only a forced cancel calls `scancel`, once."""
    fake.on("scancel")
    jobs = view(fake, squeue=queued("7", "RUNNING"))
    for end in (jobs.cancel, jobs.delete):
        with pytest.raises(NotSupportedError):
            end("7")
    assert not [call for call in fake.calls if call.argv[0] == "scancel"]
    jobs.forced().cancel("7")
    assert [call.argv for call in fake.calls if call.argv[0] == "scancel"] == [["scancel", "7"]]
    with pytest.raises(NotSupportedError):
        jobs.cancel("7")


def test_values_with_equals_signs() -> None:
    """A job's command line may look like another field."""
    (job,) = parse_scontrol("JobId=1 JobName=a b\n   Command=/x JobId=2 StdOut=/y\n   StdOut=/z\n")
    assert job == {"JobId": "1", "JobName": "a b", "Command": "/x JobId=2 StdOut=/y", "StdOut": "/z"}
