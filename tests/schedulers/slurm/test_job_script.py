"""The job script, run by bash with an ``srun`` that starts programs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchx.schedulers.batch.attempts import PROGRAM_FILE, program
from torchx.schedulers.batch.folders import JobFolder, folder_name
from torchx.schedulers.batch.logs import BatchLog
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.slurm.events import JobEvents, parse_events, starts_of
from torchx.schedulers.slurm.folders import choose_previous
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, Resource, RetryPolicy, Role, macros
from torchx.specs.serialize import appdef_to_dict
from torchx.specs.wishes.retries import RETRY, Attempt, read_attempts
from torchx.specs.wishes.watchdog import WATCHDOG

SRUN = f"""#!{sys.executable} -IS
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # srun listens to it, even where its caller does not
words = sys.argv[1:]
os.environ.update(SLURM_JOB_ID="7", SLURM_STEP_ID=str(os.getpid()))  # each step has its own, also in other tests
while words[0].startswith("-"):
    if words[0].startswith("--chdir="):
        os.chdir(words[0][8:])
    words.pop(0)
os.execvp(words[0], words)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs in place of Slurm's, without `scontrol` and `scancel`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("sleep", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def run(
    programs: Path,
    *roles: Role,
    nodes: str = "n[1-4]",
    retry: str = "",
    watchdog: str = "",
    wishes: dict[str, str] | None = None,
    slurm: dict[str, str] | None = None,
    **cfg: Any,
) -> tuple[int, JobEvents, Path]:
    """Exit code, events and folder of a job."""
    folder = programs.parent / "job"
    folder.mkdir(exist_ok=True)
    given = {RETRY: retry, WATCHDOG: watchdog, **(wishes or {})}
    app = AppDef("job", list(roles), metadata={key: wish for key, wish in given.items() if wish})
    (folder / "job.json").write_text(json.dumps({"app": appdef_to_dict(app)}))
    request = SlurmScheduler("s").submit_dryrun(app, cfg).request
    if retry or watchdog:
        (folder / PROGRAM_FILE).write_bytes(program("slurm").encode("utf-8", "surrogateescape"))
    (folder / "job.sh").write_text(request.materialize())
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SLURM")},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": nodes,
        **(slurm or {}),
    }
    for name in ("scontrol", "scancel", "sinfo", "sacct"):  # of a cluster on this machine
        if not (programs / name).exists():
            (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(["bash", "job.sh"], cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, parse_events((folder / "events").read_text()), folder


def sh(script: str, n: int = 1, **more: Any) -> Role:
    return Role("w", "", entrypoint="sh", args=["-c", script], num_replicas=n, resource=Resource(1, 0, 1), **more)


def test_a_job_that_succeeds(programs: Path) -> None:
    """Each replica writes its own logs; hosts are known without `scontrol`; sizes of the logs are recorded."""
    script = f"echo out {macros.replica_id} $TORCHX_RANK0_HOST; echo err >&2"
    code, events, folder = run(programs, sh(script, 3), nodes="gpu[08-09]-x,n7")
    assert code == 0
    assert [events.replicas[f"w/{k}"].host for k in range(3)] == ["gpu08-x", "gpu09-x", "n7"]
    assert [(folder / "w" / str(k) / "stdout.log").read_text() for k in range(3)] == [
        f"out {k} gpu08-x\n" for k in range(3)
    ]
    assert (folder / "w/0/stderr.log").read_text() == "err\n"
    assert (folder / "w/0/times.idx").read_text().split()[1:] == ["14", "4"]
    assert events.exit_code == 0


@pytest.mark.parametrize("name", ["events", "job.sh", "job.json"])
def test_a_role_named_like_a_file_of_the_job(programs: Path, name: str) -> None:
    """Its folder has another name."""
    code, events, folder = run(programs, Role(name, "", entrypoint="echo", args=["hi"], resource=Resource(1, 0, 1)))
    assert code == 0
    assert Path(JobFolder(LocalFiles(), str(folder)).log_paths(name, 0).stdout).read_text() == "hi\n"
    assert [*events.replicas] == [f"{folder_name(name)}/0"]


def test_the_first_failure_ends_the_job(programs: Path) -> None:
    """The others are stopped, without `scancel` by signals; the exit code is that of the first failure."""
    others = " ".join(f"{programs.parent}/job/w/{k}/stdout.log" for k in (0, 2))
    first = f"for log in {others}; do until [ -s $log ]; do /bin/sleep 0.05; done; done; exit 4"
    code, events, _ = run(
        programs, sh(f"[ {macros.replica_id} = 1 ] && {{ {first}; }}; echo up; exec tail -f /dev/null", 3)
    )
    assert code == 4
    assert events.replicas["w/1"].exit_code == 4
    assert events.replicas["w/0"].exit_code == events.replicas["w/2"].exit_code == 143


def test_where_a_job_cannot_be_requeued_it_starts_again_in_place(programs: Path) -> None:
    """Up to its number of retries, with a new rendezvous each time and the same id."""
    script = f"echo --rdzv_id {macros.app_id} {macros.app_id}; exit 3"
    code, events, folder = run(programs, sh(script, max_retries=2))
    assert (code, events.starts, events.retries) == (3, 3, 2)
    assert (folder / "w/0/stdout.log").read_text().splitlines() == [
        "--rdzv_id 7 7",
        "--rdzv_id 7-1 7",
        "--rdzv_id 7-2 7",
    ]


def test_a_job_that_is_requeued_while_slurm_answers(programs: Path) -> None:
    """Slurm ends the job before `scontrol` returns: the script waits for that instead of exiting."""
    (programs / "scontrol").write_text("#!/bin/sh\n[ $1 = requeue ] || exit 1\n: > requeued\nkill $PPID $$\nexit 0\n")
    (programs / "sleep").write_text("#!/bin/sh\n[ ! -e requeued ] || kill -9 $PPID\n")
    code, events, _ = run(programs, sh("exit 3", max_retries=1))
    assert (code, events.starts, events.retries) == (-9, 1, 1)
    assert events.exit_code is None


@pytest.mark.parametrize(("policy", "starts"), [(RetryPolicy.REPLICA, [1, 2]), (RetryPolicy.ROLE, [2, 2])])
def test_retries_in_place(programs: Path, policy: RetryPolicy, starts: list[int]) -> None:
    """A replica, or its whole role, restarts while the job runs."""
    first = f"[ {macros.replica_id} = 0 ] && : > ready && exit 0"
    script = f"echo up; {first}; until [ -e ready ]; do sleep 0.02; done; [ -e once ] && exit 0; : > once; exit 5"
    role = sh(script, 2, max_retries=1, retry_policy=policy)
    role.image = str(programs.parent)
    code, events, folder = run(programs, role)
    assert (code, events.again) == (0, 1)
    assert [(folder / f"w/{k}/stdout.log").read_text().count("up") for k in (0, 1)] == starts
    noted = starts_of((folder / "events").read_text())
    assert [noted[f"w/{k}"] for k in (0, 1)] == [[(0, 0), (3, 0)][:count] for count in starts]
    paths = [JobFolder(LocalFiles(), str(folder)).log_paths("w", k) for k in (0, 1)]
    choose_previous(JobFolder(LocalFiles(), str(folder)), paths)
    found = BatchLog(LocalFiles(), paths[1], LogQuery(previous=True), lambda: True)
    assert (paths[0].again, list(found)) == (starts[0] == 2, ["up\n"])


DEAF = """
if os.environ["TORCHELASTIC_ERROR_FILE"].endswith("/w/0/error.json") and not os.path.exists("ready"):
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    open("ready", "w").close()
    while True:
        signal.pause()
"""


def test_a_role_starts_again_though_a_step_was_deaf(programs: Path) -> None:
    """A step that is just starting may miss the signal, which is repeated until the step ends."""
    (programs / "srun").write_text(SRUN.replace("os.execvp(", f"{DEAF}os.execvp("))
    fail = "until [ -e ready ]; do sleep 0.02; done; [ -e once ] && exit 0; : > once; exit 5"
    role = sh(
        f"echo up; [ {macros.replica_id} = 0 ] && exit 0; {fail}", 2, max_retries=1, retry_policy=RetryPolicy.ROLE
    )
    role.image = str(programs.parent)
    code, events, folder = run(programs, role)
    assert (code, events.again) == (0, 1)
    assert [(folder / f"w/{k}/stdout.log").read_text().count("up") for k in (0, 1)] == [1, 2]


HALTING = """
import re, time
bus = next(int(n) for n in os.listdir("/proc/self/fd") if int(n) > 9 and os.readlink(f"/proc/self/fd/{n}")[:5] == "pipe:")
def job():
    return re.search(r"PPid:\\s*(\\d+)", open(f"/proc/{os.getppid()}/status").read())[1]
script = job()
while not re.search("wchar: *[1-9]", open(f"/proc/{os.getppid()}/io").read()):  # it has yet to tell our pid
    time.sleep(0.02)
os.write(bus, b"down 0 ")
time.sleep(1.5)
os.write(bus, b"4\\n")
while job() == script:
    time.sleep(0.02)
sys.exit(4)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="finds the pipe of the script by /proc")
def test_news_that_come_in_two_pieces(programs: Path) -> None:
    """The end of a replica is not lost if `read` is interrupted in the middle of its line."""
    (programs / "srun").write_text(SRUN.replace("os.execvp(", f"{HALTING}os.execvp("))
    code, events, _ = run(programs, sh("exit 0"))
    assert (code, events.replicas["w/0"].exit_code) == (4, 4)


def test_an_elastic_job_with_fewer_nodes(programs: Path) -> None:
    """Replicas without a node are absent; the job fails if too few remain."""
    code, events, _ = run(programs, sh("exit 0", 4, min_replicas=2), nodes="n[1-3]")
    assert code == 0
    assert [events.replicas[f"w/{k}"].absent for k in range(4)] == [False, False, False, True]


def test_an_elastic_job_that_loses_too_many(programs: Path) -> None:
    """Below `min_replicas` it fails."""
    code, _, _ = run(programs, sh(f"exit {macros.replica_id}", 4, min_replicas=3))
    assert code in (1, 2, 3)


def test_a_lost_node_is_no_success(programs: Path) -> None:
    """`srun` exits with 0 when the node of its step fails, but the replica counts as failed."""
    (programs / "srun").write_text("#!/bin/sh\necho 'srun: error: Node failure on n1' >&2\n")
    code, events, _ = run(programs, sh("exit 0"))
    assert (code, events.replicas["w/0"].exit_code) == (1, 1)


def test_a_program_that_is_not_there(programs: Path) -> None:
    """It exits with 127, and the log names it."""
    code, _, folder = run(programs, Role("w", "", entrypoint="no such", resource=Resource(1, 0, 1)))
    assert code == 127
    assert "`no such` is not on this node" in (folder / "w/0/stderr.log").read_text()


def test_a_folder_that_the_node_does_not_see(programs: Path) -> None:
    """The job ends at once with an explanation."""
    request = SlurmScheduler("s").submit_dryrun(AppDef("job", [sh("exit 0")]), {}).request
    done = subprocess.run(
        ["bash"], input=request.materialize(), cwd=programs, capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    assert "must be on a shared file system" in done.stderr


# -- retries by cause --------------------------------------------------------------------------------


def attempts_in(folder: Path) -> list[Attempt]:
    return read_attempts((folder / "attempts.jsonl").read_text().splitlines())


def test_a_bug_ends_the_job_and_is_on_record(programs: Path) -> None:
    """The program in the job's folder classifies the failure, and the job is not retried."""
    code, events, folder = run(programs, sh("echo 'ValueError: bad batch' >&2; exit 3"), retry="standard")
    assert (code, events.starts) == (3, 1)
    (attempt,) = attempts_in(folder)
    assert (attempt.kind, attempt.cause, attempt.hosts) == (
        "error",
        "w/0 on n1: exit code 3: ValueError: bad batch",
        ["n1"],
    )
    assert not attempt.again


def test_each_attempt_is_judged_by_its_own_words(programs: Path) -> None:
    """Output of the first attempt is not the cause of the second, which prints nothing; the logs have both."""
    said = programs.parent / "said"
    script = f"[ -e {said} ] && exit 4; : > {said}; echo 'ValueError: first' >&2; exit 3"
    code, events, folder = run(programs, sh(script), retry="error:1")
    assert (code, events.starts) == (4, 2)
    assert [a.cause for a in attempts_in(folder)] == [
        "w/0 on n1: exit code 3: ValueError: first",
        "w/0 on n1: exit code 4",
    ]
    assert (folder / "w/0/stderr.log").read_text() == "ValueError: first\n"


def test_memory_that_ran_out(programs: Path) -> None:
    """`srun` reports it: the job is requeued, with more memory for the next attempt."""
    said = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."
    (programs / "srun").write_text(
        SRUN.replace("os.execvp", f"print({said!r}, file=sys.stderr, flush=True); os.execvp")
    )
    (programs / "scontrol").write_text('#!/bin/sh\n[ $1 != show ] || exit 1\necho "$@" >> scontrol.log\n')
    (programs / "sleep").write_text("#!/bin/sh\n! grep -qs update scontrol.log || kill -9 $PPID\n")
    code, events, folder = run(
        programs, sh("kill -9 $$"), retry="oom:2:mem*1.5, node:1:avoid", slurm={"SLURM_MEM_PER_NODE": "100"}
    )
    (attempt,) = attempts_in(folder)
    assert (code, attempt.kind, attempt.again, attempt.memory) == (-9, "oom", True, 1.5)
    assert (folder / "scontrol.log").read_text().splitlines() == [
        "requeue 7",
        "update JobId=7 MinMemoryNode=150",
    ]
    assert (folder / "memory").read_text() == "1500\n"
    assert events.retrying


def test_slurm_has_put_the_job_back(programs: Path) -> None:
    """A run without a recorded end was preempted, or lost its node: the next run records that."""
    run(programs, sh("exit 0"), retry="preempted:free")
    folder = programs.parent / "job"
    lines = (folder / "events").read_text().splitlines()
    (folder / "events").write_text("\n".join(lines[:2]) + "\n")  # killed while it ran
    (programs / "sacct").write_text("#!/bin/sh\necho PREEMPTED; echo RUNNING\n")
    (programs / "sacct").chmod(0o755)
    code, events, _ = run(programs, sh("exit 0"), retry="preempted:free", slurm={"SLURM_RESTART_COUNT": "1"})
    assert (code, events.starts) == (0, 2)
    assert [(a.kind, a.again) for a in attempts_in(folder)] == [("preempted", True)]


def test_a_job_on_a_node_that_it_is_to_avoid_goes_back(programs: Path) -> None:
    """If the change was rejected or undone, it is requeued up to three times with the change repeated."""
    (programs / "scontrol").write_text('#!/bin/sh\n[ $1 != show ] || exit 1\necho "$@" >> scontrol.log\n')
    (programs / "sleep").write_text("#!/bin/sh\n! grep -qs update scontrol.log || kill -9 $PPID\n")
    asked = ["requeue 7", "update JobId=7 ExcNodeList=n1"]
    log = programs.parent / "job" / "scontrol.log"
    code, events, folder = run(programs, sh("exit 3"), retry="error:1:avoid", nodes="n1")
    assert (code, events.starts, log.read_text().splitlines()) == (-9, 1, asked)
    for _ in range(3):
        log.unlink()
        code, events, _ = run(
            programs, sh("exit 0"), retry="error:1:avoid", nodes="n[1-2]", slurm={"SLURM_RESTART_COUNT": "1"}
        )
        assert (code, events.starts, log.read_text().splitlines()) == (-9, 1, asked)
        assert events.retrying and len(attempts_in(folder)) == 1
    log.unlink()
    code, events, _ = run(
        programs, sh("exit 0"), retry="error:1:avoid", nodes="n[1-2]", slurm={"SLURM_RESTART_COUNT": "1"}
    )
    assert (code, events.starts) == (0, 2)
    assert not log.exists() and "to avoid: n1" in (folder / "retry.log").read_text()


def test_a_job_on_other_nodes_starts(programs: Path) -> None:
    """A node whose name has the same prefix is another node."""
    (programs / "scontrol").write_text('#!/bin/sh\n[ $1 != show ] || exit 1\necho "$@" >> scontrol.log\n')
    (programs / "sleep").write_text("#!/bin/sh\n! grep -qs update scontrol.log || kill -9 $PPID\n")
    run(programs, sh("exit 3"), retry="error:1:avoid", nodes="n1")
    code, events, folder = run(
        programs, sh("exit 0"), retry="error:1:avoid", nodes="n[10-11]", slurm={"SLURM_RESTART_COUNT": "1"}
    )
    assert (code, events.starts) == (0, 2) and not (folder / "put_back").exists()


def test_the_program_that_judges_is_packed_once() -> None:
    """Many submissions of one process share it."""
    assert program("slurm") is program("slurm")


def test_what_the_user_excludes_stays_excluded(programs: Path) -> None:
    """Nodes to avoid are added to the user's own exclusions."""
    (programs / "scontrol").write_text('#!/bin/sh\n[ $1 != show ] || exit 1\necho "$@" >> scontrol.log\n')
    (programs / "sleep").write_text("#!/bin/sh\n! grep -qs update scontrol.log || kill -9 $PPID\n")
    run(programs, sh("exit 3"), retry="error:1:avoid", nodes="n7", exclude="n[1-3],n9")
    log = programs.parent / "job" / "scontrol.log"
    assert log.read_text().splitlines() == ["requeue 7", "update JobId=7 ExcNodeList=n[1-3],n9,n7"]
