"""Jobs on the look-alike: they run, find replica 0, fail with a reason, are retried, followed, listed and cancelled."""

from __future__ import annotations

import re
import sys
import threading
from typing import Any

import pytest

from torchx.schedulers.api import Stream
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppDef, AppState, Resource, RetryPolicy, Role, macros
from torchx.specs.wishes.after import AFTER

from .conftest import command, ended, eventually, lines, wait_for

SMALL = Resource(cpu=1, gpu=0, memMB=128)


def test_replicas_run_and_know_replica_0(scheduler, submit) -> None:
    """Each replica runs once; all are told the host of replica 0, and a port that is free there."""
    app_id = submit(f"echo {macros.replica_id} $TORCHX_RANK0_HOST $TORCHX_RANK0_PORT; pwd", 3)
    done = ended(scheduler, app_id)
    assert done.state is AppState.SUCCEEDED
    assert done.num_restarts == 0
    assert [r.hostname for r in done.roles_statuses[0].replicas] == ["127.0.0.11"] * 3
    outputs = [lines(scheduler, app_id, k)[0].split() for k in range(3)]
    assert [words[0] for words in outputs] == ["0", "1", "2"]
    assert len({tuple(words[1:]) for words in outputs}) == 1
    assert outputs[0][1] == "127.0.0.11"
    assert int(outputs[0][2]) >= 20000


def test_replicas_on_other_hosts_find_replica_0(scheduler, submit) -> None:
    """Where replicas do not fit on one host, the others are told of the host of replica 0, too."""
    app_id = submit("echo $TORCHX_RANK0_HOST", 2, resource=Resource(cpu=6, gpu=0, memMB=64))
    done = ended(scheduler, app_id)
    assert [r.hostname for r in done.roles_statuses[0].replicas] == ["127.0.0.11", "127.0.0.12"]
    assert lines(scheduler, app_id, 1) == ["127.0.0.11\n"]


def test_two_roles(scheduler) -> None:
    """Roles run side by side, each with its resources, and each with a replica 0 of its own."""
    roles = [
        Role("reader", "", entrypoint="sh", args=["-c", "echo r"], resource=SMALL, num_replicas=2),
        Role(
            "trainer/x y", "", entrypoint="sh", args=["-c", "echo $CUDA_VISIBLE_DEVICES"], resource=Resource(1, 2, 64)
        ),
    ]
    app_id = scheduler.submit(AppDef("two", roles), {})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id, 1, "reader") == ["r\n"]
    assert lines(scheduler, app_id, 0, "trainer/x y") == ["0,1\n"]


def test_the_cause_of_a_failure(scheduler, submit) -> None:
    """A replica that fails takes the others with it; the message names it, its exit code and its last words."""
    script = f"if [ {macros.replica_id} = 1 ]; then {sys.executable} -c 'raise ValueError(7)'; else sleep 1000; fi"
    app_id = submit(script, 3)
    done = ended(scheduler, app_id)
    assert done.state is AppState.FAILED
    assert done.msg == "r/1 on 127.0.0.11: exit code 1: ValueError: 7"
    assert "Traceback" in done.structured_error_msg
    assert [r.state.name for r in done.roles_statuses[0].replicas] == ["CANCELLED", "FAILED", "CANCELLED"]


def test_killed_by_a_signal(scheduler, submit) -> None:
    """A replica that a signal ends is told with the name of the signal."""
    done = ended(scheduler, submit("kill -SEGV $$"))
    assert (done.state, done.msg) == (AppState.FAILED, "r/0 on 127.0.0.11: killed by SIGSEGV")


def test_memory_limit(scheduler, submit) -> None:
    """A replica that uses more memory than it asked for is FAILED, and that is why."""
    eats = f"{sys.executable} -c 'import time; x = bytearray(300 << 20); time.sleep(1000)'"
    done = ended(scheduler, submit(eats, resource=Resource(cpu=1, gpu=0, memMB=100)))
    assert done.state is AppState.FAILED
    assert done.msg == "r/0 on 127.0.0.11: it used more memory than it asked for (TERM_MEMLIMIT)"


def test_run_limit(scheduler, submit) -> None:
    """The option `time` is a limit; a replica that exceeds it is FAILED, and that is why."""
    done = ended(scheduler, submit("sleep 1000", cfg={"time": "1"}))  # a minute is a second here
    assert done.state is AppState.FAILED
    assert done.msg == "r/0 on 127.0.0.11: it ran longer than its time limit (TERM_RUNLIMIT)"


