"""Killed, at any moment, is whoever may be: the job's fate is told truthfully, and nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.backends.leftovers import gone, living
from torchx.specs.api import AppState
from torchx.supervisor import proctree
from torchx.supervisor.layout import STATE_FILE
from torchx.supervisor.statefile import StateWriter, read_bytes, read_state

from .conftest import ended, eventually, lines, processes_of

SUBMIT = """
import sys
from torchx.schedulers.local_scheduler import create_scheduler
from torchx.specs.api import AppDef, Role
print("ready", flush=True)
sys.stdin.readline()
s = create_scheduler("test")
i = s.submit(AppDef("job", [Role("r", "", entrypoint="sh", args=["-c", sys.argv[1]], num_replicas=2)]), {})
print(i, flush=True)
sys.stdin.readline()
"""
COUNT = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; sleep 0.3; echo done"


def _state(scheduler, app_id):
    return read_state(os.path.join(scheduler._jobs.find(app_id), STATE_FILE))


@pytest.mark.parametrize("after_ms", [0, 5, 10, 15, 20, 25, 30, 40, 60, None])
def test_the_caller_is_killed(scheduler, after_ms) -> None:
    """There is no job, or one complete job that goes on: whenever the caller is killed, also right after its answer."""
    caller = subprocess.Popen(
        [sys.executable, "-c", SUBMIT, COUNT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None and caller.stdin is not None
    caller.stdout.readline()
    caller.stdin.write("\n")
    caller.stdin.flush()
    if after_ms is None:
        assert caller.stdout.readline().startswith("job-")
    else:
        time.sleep(after_ms / 1000)
    caller.kill()
    caller.wait()
    for stream in (caller.stdin, caller.stdout):
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    gone("launcher.py")  # a request already in the pipe is still taken; the job, if there is one, has ended
    jobs = scheduler.list()
    assert len(jobs) <= 1
    assert jobs or after_ms is not None, "the answer was given, and there is no job"
    for job in jobs:
        assert ended(scheduler, job.app_id).state == AppState.SUCCEEDED
        wanted = [f"line {i}\n" for i in range(200)] + ["done\n"]
        assert lines(scheduler, job.app_id, 0) == wanted
        assert lines(scheduler, job.app_id, 1) == wanted


def test_the_supervisor_is_killed(scheduler, submit, monkeypatch) -> None:
    """At once the job has FAILED, says why, and no process of it is left, one that hid included."""
    monkeypatch.setattr("torchx.supervisor.reader.GUARDIAN_S", 120.0)  # it knows the signal; who reads does not
    app_id = submit("(setsid sh -c 'trap \"\" TERM; sleep 1000' &); echo up; sleep 1000", 3)
    eventually(lambda: len(processes_of(scheduler, app_id)) >= 9 and lines(scheduler, app_id) == ["up\n"])
    os.kill(_state(scheduler, app_id).supervisor, signal.SIGKILL)
    described = ended(scheduler, app_id)
    assert described.state == AppState.FAILED
    assert "supervisor" in described.msg and "SIGKILL" in described.msg
    assert processes_of(scheduler, app_id) == []
    assert lines(scheduler, app_id) == ["up\n"]


def test_the_guardian_is_killed(scheduler, submit, tmp_path) -> None:
    """The job goes on to its proper end; the next job gets a new launcher."""
    go = tmp_path / "go"
    app_id = submit(f"while [ ! -e {go} ]; do sleep 0.01; done; echo fine")
    os.kill(_state(scheduler, app_id).guardian[0], signal.SIGKILL)
    other = submit("echo other")
    assert ended(scheduler, other).state == AppState.SUCCEEDED
    go.touch()
    assert ended(scheduler, app_id).state == AppState.SUCCEEDED
    assert lines(scheduler, app_id) == ["fine\n"]


def test_a_zombie_is_gone() -> None:
    """A guardian that was killed where nobody reaps it (process 1 of a container) is not waited for."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    eventually(lambda: proctree.snapshot()[pid].state == "Z")
    assert proctree.start_ticks(pid) == 0
    os.waitpid(pid, 0)


def test_guardian_and_supervisor_are_killed(scheduler, submit) -> None:
    """Whoever looks first ends what is left, and the job has FAILED with the reason."""
    app_id = submit("(setsid sleep 1000 &); echo up; sleep 1000", 2)
    eventually(lambda: len(processes_of(scheduler, app_id)) >= 6 and lines(scheduler, app_id) == ["up\n"])
    state = _state(scheduler, app_id)
    os.kill(state.guardian[0], signal.SIGSTOP)
    os.kill(state.supervisor, signal.SIGKILL)
    os.kill(state.guardian[0], signal.SIGKILL)
    described = ended(scheduler, app_id)
    assert described.state == AppState.FAILED
    assert "supervisor" in described.msg
    assert processes_of(scheduler, app_id) == []


