"""Failures in a gang, with real processes: who stops, who starts again, what is told."""

from __future__ import annotations

import pytest

from torchx.specs.api import AppDef, AppState, RetryPolicy, Role
from torchx.specs.failures import parse_failure

from .conftest import ended, eventually, lines, processes_of

S, F, C = AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED


def _states(described) -> list[AppState]:
    return [r.state for role in described.roles_statuses for r in role.replicas]


def test_one_fails_and_the_others_are_stopped(scheduler, submit) -> None:
    """The first failure ends the job: that replica is named with its last words, the others are CANCELLED."""
    app_id = submit("test ${replica_id} = 2 && { echo boom >&2; exit 7; }; sleep 1000", 4)
    described = ended(scheduler, app_id)
    assert described.state == F
    assert _states(described) == [C, C, F, C]
    assert described.msg == "r/2: exit code 7: boom"
    failure = parse_failure(described.structured_error_msg)
    assert failure is not None and (failure.exit_code, failure.message) == (7, "boom")


def test_the_first_of_several_failures_is_named(scheduler, submit, tmp_path) -> None:
    """Replicas that fail because another did are not taken for the cause."""
    some_missing = " -o ".join(f"! -e {tmp_path}/{k}" for k in (0, 1, 2, 4))
    app_id = submit(
        f"if [ ${{replica_id}} = 3 ]; then while [ {some_missing} ]; do sleep 0.01; done; exit 3; fi; "
        f"trap 'exit 9' TERM; touch {tmp_path}/${{replica_id}}; while :; do sleep 0.02; done",
        5,
    )
    described = ended(scheduler, app_id)
    assert described.msg.startswith("r/3: exit code 3")


def test_a_signal_is_named(scheduler, submit) -> None:
    """A replica that was killed says by what."""
    app_id = submit("kill -9 $$")
    described = ended(scheduler, app_id)
    assert described.state == F
    assert described.msg == "r/0: killed by SIGKILL (often: out of memory)"


def test_the_error_file_of_torchelastic_is_told(scheduler, submit) -> None:
    """What was written to TORCHELASTIC_ERROR_FILE explains the failure."""
    content = '{"message": {"message": "RuntimeError: lost", "extraInfo": {"py_callstack": "Trace", "timestamp": "5"}}}'
    described = ended(scheduler, submit(f"echo '{content}' > $TORCHELASTIC_ERROR_FILE; exit 1"))
    assert described.msg == "r/0: exit code 1: RuntimeError: lost"
    assert described.roles_statuses[0].replicas[0].structured_error_msg == described.structured_error_msg


@pytest.mark.parametrize("policy", list(RetryPolicy))
def test_retry_policies(scheduler, policy: RetryPolicy, tmp_path) -> None:
    """What is started again: the replica, its role, or everything. Each attempt leaves a mark."""
    once = f"echo x >> {tmp_path}/$TORCHX_LOCAL_REPLICA"
    others = f"while [ ! -e {tmp_path}/0 -o ! -e {tmp_path}/2 ]; do sleep 0.01; done"
    fails = f"test -e {tmp_path}/failed || {{ {others}; touch {tmp_path}/failed; exit 1; }}; touch {tmp_path}/again"
    until_then = f"while [ ! -e {tmp_path}/again ]; do sleep 0.01; done"
    app = AppDef(
        "job",
        [
            Role(
                "a",
                "",
                entrypoint="sh",
                args=["-c", f"{once}; test ${{replica_id}} = 1 || exit 0; {fails}"],
                num_replicas=2,
                max_retries=1,
                retry_policy=policy,
            ),
            Role("b", "", entrypoint="sh", args=["-c", f"{once}; {until_then}"]),
        ],
    )
    app_id = scheduler.submit(app, {"cancel_grace_s": 1})
    described = ended(scheduler, app_id)
    assert described.state == S
    assert _states(described) == [S, S, S]
    assert described.num_restarts == 1
    starts = [(tmp_path / str(i)).read_text().count("x") for i in range(3)]
    assert starts == {"REPLICA": [1, 2, 1], "ROLE": [2, 2, 1], "APPLICATION": [2, 2, 2]}[policy.value]


def test_retries_used_up(scheduler, submit) -> None:
    """After the last retry the job has FAILED, and says how often it was tried."""
    described = ended(scheduler, submit("echo try; exit 1", max_retries=2))
    assert (described.state, described.num_restarts) == (F, 2)
    assert described.msg == "r/0: exit code 1: try; after 2 restarts"