def test_cancel(scheduler, submit) -> None:
    """Cancelling ends every replica, the waiting ones too, and says so; programs get SIGTERM to clean up."""
    app_id = submit("trap 'echo bye; exit 0' INT TERM; echo up; while :; do sleep 0.05; done", 2)
    eventually(lambda: lines(scheduler, app_id) == ["up\n"] == lines(scheduler, app_id, 1))
    scheduler.cancel(app_id)
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state is AppState.CANCELLED
    assert lines(scheduler, app_id) == ["up\n", "bye\n"]
    stubborn = submit("sleep 1000", 2)
    eventually(lambda: scheduler.describe(stubborn).state is AppState.RUNNING)
    scheduler.cancel(stubborn)
    done = ended(scheduler, stubborn)
    assert (done.state, done.msg) == (AppState.CANCELLED, "it was killed by its owner (TERM_OWNER)")


@pytest.mark.parametrize(
    ("before", "cfg", "resource", "why"),
    [
        ([], {}, Resource(99, 0, 64), "not enough slots are free (4 hosts)"),
        ([], {}, Resource(1, 9, 64), "no host has enough free memory, GPUs or the like (4 hosts)"),
        ([], {}, Resource(1, 0, 99 << 10), "no host has enough free memory, GPUs or the like (4 hosts)"),
        (["badmin qinact urgent"], {"lsf_queue": "urgent"}, SMALL, "its queue starts no jobs now"),
        (["badmin hclose 127.0.0.12"], {"hosts": "127.0.0.12"}, SMALL, "hosts are closed by an administrator (1 host)"),
        (
            ["bsub -q narrow sleep 1000"],
            {"lsf_queue": "narrow"},
            SMALL,
            "you have reached your limit of slots in this queue",
        ),
        (
            ["bsub -m 127.0.0.13 sleep 1000"],
            {"hosts": "127.0.0.13", "exclusive": True},
            SMALL,
            "it wants a host for itself",
        ),
        (
            ["bsub -x -m 127.0.0.13 sleep 1000"],
            {"hosts": "127.0.0.13"},
            SMALL,
            "hosts are taken by exclusive jobs (1 host)",
        ),
    ],
    ids=["slots", "gpus", "memory", "queue", "closed", "user-limit", "exclusive", "taken"],
)
def test_pending_says_why(scheduler, submit, before: list[str], cfg, resource: Resource, why: str) -> None:
    """A job that waits says for what, in a sentence; replicas that wait for replica 0 do not hide its reason."""
    for line in before:
        command(*line.split())
    try:
        app_id = submit("true", 2, cfg=cfg, resource=resource)
        told: Any = eventually(lambda: (d := scheduler.describe(app_id)) and why in d.msg and d)
        assert told.state is AppState.PENDING
        assert re.match(r"r/0( \(and 1 more\))?: ", told.msg)
    finally:
        command("badmin", "qact", "urgent")
        command("badmin", "hopen", "127.0.0.12")


def test_a_job_after_another(scheduler, submit, tmp_path) -> None:
    """All replicas wait for all of the earlier job; what can never start is removed."""
    go, order = tmp_path / "go", tmp_path / "order"
    first = submit(f"{wait_for(go)}; echo first >> {order}; test {macros.replica_id} = 0", 2)

    def later(condition: str) -> str:
        script = ["-c", f"echo {condition} >> {order}"]
        app = AppDef(
            "later",
            [Role("r", "", entrypoint="sh", args=script, num_replicas=2, resource=SMALL)],
            metadata={AFTER: f"{condition}:lsf://test/{first}"},
        )
        return scheduler.submit(app, {})

    jobs = {condition: later(condition) for condition in ("ok", "any", "fail")}
    waits = scheduler.describe(jobs["any"])
    assert (waits.state, waits.msg) == (
        AppState.PENDING,
        "r/0 (and 1 more): it waits for another job: replica 0, or one of `--after`",
    )
    go.touch()
    ends = {condition: ended(scheduler, app_id) for condition, app_id in jobs.items()}
    assert {condition: found.state.name for condition, found in ends.items()} == {
        "ok": "CANCELLED",
        "any": "SUCCEEDED",
        "fail": "SUCCEEDED",
    }
    assert "can never start" in ends["ok"].msg
    assert sorted(order.read_text().split()) == ["any", "any", "fail", "fail", "first", "first"]


