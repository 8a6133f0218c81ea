"""Jobs on a real Slurm cluster: where they run, how they end, and what is said of it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.backends.slurm.conftest import Job, becomes, command, ended, lines, running, start_now, until, wait_for
from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.batch.logs import BatchLog
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, RetryPolicy, Role, macros
from torchx.specs.failures import parse_failure

SMALL = Resource(cpu=1, gpu=0, memMB=100)


@pytest.fixture
def partition() -> Iterator[str]:
    """A partition of the test's own, whose jobs wait while it is down."""
    name = f"mine{os.getpid()}"
    command("scontrol", "create", f"partitionname={name}", "nodes=n1")
    yield name
    command("scancel", f"--partition={name}")
    becomes(lambda: command("squeue", "-h", f"--partition={name}"), "")
    command("scontrol", "delete", f"partitionname={name}")


def test_two_roles_are_one_heterogeneous_job(scheduler: SlurmScheduler, tmp_path: Path) -> None:
    """Roles that ask for different nodes run at the same time, each with its own rank 0, under one id."""
    up = tmp_path / "up"
    together = f"touch {up}.$0; {wait_for(f'{up}.reader', f'{up}.0', f'{up}.1')}; sleep 1"
    say = f'echo "$SLURMD_NODENAME $TORCHX_RANK0_HOST ${{CUDA_VISIBLE_DEVICES:-none}}"; {together}'
    app = AppDef(
        "het",
        [
            Role("reader", "", entrypoint="sh", args=["-c", say, "reader"], resource=Resource(1, 0, 200)),
            Role(
                *("train er", ""),
                entrypoint="sh",
                args=["-c", say, macros.replica_id],
                num_replicas=2,
                resource=Resource(2, 1, 300),
            ),
        ],
    )
    app_id = scheduler.submit(app, {})
    done = ended(scheduler, app_id)
    assert done.state is AppState.SUCCEEDED
    assert [(r.role, len(r.replicas)) for r in done.roles_statuses] == [("reader", 1), ("train er", 2)]
    reader = lines(scheduler, app_id, role="reader")[0].split()
    trainers = [lines(scheduler, app_id, k, role="train er")[0].split() for k in (0, 1)]
    assert reader[0] == reader[1]
    assert {words[1] for words in trainers} == {trainers[0][0]}
    assert trainers[0][0] != trainers[1][0]
    assert [words[2] for words in (reader, *trainers)] == ["none", "0", "0"]
    # Each step may use the memory of its own role. Accounting hears of it a moment later.
    argv = ("sacct", "-nP", "-j", app_id, "--format=JobID,AllocTRES")
    # Of 200 MB: the job, its batch step, and its replica.
    becomes(lambda: [command(*argv).count(f"mem={mb}M") for mb in (200, 300)], [3, 2])
    hosts = [replica.hostname for role in done.roles_statuses for replica in role.replicas]
    assert hosts == [reader[0], trainers[0][0], trainers[1][0]]
    scheduler.delete(app_id)


def test_gpus_are_reserved_and_seen(scheduler: SlurmScheduler, submit: Job, tmp_path: Path) -> None:
    """A replica sees as many GPUs as it asked for; two on one node see different ones."""
    go, up = tmp_path / "go", tmp_path / "up"
    say, gpus = "echo gpus=$CUDA_VISIBLE_DEVICES", Resource(1, 2, 100)
    one = submit(f"{say}; {wait_for(go)}", resource=gpus)
    together = f"{say}; touch {up}${{replica_id}}; {wait_for(f'{up}0', f'{up}1')}"
    two = submit(together, 2, resource=gpus, cfg={"replicas_per_node": 2})
    running(scheduler, one)
    assert "gres/gpu=2" in command("scontrol", "show", "job", one)
    go.touch()
    assert ended(scheduler, one).state is AppState.SUCCEEDED
    assert ended(scheduler, two).state is AppState.SUCCEEDED
    assert lines(scheduler, one) == ["gpus=0,1\n"]
    seen = [lines(scheduler, two, k)[0].strip().removeprefix("gpus=") for k in (0, 1)]
    assert sorted(seen) == ["0,1", "2,3"]
    hosts = {replica.hostname for replica in ended(scheduler, two).roles_statuses[0].replicas}
    assert len(hosts) == 1


