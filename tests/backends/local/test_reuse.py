"""A supervisor whose job was short takes another one: quicker than a new process, and nothing of a job is left in it."""

from __future__ import annotations

import os
import signal

import pytest

import torchx
from torchx.specs.api import AppState
from torchx.supervisor import proctree
from torchx.supervisor.client import shared

from .conftest import ended, eventually, lines

# Supervisors that take another job whatever the last one's time was: on a busy machine none is short.
LAUNCHER = """
import sys
sys.path.append({root!r})
from torchx.supervisor import launcher, supervise
supervise._SHORT_S = 600.0
launcher.main()
"""
SHOW = 'echo "$PWD|${LEAK-unset}|$(umask)|$(cat /proc/self/oom_score_adj)"; ls /proc/self/fd | wc -l; cat /proc/self/status | grep Sig[BIC]'


@pytest.fixture(autouse=True)
def _patient(monkeypatch, tmp_path):
    """Every job is a short one."""
    program = tmp_path / "launcher.py"
    program.write_text(LAUNCHER.format(root=os.path.dirname(os.path.dirname(torchx.__file__))))
    shared.close()
    monkeypatch.setattr("torchx.supervisor.client.PROGRAM", str(program))
    yield
    shared.close()


def _state(scheduler, app_id):
    return scheduler._apps[app_id].read()


def _alive(pid: int) -> bool:
    process = proctree.snapshot().get(pid)
    return process is not None and process.state not in "ZX"


def test_a_stream_of_short_jobs_needs_few_processes(scheduler, submit):
    """Thirty jobs, one after the other: each on record with its own fate, and fewer supervisors than jobs."""
    supervisors = []
    for number in range(30):
        app_id = submit(f"echo {number}; exit {number % 2}")
        assert ended(scheduler, app_id).state is (AppState.FAILED if number % 2 else AppState.SUCCEEDED)
        assert lines(scheduler, app_id) == [f"{number}\n"]
        supervisors.append(_state(scheduler, app_id).supervisor)
    assert len(set(supervisors)) < 9  # no more than there are seats, and one that reads


def test_nothing_of_a_job_is_left_in_its_supervisor(scheduler, submit, tmp_path, monkeypatch):
    """A replica sees the same folder, environment, descriptors and signals, whatever its supervisor did before."""
    first = submit(SHOW)
    ended(scheduler, first)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for _ in range(10):
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            ended(scheduler, submit("trap '' TERM; umask 077; exit 1", env={"LEAK": "leaked"}, max_retries=1))
        again = submit(SHOW)
        ended(scheduler, again)
        assert lines(scheduler, again) == lines(scheduler, first)


def test_a_cancelled_job_does_not_cancel_the_next(scheduler, submit):
    """What was asked of one job is asked of that one only."""
    for _ in range(8):
        doomed = submit("sleep 1000")
        scheduler.cancel(doomed)
        assert ended(scheduler, doomed).state is AppState.CANCELLED
        assert ended(scheduler, submit("true")).state is AppState.SUCCEEDED


def test_submissions_go_on_when_an_idle_supervisor_is_killed(scheduler, submit):
    """Whoever of those that wait for a request is killed: the next one takes it."""
    for _ in range(5):
        app_id = submit("true")
        ended(scheduler, app_id)
        pid = _state(scheduler, app_id).supervisor
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        assert ended(scheduler, submit("true")).state is AppState.SUCCEEDED


def test_submissions_go_on_when_the_guardian_of_idle_supervisors_is_killed(scheduler, submit):
    """They take no job without a guardian, and let go of the pipes, each one: the caller starts another launcher."""
    jobs = [submit("sleep 0.01") for _ in range(6)]
    states = [(ended(scheduler, job), _state(scheduler, job))[1] for job in jobs]
    guardian = states[0].guardian[0]
    os.kill(guardian, signal.SIGKILL)
    eventually(lambda: not _alive(guardian))
    app_id = submit("true")
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert _state(scheduler, app_id).guardian[0] != guardian
    eventually(lambda: not any(_alive(state.supervisor) for state in states))


def test_idle_supervisors_end_with_their_caller(scheduler, submit):
    """Nobody waits for requests that cannot come."""
    jobs = [submit("true") for _ in range(4)]
    states = [(ended(scheduler, job), _state(scheduler, job))[1] for job in jobs]
    shared.close()
    eventually(lambda: not any(_alive(pid) for s in states for pid in (s.supervisor, s.guardian[0])))
    shared._start()