def test_held_and_suspended(scheduler, submit, tmp_path) -> None:
    """What its owner stops waits, and says so; `bresume` lets it go on."""
    go = tmp_path / "go"
    app_id = submit(f"{wait_for(go)}; echo done")
    eventually(lambda: scheduler.describe(app_id).state is AppState.RUNNING)
    command("bstop", "-g", f"/torchx_{app_id}", "0")
    told = scheduler.describe(app_id)
    assert (told.state, told.msg.partition(";")[0]) == (
        AppState.PENDING,
        "its owner or an administrator has suspended it",
    )
    command("bresume", "-g", f"/torchx_{app_id}", "0")
    eventually(lambda: scheduler.describe(app_id).state is AppState.RUNNING)
    go.touch()
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED


# Each replica counts its runs in a file, and says the number; when it is ended meanwhile it does both, or neither.
FLAKY = f"""trap '' INT TERM
n=$(cat n.{macros.replica_id} 2>/dev/null || echo 0); echo $((n+1)) >n.{macros.replica_id}; echo run $n
touch ran.{macros.replica_id}.$n
trap - INT TERM
"""


@pytest.mark.parametrize("policy", list(RetryPolicy), ids=lambda p: p.name)
def test_retries(scheduler, submit, policy: RetryPolicy, tmp_path) -> None:
    """Replica 1 fails twice and succeeds then: REPLICA starts it alone again, the other policies every replica."""
    other = "ran.0.0" if policy is RetryPolicy.REPLICA else "ran.0.$n"
    fail = f"until [ -e {other} ]; do sleep 0.05; done; [ $n -ge 2 ]"
    script = FLAKY + f"[ {macros.replica_id} = 0 ] && sleep 0.4; [ {macros.replica_id} = 0 ] || {{ {fail}; }}"
    # The image is a folder: there the replicas count their runs.
    app_id = submit(script, 2, image=str(tmp_path), max_retries=2, retry_policy=policy)
    done = ended(scheduler, app_id)
    assert (done.state, done.num_restarts) == (AppState.SUCCEEDED, 2)
    assert lines(scheduler, app_id, 1) == ["run 0\n", "run 1\n", "run 2\n"]
    again = ["run 0\n"] if policy is RetryPolicy.REPLICA else ["run 0\n", "run 1\n", "run 2\n"]
    assert lines(scheduler, app_id, 0) == again


def test_retries_end(scheduler, submit, tmp_path) -> None:
    """When the retries are used up the job is FAILED with the exit code of the program, even the one that LSF requeues."""
    both = "until [ -e ran.0.$n ] && [ -e ran.1.$n ]; do sleep 0.05; done; "
    app_id = submit(FLAKY + both + "exit 99", 2, image=str(tmp_path), max_retries=1)
    done = ended(scheduler, app_id)
    assert (done.state, done.num_restarts) == (AppState.FAILED, 1)
    assert "exit code 1" in done.msg
    assert lines(scheduler, app_id) == ["run 0\n", "run 1\n"]


def test_replicas_that_fail_together_are_put_back_once(scheduler, submit, tmp_path) -> None:
    """Each puts itself back, or is put back by the first that failed: nobody is killed in its new attempt."""
    together = f"touch up.{macros.replica_id}; until [ $(ls up.* | wc -l) = 6 ]; do sleep 0.05; done; [ $n -ge 1 ]"
    app_id = submit(FLAKY + together, 6, image=str(tmp_path), max_retries=1)
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert [lines(scheduler, app_id, k) for k in range(6)] == [["run 0\n", "run 1\n"]] * 6


def test_one_that_starts_late_takes_part_in_the_new_attempt(scheduler, submit, tmp_path) -> None:
    """The first that runs fails while others are being started: they are in one attempt or the other, and none is lost."""
    app_id = submit(FLAKY + "mkdir first 2>/dev/null && exit 3; sleep 0.3", 8, image=str(tmp_path), max_retries=1)
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    for k in range(8):
        assert lines(scheduler, app_id, k) in (["run 0\n"], ["run 0\n", "run 1\n"])