def test_the_first_failure_is_told_and_the_others_are_stopped(
    scheduler: SlurmScheduler, submit: Job, tmp_path: Path
) -> None:
    """The replica that failed is named with its exception; the others hear SIGTERM and are not called failed."""
    up = tmp_path / "up"
    fail = f"{wait_for(f'{up}0', f'{up}2')}; python3 -c 'raise ValueError(\"no data\")'; exit 3"
    listen = f"trap 'echo told; exit 143' TERM; touch {up}${{replica_id}}; while :; do sleep 1; done 2>/dev/null"
    app_id = submit(f"[ ${{replica_id}} = 1 ] && {{ {fail}; }}; {listen}", 3)
    done = ended(scheduler, app_id)
    assert done.state is AppState.FAILED
    host = done.roles_statuses[0].replicas[1].hostname
    assert done.msg == f"r/1 on {host}: exit code 3: ValueError: no data"
    failure = parse_failure(done.structured_error_msg)
    assert failure is not None
    assert "Traceback (most recent call last)" in failure.traceback
    assert [str(r.state) for r in done.roles_statuses[0].replicas] == ["CANCELLED", "FAILED", "CANCELLED"]
    assert lines(scheduler, app_id, 0) == lines(scheduler, app_id, 2) == ["told\n"]


def test_cancelled_jobs_write_their_last_words(scheduler: SlurmScheduler, submit: Job) -> None:
    """A job that is cancelled hears SIGTERM, and those who follow its log read what it says then."""
    app_id = submit("trap 'echo saving; exec sleep 0.2' TERM; echo ready; while :; do sleep 1; done 2>/dev/null")
    running(scheduler, app_id)
    log = iter(scheduler.log_iter(app_id, "r", 0, should_tail=True))
    assert next(log) == "ready\n"
    scheduler.cancel(app_id)
    assert list(log) == ["saving\n"]
    done = ended(scheduler, app_id)
    assert done.state is AppState.CANCELLED
    assert [str(r.state) for r in done.roles_statuses[0].replicas] == ["CANCELLED"]


def test_killed_for_its_memory(scheduler: SlurmScheduler, submit: Job) -> None:
    """A job that uses more memory than it may is told apart from one that somebody killed."""
    greedy = submit("exec python3 -c 'import time; x = bytearray(400 << 20); time.sleep(600)'")
    killed = submit("kill -9 $$")
    done = ended(scheduler, greedy)
    assert done.state is AppState.FAILED
    assert "killed by SIGKILL: out of memory: it used" in done.msg
    assert "may use 100 MiB" in done.msg
    done = ended(scheduler, killed)
    assert "killed by SIGKILL" in done.msg
    assert "memory" not in done.msg.replace("(often: out of memory)", "")


def test_retried_by_requeue_and_counted(scheduler: SlurmScheduler, submit: Job, partition: str, tmp_path: Path) -> None:
    """A failure is retried as often as asked for; a requeue by an administrator does not use a retry up."""

    def let(state: str) -> None:
        command("scontrol", "update", f"partitionname={partition}", f"state={state}")

    fail = tmp_path / "fail"
    script = f'echo "try ${{SLURM_RESTART_COUNT:-0}} $3"; {wait_for(fail)}; exit 7'
    app_id = submit(script, max_retries=1, cfg={"partition": partition})
    becomes(lambda: lines(scheduler, app_id), ["try 0 \n"])
    let("down")
    command("scontrol", "requeue", app_id)
    waiting = until(scheduler, app_id, lambda job: job.state is AppState.PENDING)
    assert waiting.num_restarts == 1
    start_now(app_id)
    let("up")
    becomes(lambda: lines(scheduler, app_id)[-1], "try 1 \n")
    let("down")
    fail.touch()
    retrying = until(scheduler, app_id, lambda job: "retry 1 of 1" in job.msg)
    assert retrying.state is AppState.PENDING
    start_now(app_id)
    let("up")
    done = ended(scheduler, app_id)
    assert done.state is AppState.FAILED
    assert done.num_restarts == 2
    assert done.msg.endswith("exit code 7: try 2; after 2 restarts")
    assert lines(scheduler, app_id) == ["try 0 \n", "try 1 \n", "try 2 \n"]
    (before,) = list(scheduler.open_logs(app_id, [("r", 0)], LogQuery(timestamps=True, previous=True))[0])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.000Z try 1 \n", before)


