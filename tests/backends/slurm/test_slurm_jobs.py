"""Jobs on a real Slurm cluster: where they run, how they end, and what is said of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.backends.slurm.conftest import Job, command, ended, lines, running, until
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, RetryPolicy, Role
from torchx.specs.failures import parse_failure

SMALL = Resource(cpu=1, gpu=0, memMB=100)


def test_two_roles_are_one_heterogeneous_job(scheduler: SlurmScheduler) -> None:
    """Roles that ask for different nodes run at the same time, each with its own rank 0, under one id."""
    say = 'echo "$SLURMD_NODENAME $TORCHX_RANK0_HOST ${CUDA_VISIBLE_DEVICES:-none}"; sleep 1'
    app = AppDef(
        "het",
        [
            Role("reader", "", entrypoint="sh", args=["-c", say], resource=Resource(1, 0, 200)),
            Role("train er", "", entrypoint="sh", args=["-c", say], num_replicas=2, resource=Resource(2, 1, 300)),
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
    until(scheduler, app_id, lambda _: command(*argv).count("mem=300M") == 2, 15)
    assert command(*argv).count("mem=200M") == 3  # the job, its batch step, and its replica
    hosts = [replica.hostname for role in done.roles_statuses for replica in role.replicas]
    assert hosts == [reader[0], trainers[0][0], trainers[1][0]]
    scheduler.delete(app_id)


def test_gpus_are_reserved_and_seen(scheduler: SlurmScheduler, submit: Job) -> None:
    """A replica sees as many GPUs as it asked for; two on one node see different ones."""
    one = submit("echo gpus=$CUDA_VISIBLE_DEVICES; sleep 1", resource=Resource(1, 2, 100))
    two = submit(
        "echo gpus=$CUDA_VISIBLE_DEVICES; sleep 1", 2, resource=Resource(1, 2, 100), cfg={"replicas_per_node": 2}
    )
    job = running(scheduler, one)
    assert job.state is AppState.RUNNING
    assert "gres/gpu=2" in command("scontrol", "show", "job", one)
    assert ended(scheduler, one).state is AppState.SUCCEEDED
    assert ended(scheduler, two).state is AppState.SUCCEEDED
    assert lines(scheduler, one) == ["gpus=0,1\n"]
    seen = [lines(scheduler, two, k)[0].strip().removeprefix("gpus=") for k in (0, 1)]
    assert sorted(seen) == ["0,1", "2,3"]
    hosts = {replica.hostname for replica in ended(scheduler, two).roles_statuses[0].replicas}
    assert len(hosts) == 1


def test_the_first_failure_is_told_and_the_others_are_stopped(scheduler: SlurmScheduler, submit: Job) -> None:
    """The replica that failed is named with its exception; the others hear SIGTERM and are not called failed."""
    script = (
        'if [ "$SLURM_NODEID$1" = 01 ]; then sleep 1; python3 -c \'raise ValueError("no data")\'; exit 3; fi;'
        " trap 'echo told' TERM; sleep 60 & wait; exit 143"
    )
    app_id = submit(script.replace("$SLURM_NODEID$1", "0${replica_id}"), 3)
    done = ended(scheduler, app_id)
    assert done.state is AppState.FAILED
    host = done.roles_statuses[0].replicas[1].hostname
    assert done.msg == f"r/1 on {host} failed first: exit code 3: ValueError: no data"
    failure = parse_failure(done.structured_error_msg)
    assert failure is not None
    assert "Traceback (most recent call last)" in failure.traceback
    assert [str(r.state) for r in done.roles_statuses[0].replicas] == ["CANCELLED", "FAILED", "CANCELLED"]
    assert lines(scheduler, app_id, 0) == ["told\n"]


def test_cancelled_jobs_write_their_last_words(scheduler: SlurmScheduler, submit: Job) -> None:
    """A job that is cancelled hears SIGTERM, and those who follow its log read what it says then."""
    app_id = submit("trap 'echo saving; exec sleep 0.2' TERM; echo ready; sleep 100 & wait")
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
    greedy = submit("exec python3 -c 'import time; x = bytearray(400 << 20); time.sleep(20)'")
    killed = submit("kill -9 $$")
    done = ended(scheduler, greedy)
    assert done.state is AppState.FAILED
    assert "killed by SIGKILL: out of memory: it used" in done.msg
    assert "may use 100 MiB" in done.msg
    done = ended(scheduler, killed)
    assert "killed by SIGKILL" in done.msg
    assert "memory" not in done.msg


def test_retried_by_requeue_and_counted(scheduler: SlurmScheduler, submit: Job) -> None:
    """A failure is retried as often as asked for; a requeue by an administrator does not use a retry up."""
    script = 'echo "try ${SLURM_RESTART_COUNT:-0} $3"; [ "${SLURM_RESTART_COUNT:-0}" = 0 ] && sleep 60; exit 7'
    app_id = submit(script, max_retries=1)
    running(scheduler, app_id)
    until(scheduler, app_id, lambda _: bool(lines(scheduler, app_id)), 10)
    command("scontrol", "requeue", app_id)
    waiting = until(scheduler, app_id, lambda job: job.state is AppState.PENDING, 20)
    assert waiting.num_restarts == 1
    retrying = until(scheduler, app_id, lambda job: "retry 1 of 1" in job.msg, 40)
    assert retrying.state is AppState.PENDING
    done = ended(scheduler, app_id)
    assert done.state is AppState.FAILED
    assert done.num_restarts == 2
    assert done.msg.endswith("exit code 7; after 1 retry")
    assert lines(scheduler, app_id) == ["try 0 \n", "try 1 \n", "try 2 \n"]


def test_no_retries_means_no_requeue(scheduler: SlurmScheduler, submit: Job) -> None:
    """A job that asked for no retries is not started again by anybody."""
    app_id = submit("sleep 60")
    running(scheduler, app_id)
    done = subprocess.run(["scontrol", "requeue", app_id], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    scheduler.cancel(app_id)


def test_one_replica_or_one_role_starts_again_in_place(scheduler: SlurmScheduler, submit: Job, shared: Path) -> None:
    """With a retry policy of REPLICA or ROLE the job keeps its nodes."""
    flag = shared / "failed-once"
    fail_once = f"echo up; [ -e {flag}-$1 ] && exit 0; touch {flag}-$1; exit 5"
    alone = submit(
        "if [ ${replica_id} = 0 ]; then " + fail_once.replace("$1", "a") + "; fi; echo up",
        2,
        max_retries=1,
        retry_policy=RetryPolicy.REPLICA,
    )
    whole = submit(
        "if [ ${replica_id} = 0 ]; then "
        + fail_once.replace("$1", "b")
        + f"; fi; echo up; [ -e {flag}-c ] && exit 0; touch {flag}-c; sleep 60",
        2,
        max_retries=1,
        retry_policy=RetryPolicy.ROLE,
    )
    assert ended(scheduler, alone).state is AppState.SUCCEEDED
    assert [len(lines(scheduler, alone, k)) for k in (0, 1)] == [2, 1]
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
    """A job whose node is set down ends FAILED, and the message says that it was the node."""
    app_id = submit("echo up; sleep 60", 2)
    job = until(scheduler, app_id, lambda _: bool(lines(scheduler, app_id, 0) and lines(scheduler, app_id, 1)), 20)
    node = job.roles_statuses[0].replicas[1].hostname
    command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        ended(scheduler, app_id)
        # Which node it was is told by the step, a moment later.
        done = until(scheduler, app_id, lambda j: j.msg == f"a node failed while it ran: {node}", 20)
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


def test_logs_by_time_stream_and_end(scheduler: SlurmScheduler, submit: Job) -> None:
    """Both outputs come in the order of writing; `since` cuts off what is older; `last` finds the end."""
    from datetime import datetime

    script = "echo one; sleep 3; echo two >&2; sleep 3; printf 'three\\nfour'"
    app_id = submit(script)
    assert list(scheduler.log_iter(app_id, "r", 0, should_tail=True)) == ["one\n", "two\n", "three\n", "four"]
    started = ended(scheduler, app_id).started_at
    assert started is not None
    assert lines(scheduler, app_id) == ["one\n", "two\n", "three\n", "four"]
    assert lines(scheduler, app_id, since=datetime.fromtimestamp(started + 5.5)) == ["three\n", "four"]
    assert lines(scheduler, app_id, until=datetime.fromtimestamp(started + 3)) == ["one\n"]
    assert list(scheduler.log_iter(app_id, "r", 0).last(2)) == ["three\n", "four"]
    assert lines(scheduler, app_id, regex="^t") == ["two\n", "three\n"]