def test_an_elastic_role_goes_on(scheduler, submit, tmp_path) -> None:
    """A role that can spare a replica goes on without it, and succeeds."""
    failing = tmp_path / "failing"
    script = f"[ {macros.replica_id} = 2 ] && touch {failing} && exit 3; {wait_for(failing)}; sleep 0.5; echo done"
    app_id = submit(script, 3, min_replicas=2)
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id, 1) == ["done\n"]


def test_logs_are_followed(scheduler, submit, tmp_path) -> None:
    """A reader that follows gets each line when it is written, from both streams, and ends with the job."""
    go = tmp_path / "go"
    app_id = submit(f"for i in 1 2 3; do echo out $i; sleep 0.2; done; echo err >&2; {wait_for(go)}; echo over")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.extend(scheduler.log_iter(app_id, "r", 0, should_tail=True)))
    reader.start()
    eventually(lambda: len(got) == 4)
    assert scheduler.describe(app_id).state is AppState.RUNNING
    go.touch()
    reader.join(timeout=180)
    assert got[-1] == "over\n"
    assert sorted(got) == ["err\n", "out 1\n", "out 2\n", "out 3\n", "over\n"]
    assert lines(scheduler, app_id, streams=Stream.STDERR) == ["err\n"]


HOSTILE = [
    "a b",
    "$(touch pwned)",
    "`touch pwned`",
    "'",
    '"',
    "\\",
    "*",
    ";touch pwned",
    "a\nb",
    "\n#BSUB -q x\n",
    "%J",
    "é日",
]


def test_hostile_strings_everywhere(scheduler, tmp_path, cluster) -> None:
    """Whatever stands in names, arguments, environment and options arrives as it is, or is refused: nothing else runs."""
    (tmp_path / "here").mkdir()
    for i, text in enumerate(HOSTILE):
        role = Role(
            f"r{text}",
            str(tmp_path / "here"),
            entrypoint="/usr/bin/printf",
            args=["%s\\n", text, macros.app_id],
            env={"V": text, "odd-name": text, "role": text, "job": text, "UID": text},
            resource=SMALL,
            num_replicas=2 if i == 0 else 1,
            metadata={"m": text},
        )
        app_id = scheduler.submit(AppDef(f"n{text}", [role], {"x": text}), {"project": f"p{text}"})
        assert ended(scheduler, app_id).state is AppState.SUCCEEDED, text
        assert "".join(lines(scheduler, app_id, 0, role.name)) == f"{text}\n{app_id}\n"
    assert list(tmp_path.rglob("pwned")) == []


def test_the_environment_arrives(scheduler, tmp_path) -> None:
    """Variables of any name and value reach the program; those that our script uses itself are not disturbed by them."""
    env = {"V": "a\nb'\"$(id)\\", "dir": "x", "role": "y", "odd-name": "z", "code": "7", "UID": "5"}
    script = "import os, sys; print([os.environ.get(n) for n in sys.argv[1:]])"
    role = Role("r", "", entrypoint=sys.executable, args=["-c", script, *env], env=env, resource=SMALL)
    app_id = scheduler.submit(AppDef("env", [role]), {})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == [f"{list(env.values())!r}\n"]


def test_list_and_delete(scheduler, submit) -> None:
    """One query lists all jobs of the user, with their states; other people's LSF jobs are not among them."""
    command("bsub", "-J", "make all", "sleep", "100")
    ids = [submit("true"), submit("sleep 1000", 2)]
    ended(scheduler, ids[0])
    eventually(lambda: scheduler.describe(ids[1]).state is AppState.RUNNING)
    listed = {job.app_id: (job.name, job.state) for job in scheduler.list()}
    assert {i: listed[i] for i in ids} == {ids[0]: ("job", AppState.SUCCEEDED), ids[1]: ("job", AppState.RUNNING)}
    assert not any("make" in app_id for app_id in listed)
    scheduler.delete(ids[1])
    assert scheduler.describe(ids[1]) is None
    left = {job.app_id for job in scheduler.list()}
    assert ids[0] in left
    assert ids[1] not in left


def test_another_user_directory_finds_the_logs(scheduler, submit, monkeypatch, tmp_path) -> None:
    """A job submitted with another home is described, with its roles, and its logs are found: LSF knows its folder."""
    app_id = submit("echo hi")
    ended(scheduler, app_id)
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "another"))
    other = LsfScheduler("other")
    assert [r.entrypoint for r in other.describe(app_id).roles] == ["sh"]
    assert lines(other, app_id) == ["hi\n"]