def _forge(scheduler, app_id, **facts: str) -> str:
    """Make the record of an ended job look as if the job still ran, its first replica being this very process."""
    path = os.path.join(scheduler._jobs.find(app_id), STATE_FILE)
    job = read_state(path)
    header = int(read_bytes(path).split(b" ", 3)[2])
    os.unlink(path)
    job.facts.update(facts)
    job.state = job.replicas[0].state = "RUNNING"
    job.replicas[0].pid = os.getpid()
    job.replicas[0].ticks = proctree.start_ticks(os.getpid()) if facts else 12345
    job.guardian = (0, 0)
    job.ended = 0.0
    writer = StateWriter(path, job, header=header)
    writer.flush()
    writer.close()
    scheduler.close()
    return path


def test_a_machine_that_was_restarted(scheduler, submit) -> None:
    """A record of an earlier boot: FAILED, with that reason. A process that has the recorded pid now is not touched."""
    app_id = submit("true")
    ended(scheduler, app_id)
    _forge(scheduler, app_id, boot="00000000-0000-0000-0000-000000000000")
    described = scheduler.describe(app_id)
    assert described.state == AppState.FAILED
    assert "restarted" in described.msg
    # ... and this process, whose pid and start time were on record, lives to tell


def test_a_reused_pid_is_not_touched(scheduler, submit) -> None:
    """On the same boot, a process that got the recorded pid later is known by its start time, and left alone."""
    app_id = submit("true")
    ended(scheduler, app_id)
    _forge(scheduler, app_id)
    described = scheduler.describe(app_id)
    assert described.state == AppState.FAILED
    assert "supervisor" in described.msg


def test_a_job_on_another_machine_is_not_judged(scheduler, submit) -> None:
    """A shared home shows the last known state of another machine's job, and where it runs."""
    app_id = submit("true")
    ended(scheduler, app_id)
    path = _forge(scheduler, app_id, boot="00000000-0000-0000-0000-000000000000", host="elsewhere")
    described = scheduler.describe(app_id)
    assert described.state == AppState.RUNNING
    assert described.roles_statuses[0].replicas[0].hostname == "elsewhere"
    assert "`elsewhere`" in described.msg
    assert read_state(path).state == "RUNNING"
    with pytest.raises(RuntimeError, match="elsewhere"):
        scheduler.cancel(app_id)
    start = time.monotonic()
    scheduler.wait_for_end(app_id, 0.05)
    assert time.monotonic() - start >= 0.05  # no busy loop for those who follow its logs


def test_a_damaged_state_hides_no_other_job(scheduler, submit) -> None:
    """One unreadable state file is an error that names it; the list still shows the others."""
    bad, good = submit("true"), submit("true")
    ended(scheduler, bad), ended(scheduler, good)
    path = os.path.join(scheduler._jobs.find(bad), STATE_FILE)
    with open(path, "r+b") as f:
        f.truncate(random.Random(1).randrange(100, 500))
    scheduler.close()
    assert [job.app_id for job in scheduler.list()] == [good]
    with pytest.raises(RuntimeError, match="cannot be read"):
        scheduler.describe(bad)