def test_a_job_that_must_not_be_requeued(scheduler: SlurmScheduler, submit: Job) -> None:
    """With `requeue=no` it is not started again by anybody."""
    app_id = submit("sleep 600", cfg={"requeue": "no"})
    running(scheduler, app_id)
    done = subprocess.run(["scontrol", "requeue", app_id], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    scheduler.cancel(app_id)


def test_one_replica_or_one_role_starts_again_in_place(scheduler: SlurmScheduler, submit: Job, tmp_path: Path) -> None:
    """With a retry policy of REPLICA or ROLE the job keeps its nodes."""
    flag = tmp_path / "once"
    fail_once = f"echo up; [ -e {flag}-$1 ] && exit 0; touch {flag}-$1; $2 exit 5"
    alone = submit(
        "if [ ${replica_id} = 0 ]; then " + fail_once.replace("$1", "a").replace("$2", "") + "; fi; echo up",
        2,
        max_retries=1,
        retry_policy=RetryPolicy.REPLICA,
    )
    whole = submit(
        "if [ ${replica_id} = 0 ]; then "
        + fail_once.replace("$1", "b").replace("$2", f"{wait_for(f'{flag}-c')};")
        + f"; fi; echo up; [ -e {flag}-c ] && exit 0; touch {flag}-c; sleep 600",
        2,
        max_retries=1,
        retry_policy=RetryPolicy.ROLE,
    )
    assert ended(scheduler, alone).state is AppState.SUCCEEDED
    assert [len(lines(scheduler, alone, k)) for k in (0, 1)] == [2, 1]
    logs = scheduler.open_logs(alone, [("r", 0), ("r", 1)], LogQuery(previous=True))
    assert list(logs[0]) == ["up\n"]
    with pytest.raises(NotFoundError, match="not started again"):
        list(logs[1])
    done = ended(scheduler, whole)
    assert (done.state, done.num_restarts) == (AppState.SUCCEEDED, 1)
    # A shell may say "Terminated" of its `sleep`.
    assert [lines(scheduler, whole, k).count("up\n") for k in (0, 1)] == [2, 2]


def test_an_elastic_job_loses_a_replica(scheduler: SlurmScheduler, submit: Job) -> None:
    """With `min_replicas` the job goes on without those that failed, and succeeds."""
    app_id = submit("[ ${replica_id} = 1 ] && exit 9; sleep 2; echo made it", 3, min_replicas=2)
    done = ended(scheduler, app_id)
    assert done.state is AppState.SUCCEEDED, done.msg
    assert [str(r.state) for r in done.roles_statuses[0].replicas] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_a_node_that_dies(scheduler: SlurmScheduler, submit: Job) -> None:
    """A job whose node is set down ends FAILED where it is not requeued, and the message says that it was the node."""
    app_id = submit("echo up; sleep 600", 2, cfg={"requeue": "no"})
    becomes(lambda: [lines(scheduler, app_id, k) for k in (0, 1)], [["up\n"], ["up\n"]])
    job = until(scheduler, app_id, lambda job: job.roles_statuses[0].replicas[1].hostname)
    node = job.roles_statuses[0].replicas[1].hostname
    command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        ended(scheduler, app_id)
        # Which node it was is told by the step, a moment later.
        done = until(scheduler, app_id, lambda j: j.msg == f"a node failed while it ran: {node}")
    finally:  # where Slurm has not taken it back by itself
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], capture_output=True, check=False)
    assert done.state is AppState.FAILED


def test_memory_is_left_out_where_it_cannot_be_taken(scheduler: SlurmScheduler, submit: Job) -> None:
    """A partition that knows of no memory takes a job that asks for some."""
    app_id = submit("echo here", cfg={"partition": "nomem"})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == ["here\n"]


def test_a_program_that_is_not_there(scheduler: SlurmScheduler) -> None:
    """The message names the program."""
    app = AppDef("nf", [Role("r", "", entrypoint="no-such-program", resource=SMALL)])
    app_id = scheduler.submit(app, {})
    assert "exit code 127: torchx: `no-such-program` is not on this node" in ended(scheduler, app_id).msg
    scheduler.delete(app_id)


def test_logs_by_time_stream_and_end(scheduler: SlurmScheduler, submit: Job, tmp_path: Path) -> None:
    """Both outputs come in the order of writing; `since` cuts off what is older; `last` finds the end."""
    two, three = tmp_path / "two", tmp_path / "three"
    app_id = submit(f"echo one; {wait_for(two)}; echo two >&2; {wait_for(three)}; printf 'three\\nfour'")
    log = iter(scheduler.log_iter(app_id, "r", 0, should_tail=True))
    assert next(log) == "one\n"
    first = moment_after(scheduler, app_id, ["one\n"])
    two.touch()
    assert next(log) == "two\n"
    second = moment_after(scheduler, app_id, ["one\n", "two\n"])
    three.touch()
    assert list(log) == ["three\n", "four"]
    assert ended(scheduler, app_id).started_at is not None
    assert lines(scheduler, app_id) == ["one\n", "two\n", "three\n", "four"]
    assert lines(scheduler, app_id, since=second) == ["three\n", "four"]
    assert lines(scheduler, app_id, until=first) == ["one\n"]
    (opened,) = scheduler.open_logs(app_id, [("r", 0)], LogQuery())
    assert isinstance(opened, BatchLog)
    assert list(opened.last(2)) == ["three\n", "four"]
    assert lines(scheduler, app_id, regex="^t") == ["two\n", "three\n"]


def moment_after(scheduler: SlurmScheduler, app_id: str, written: list[str]) -> datetime:
    """One at which these lines were there, by the job's own notes, and nothing that is written from now on."""

    def known() -> list[str]:
        try:
            return lines(scheduler, app_id, until=datetime.now())
        except NotSupportedError:  # it has noted nothing yet
            return []

    becomes(known, written)
    moment = datetime.now()
    time.sleep(1.1)  # the notes are to the second
    return moment