def test_a_retry_begins_when_nothing_of_the_last_attempt_is_left(scheduler, submit, tmp_path) -> None:
    """A process that an attempt left behind, holding its port, is gone before the next begins."""
    lock = tmp_path / "lock"
    command = (
        f"if [ -e {lock} ]; then kill -0 $(cat {lock}) 2>/dev/null && exit 5; exit 0; fi; "
        f"(setsid sh -c 'echo $$ > {lock}; trap \"\" TERM; sleep 100' &) ; while [ ! -s {lock} ]; do sleep 0.01; done; exit 1"
    )
    described = ended(scheduler, submit(command, max_retries=1))
    assert (described.state, described.num_restarts) == (S, 1)


# A look at the processes that lasts: what was counted before it has ended when it is over, and left something behind.
SLOW_LOOK = """
import os, sys, time
sys.path.append({root!r})
from torchx.supervisor import launcher, proctree

look = proctree.snapshot

def snapshot():
    open({begun!r}, "w").close()
    while not os.path.exists({up!r}) or not any(look()[pid].state == "Z" for pid in proctree.children_of_self()):
        time.sleep(0.005)
    proctree.snapshot = look
    return look()

proctree.snapshot = snapshot
launcher.main()
"""


def test_a_retry_does_not_begin_beside_what_was_left_during_a_look(scheduler, submit, program, tmp_path) -> None:
    """A daemon whose parent ends just then belongs to the attempt, too."""
    begun, up = tmp_path / "begun", tmp_path / "up"
    program(SLOW_LOOK, begun=str(begun), up=str(up))
    daemon = f"setsid sh -c 'echo $$ > {up}.new; mv {up}.new {up}; exec sleep 1000' &"
    command = (
        f"if [ -e {up} ]; then kill -0 $(cat {up}) 2> /dev/null && exit 5; exit 0; fi; "
        f"(while [ ! -e {begun} ]; do sleep 0.01; done; {daemon}) & exit 1"
    )
    described = ended(scheduler, submit(command, max_retries=1))
    assert (described.state, described.num_restarts) == (S, 1)


def test_an_elastic_role_goes_on(scheduler, submit, tmp_path) -> None:
    """Of two replicas, at least one wanted, one is killed: the other goes on, and the job succeeds."""
    go = tmp_path / "go"
    work = (
        f"echo up; if [ ${{replica_id}} = 1 ]; then sleep 1000; fi; while [ ! -e {go} ]; do sleep 0.01; done; echo done"
    )
    app_id = submit(work, 2, min_replicas=1)
    eventually(lambda: lines(scheduler, app_id, 1) == ["up\n"])
    victim = next(p for p in processes_of(scheduler, app_id) if _replica(p) == "1" and p.session == p.pid)
    import os

    os.kill(victim.pid, 9)
    eventually(lambda: AppState.FAILED in _states(scheduler.describe(app_id)))
    eventually(lambda: not any(_replica(p) == "1" for p in processes_of(scheduler, app_id)))
    assert scheduler.describe(app_id).state == AppState.RUNNING
    go.touch()
    described = ended(scheduler, app_id)
    assert described.state == S
    assert _states(described) == [S, F]
    assert "1 of 2 replicas lost (r/1)" in described.msg
    assert lines(scheduler, app_id) == ["up\n", "done\n"]


def test_an_elastic_role_below_its_minimum_fails(scheduler, submit, tmp_path) -> None:
    """Two of three wanted, two fail: the job has failed, the first failure being the cause."""
    first = tmp_path / "first"
    after_it = f"while [ ! -s {first} ] || kill -0 $(cat {first}) 2> /dev/null; do sleep 0.01; done"
    work = f"case ${{replica_id}} in 0) echo $$ > {first}; exit 3;; 1) {after_it}; exit 4;; esac; sleep 1000"
    app_id = submit(work, 3, min_replicas=2)
    described = ended(scheduler, app_id)
    assert described.state == F
    assert _states(described) == [F, F, C]
    assert described.msg.startswith("r/0: exit code 3")


def _replica(process) -> str | None:
    from torchx.supervisor import proctree

    return proctree.environment(process.pid).get(proctree.ENV_REPLICA)
