"""The supervisor of a sweep from its first task to its last: what wakes it, where tasks run, what cannot stop it."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import Gate, eventually, forked, in_fork, state, text, until_dead
from tests.supervisor.sweeps import Sweep
from torchx.supervisor import proctree
from torchx.supervisor.layout import CONTROL_FIFO, STATE_FILE, USED_FILE, task_log
from torchx.supervisor.reader import send_command
from torchx.supervisor.statefile import RUNNING, has_supervisor
from torchx.supervisor.tasks import CANCEL_ALL, TaskSupervisor


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job"


def _pid(job: Path, k: int = 0) -> int:
    """The process of a task, once it is on record."""
    path = job / STATE_FILE
    return int(eventually(lambda: path.exists() and (line := state(job).replicas[k]).ticks and line.pid))


@pytest.mark.parametrize("how", ["end", "cancel", "signal"])
def test_what_happens_wakes_it(job: Path, gate: Gate, how: str) -> None:
    """The end of a task, a word in the FIFO and a signal are heard at once, though it would sleep for ever."""
    sweep = Sweep(job, gate.wait, gate.wait, width=1)
    with forked(lambda: sweep.made().run()) as fork:
        pid = _pid(job)
        if how == "end":
            gate.open(2)
        elif how == "cancel":
            assert send_command(sweep.folder, "cancel")
        else:
            os.kill(fork.pid, signal.SIGTERM)
        assert fork.end() == 0
    read = state(job)
    assert not proctree.start_ticks(pid) and not has_supervisor(sweep.folder)
    if how == "end":
        assert (read.state, read.msg, sweep.states()) == ("SUCCEEDED", "", ["SUCCEEDED"] * 2)
    else:
        assert (read.state, read.msg, sweep.states()) == ("CANCELLED", CANCEL_ALL, ["CANCELLED"] * 2)
        assert [line.pid for line in read.replicas] == [pid, 0]


def test_tasks_are_started_in_order(job: Path, tmp_path: Path) -> None:
    """One after the other where one may run at a time, all in the directory of the sweep; others cannot see their logs."""
    where = tmp_path / "cwd"
    where.mkdir()
    sweep = Sweep(job, *[f"pwd; echo {k} >> '{tmp_path}/order'" for k in range(4)], width=1, cwd=str(where))

    def steps() -> None:
        os.umask(0)
        made = TaskSupervisor(sweep.folder, sweep.env, control=sweep.prepare(), ends={}, started={})
        made.run()

    in_fork(steps)
    assert (tmp_path / "order").read_text().split() == ["0", "1", "2", "3"]
    assert [sweep.log(k) for k in range(4)] == [f"{where}\n"] * 4
    assert stat.S_IMODE(os.stat(job / "r").st_mode) == 0o700


def test_a_child_that_ended_before_it_ran(job: Path) -> None:
    """A task that it has taken over, whose end woke nobody: it is not waited for without end."""
    sweep = Sweep(job, "true", "true")

    def steps() -> None:
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], {}, setpgroup=0)
        until_dead(pid)

        def change(lines: list[Any]) -> None:
            lines[0].state, lines[0].pid = RUNNING, pid

        sweep.made(change).run()

    in_fork(steps)
    assert [(line.state, line.exit) for line in state(job).replicas] == [("FAILED", 4), ("SUCCEEDED", 0)]


def test_a_task_of_an_earlier_supervisor_is_waited_for(job: Path, gate: Gate) -> None:
    """It is no child of this one: that it has ended is seen without a signal, and how is unknown."""
    sweep = Sweep(job, "true", "true")
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", gate.wait], {}, setpgroup=0)

    def change(lines: list[Any]) -> None:
        lines[0].state, lines[0].pid, lines[0].ticks = RUNNING, pid, proctree.start_ticks(pid)

    with forked(lambda: sweep.made(change).run()) as fork:
        eventually(lambda: (job / STATE_FILE).exists() and sweep.states() == [RUNNING, "SUCCEEDED"])
        gate.open()
        os.waitpid(pid, 0)
        assert fork.end() == 0
    assert (state(job).state, sweep.states()) == ("FAILED", ["UNKNOWN", "SUCCEEDED"])


def test_a_task_of_an_earlier_supervisor_is_cancelled(job: Path) -> None:
    """By its process group; it was told to end, so it is not lost."""
    sweep = Sweep(job, "true")
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, setpgroup=0)

    def change(lines: list[Any]) -> None:
        lines[0].state, lines[0].pid, lines[0].ticks = RUNNING, pid, proctree.start_ticks(pid)

    with forked(lambda: sweep.made(change).run()) as fork:
        eventually(lambda: (job / STATE_FILE).exists() and state(job).supervisor == fork.pid)
        assert send_command(sweep.folder, "cancel 0")
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM
        assert fork.end() == 0
    assert (state(job).state, sweep.states()) == ("CANCELLED", ["CANCELLED"])


def test_a_file_of_usage_that_cannot_be_written(job: Path) -> None:
    """Such as on a full disk: the tasks run nonetheless."""
    job.mkdir()
    (job / USED_FILE).symlink_to("/dev/full")
    sweep = Sweep(job, "exit 3", "true")
    in_fork(lambda: sweep.made().run())
    assert [line.exit for line in state(job).replicas] == [3, 0]


def test_a_task_is_its_own(job: Path, tmp_path: Path) -> None:
    """It has no open file of its supervisor but its own log: nobody waits for a task who waits for the sweep's FIFO."""
    sweep = Sweep(job, "ls -l /proc/self/fd")
    in_fork(lambda: sweep.made().run())
    listed = text(task_log(str(job), "r", 0))
    assert CONTROL_FIFO not in listed and USED_FILE not in listed and STATE_FILE + "\n" not in listed
    assert listed.count("0.log") == 2 and "0 -> /dev/null" in listed