def test_a_job_is_seen_from_another_process(scheduler, submit) -> None:
    """Status and complete logs from a fresh interpreter, whatever its session is called."""
    app_id = submit("echo one; exit 3")
    code = f"""
from torchx.schedulers.local_scheduler import create_scheduler
s = create_scheduler("another")
s.wait_for_end({app_id!r}, 300)
d = s.describe({app_id!r})
print(d.state, d.roles[0].entrypoint, list(s.log_iter({app_id!r}, "r", should_tail=True)))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert out.stdout == "FAILED sh ['one\\n']\n"


def test_the_machine_shuts_down(scheduler, submit) -> None:
    """SIGTERM to the supervisor ends the job properly, and the reason is told."""
    app_id = submit(
        "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done", cfg={"cancel_grace_s": 600}
    )
    eventually(lambda: lines(scheduler, app_id) == ["up\n"])
    os.kill(_state(scheduler, app_id).supervisor, signal.SIGTERM)
    described = ended(scheduler, app_id)
    assert described.state == AppState.CANCELLED
    assert "SIGTERM" in described.msg
    assert "saved\n" in lines(scheduler, app_id)


def test_a_replica_inherits_nothing_of_ours(scheduler, submit) -> None:
    """Three descriptors, default signals, a session of its own, no terminal: whatever the caller had open."""
    held = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        app_id = submit("ls /proc/self/fd | wc -l; grep -E 'SigIgn|SigBlk' /proc/self/status; ps -o tty= -p $$")
        ended(scheduler, app_id)
    finally:
        os.close(held)
    count, *masks, tty = lines(scheduler, app_id)
    assert int(count) == 4  # 0, 1, 2 and the listing itself
    of_the_c_library = 1 << 31 | 1 << 32  # two signals that glibc keeps to itself
    assert [int(mask.split()[1], 16) & ~of_the_c_library for mask in masks] == [0, 0]
    assert tty.strip() == "?"


def test_the_launcher_lets_go_of_the_callers_pipes(scheduler) -> None:
    """A program that reads what a caller prints sees its end, although the job goes on."""
    code = SUBMIT.replace("print(i, flush=True)\nsys.stdin.readline()", "print(i, flush=True)")
    caller = subprocess.Popen(
        [sys.executable, "-c", code, "sleep 1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    out, _ = caller.communicate("\n", timeout=300)
    app_id = out.split()[-1]
    assert scheduler.describe(app_id).state in (AppState.PENDING, AppState.RUNNING)
    scheduler.delete(app_id)


def test_the_guardian_of_a_job_without_a_caller_sleeps(scheduler) -> None:
    """It costs nothing while the job runs, and ends with it, although somebody has removed the job's folder."""
    code = SUBMIT.replace("print(i, flush=True)\nsys.stdin.readline()", "print(i, flush=True)")
    out = subprocess.run(
        [sys.executable, "-c", code, "sleep 1000"], input="\n", capture_output=True, text=True, timeout=300, check=True
    ).stdout
    app_id = out.split()[-1]
    guardian = _state(scheduler, app_id).guardian[0]

    def sleeps() -> bool:
        for _ in range(50):  # one that spins is on the processor, or waits for it, each time
            if proctree.read_process(guardian).state != "S":
                return False
            time.sleep(0.002)
        return True

    eventually(sleeps)
    replicas = eventually(lambda: processes_of(scheduler, app_id))
    shutil.rmtree(scheduler._jobs.find(app_id))
    proctree.send_all(replicas, signal.SIGKILL)
    gone("launcher.py")


SLEEPER = """
import os, sys, time
from types import SimpleNamespace
sys.path.append({root!r})
from torchx.supervisor import launcher, supervise
def later(clock):
    return lambda: clock() + 36000 * os.path.exists({slept!r})
supervise.time = SimpleNamespace(time=later(time.time), monotonic=later(time.monotonic))
launcher.main()
"""


def test_the_machine_sleeps_while_a_job_ends(scheduler, submit, program, tmp_path) -> None:
    """The grace period is over when it wakes, and all patience: a daemon that hides is ended all the same."""
    told, slept = tmp_path / "told", tmp_path / "slept"
    program(SLEEPER, slept=str(slept))
    daemon = f"trap 'touch {told}' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    app_id = submit(
        f'(setsid env -u TORCHX_LOCAL_JOB sh -c "{daemon}" &); while [ ! -e {tmp_path}/up ]; do sleep 0.01; done',
        cfg={"cancel_grace_s": 600},
    )
    eventually(told.exists)
    slept.touch()
    assert ended(scheduler, app_id).state == AppState.SUCCEEDED
    assert not living(f"touch {told}")


WITHOUT_PROC = """
import sys
sys.path.append({root!r})
from torchx.supervisor import launcher, proctree
proctree.HAS_PROC = False
proctree.become_subreaper = lambda: None
proctree.snapshot = dict
proctree.start_ticks = lambda pid: 0
proctree.children_of_self = set
launcher.main()
"""


def test_a_system_without_proc(scheduler, submit, program) -> None:
    """Where there is neither /proc nor a subreaper (macOS), jobs run, fail, retry and are cancelled by process group."""
    program(WITHOUT_PROC)
    good, bad, long = submit("echo hi"), submit("exit 3", 2, max_retries=1), submit("sleep 1000 & sleep 1000", 2)
    assert ended(scheduler, good).state == AppState.SUCCEEDED
    described = ended(scheduler, bad)
    assert (described.state, described.num_restarts) == (AppState.FAILED, 1)
    eventually(lambda: len(processes_of(scheduler, long)) == 6)
    scheduler.cancel(long)
    assert ended(scheduler, long).state == AppState.CANCELLED
    eventually(lambda: processes_of(scheduler, long) == [])  # they were told; nobody can see whether they have gone
