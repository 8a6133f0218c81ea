"""The supervisor of a sweep in small steps, at times that the test chooses: what it takes over, starts, ends and records."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.supervisor.forks import Clock, Gate, eventually, in_fork, state, text, until_dead
from tests.supervisor.sweeps import Sweep
from torchx.supervisor import proctree, tasks
from torchx.supervisor.layout import USED_FILE, task_log, task_metrics
from torchx.supervisor.metrics import Root
from torchx.supervisor.statefile import PENDING, RUNNING
from torchx.supervisor.tasks import CANCEL_ALL, TaskSupervisor

NOW = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(NOW)
    monkeypatch.setattr(tasks, "time", clock)
    return clock


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job"


# -- taking over ---------------------------------------------------------------------------------


def test_what_is_taken_over(job: Path, clock: Clock) -> None:
    """Only tasks on record as RUNNING are in question; whatever is found out is on disk at once."""

    def steps() -> None:
        other, me = os.getppid(), os.getpid()

        def change(lines: list[Any]) -> None:
            for line in lines:
                line.state, line.started = RUNNING, 900.0
            lines[0].pid = lines[1].pid = 999_999_999  # of a process that is gone
            lines[2].pid, lines[2].ticks = other, proctree.start_ticks(other)
            lines[3].pid, lines[3].ticks = other, proctree.start_ticks(other) + 1
            lines[6].state, lines[6].pid = "FAILED", 999_999_999
            lines[7].pid = 999_999_998

        made = Sweep(job, *["true"] * 8).made(change, ends={999_999_999: 0, 999_999_998: 3}, started={5: 0})
        assert (made._others, made._running) == ({other: 2}, {})
        read = state(job)
        assert read.supervisor == me
        assert [line.state for line in read.replicas] == [
            *("SUCCEEDED", "SUCCEEDED", "RUNNING", "UNKNOWN", "PENDING", "UNKNOWN", "FAILED", "FAILED"),
        ]
        assert [line.exit for line in read.replicas] == [0, 0, None, None, None, None, None, 3]
        assert (read.replicas[4].started, read.replicas[2].started) == (0.0, 900.0)
        assert (read.replicas[5].ended, read.replicas[6].ended, read.first) == (NOW, 0.0, 7)

    in_fork(steps)


def test_a_pid_of_another_boot_means_nothing(job: Path) -> None:
    """A process that has both the pid and the start time of a task from before a reboot is not the task."""

    def steps() -> None:
        def change(lines: list[Any]) -> None:
            lines[0].state, lines[0].pid = RUNNING, os.getppid()
            lines[0].ticks = proctree.start_ticks(os.getppid())

        made = Sweep(job, "true", boot="another").made(change)
        assert (made._others, state(job).replicas[0].state) == ({}, "UNKNOWN")

    in_fork(steps)


def test_the_limits_are_recorded_once(job: Path) -> None:
    """The first line of the file of usage has them; a supervisor that takes over adds no second one."""

    def steps() -> None:
        sweep = Sweep(job, "true")
        first = sweep.made()
        head = text(job / USED_FILE)
        assert len(head.split()) == 2 and head.endswith("\n")
        os.close(first._control)
        TaskSupervisor(sweep.folder, {}, control=0, ends={}, started={})
        assert text(job / USED_FILE) == head
        assert os.stat(job / USED_FILE).st_mode & 0o777 == 0o600

    in_fork(steps)


# -- starting ------------------------------------------------------------------------------------


def test_no_more_than_the_width_are_started(job: Path, gate: Gate) -> None:
    """Tasks that are not PENDING are passed over, and True means that others still wait."""

    def steps() -> None:
        def change(lines: list[Any]) -> None:
            lines[0].state, lines[2].state = "SUCCEEDED", "CANCELLED"

        made = Sweep(job, *[gate.wait] * 5, width=2).made(change)
        assert made._fill() is True
        assert [line.state for line in made.job.replicas] == ["SUCCEEDED", RUNNING, "CANCELLED", RUNNING, PENDING]
        assert sorted(made._running.values()) == [1, 3]
        made._others[4711] = 0  # a task whose exit code cannot be known takes a place, too
        made._running.popitem()
        assert made._fill() is True and made.job.replicas[4].state == PENDING
        made._others.clear()
        assert made._fill() is False and made.job.replicas[4].state == RUNNING
        made._running.clear()
        assert made._fill() is False

    in_fork(steps)


def test_what_a_task_is_given(job: Path, up: Gate, clock: Clock) -> None:
    """Its own variables override those of the sweep, which override the environment; no stdin, and one log for both streams."""

    def steps() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        script = (
            f'cat; echo "$A $B $C $TORCHX_LOCAL_JOB $TORCHX_LOCAL_REPLICA"; echo error >&2; {up.pass_on};'
            "grep -E '^Sig(Blk|Ign)' /proc/self/status"
        )
        sweep = Sweep(job, "true", script, env={"B": "sweep", "C": "sweep"})
        sweep.lines[1][2] = {"C": "own"}
        sweep.env |= {"A": "caller", "B": "caller"}
        made = sweep.made()
        os.makedirs(f"{job}/r", exist_ok=True)
        Path(task_log(sweep.folder, "r", 1)).write_text("before\n")
        made._start(1)
        up.reached()
        line = state(job).replicas[1]
        assert (line.state, line.pid, line.started) == (RUNNING, next(iter(made._running)), NOW)
        assert os.getpgid(line.pid) == line.pid
        until_dead(line.pid)
        first, second, third, *masks = sweep.log(1).splitlines()
        assert (first, second, third) == ("before", f"caller sweep own {job} 1", "error")
        asked = 1 << signal.SIGTERM - 1 | 1 << signal.SIGUSR1 - 1
        assert [int(mask.split()[1], 16) & asked for mask in masks] == [0, 0]

    in_fork(steps)


def test_a_log_is_for_its_owner(job: Path) -> None:
    """Whatever the umask, others cannot read what a task prints."""

    def steps() -> None:
        os.umask(0)
        made = Sweep(job, "echo x").made()
        made._start(0)
        assert os.stat(task_log(str(job), "r", 0)).st_mode & 0o777 == 0o600

    in_fork(steps)


@pytest.mark.parametrize("line", ['["/no/such", ["such"], {}]', "not JSON", '["/bin/sh", ["sh", "a\\u0000b"], {}]'])
def test_a_task_that_cannot_be_started(job: Path, line: str, clock: Clock) -> None:
    """It has failed with 127, its log says why, and it takes no place."""

    def steps() -> None:
        made = Sweep(job, "true").made()
        made._lines[0] = line.encode()
        made._start(0)
        read = state(job)
        assert (read.replicas[0].state, read.replicas[0].exit, read.first) == ("FAILED", 127, 0)
        assert made._busy() == 0
        assert text(task_log(str(job), "r", 0)).startswith("torchx: the task could not be started: ")
        os.unlink(task_log(str(job), "r", 0))
        os.mkdir(task_log(str(job), "r", 0))  # a log that cannot be written is no reason to stop
        made._start(0)

    in_fork(steps)


# -- ending --------------------------------------------------------------------------------------


def test_what_is_recorded_of_an_end(job: Path, gate: Gate, clock: Clock) -> None:
    """The exit code, a signal as a negative one, and the time; whoever else has ended is reaped, and nothing more."""

    def steps() -> None:
        made = Sweep(job, "exit 7", "kill -SEGV $$", "true", gate.wait).made()
        made._fill()
        for line in made.job.replicas[:3]:
            until_dead(line.pid)
        stranger = os.posix_spawn("/bin/true", ["true"], {})  # such as one that it inherited
        os.waitid(os.P_PID, stranger, os.WEXITED | os.WNOWAIT)
        clock.now = 1003.0
        made._reap()
        read = state(job)
        assert [line.exit for line in read.replicas] == [7, -signal.SIGSEGV, 0, None]
        assert [line.ended for line in read.replicas] == [1003.0] * 3 + [0.0]
        assert read.first in (0, 1) and [*made._running.values()] == [3]
        with pytest.raises(ChildProcessError):
            os.waitpid(stranger, os.WNOHANG)
        used = text(job / USED_FILE).splitlines()[1:]
        assert sorted(int(line.split()[0]) for line in used) == [0, 1, 2]

    in_fork(steps)


@pytest.mark.parametrize("more", [True, False])
def test_what_a_task_used(job: Path, monkeypatch: pytest.MonkeyPatch, more: bool) -> None:
    """Its peak in KiB and the seconds of its processors; a peak that it may have inherited is not its own."""

    def steps() -> None:
        own = SimpleNamespace(ru_maxrss=1 if more else 1 << 40)
        fake = SimpleNamespace(getrusage=lambda _: own, RUSAGE_SELF=0)
        monkeypatch.setattr(tasks, "resource", fake)
        real, cpu = os.wait4, []

        def wait4(pid: int, options: int) -> Any:
            found = real(pid, options)
            cpu.append(found[2].ru_utime + found[2].ru_stime)
            return found

        monkeypatch.setattr(os, "wait4", wait4)
        made = Sweep(job, "for i in 1 2 3 4 5 6 7 8 9; do /bin/true; done").made()
        made._fill()
        until_dead(made.job.replicas[0].pid)
        made._reap()
        k, peak, seconds = text(job / USED_FILE).splitlines()[1].split()
        assert (k, int(peak) > 100) == ("0", more) and (more or peak == "0")
        assert float(seconds) == pytest.approx(cpu[0], abs=0.001)

    in_fork(steps)


def test_what_a_task_leaves_in_its_group_is_killed_with_it(job: Path, up: Gate, gate: Gate) -> None:
    """When its first process ends, and not only at the end of the sweep."""

    def steps() -> None:
        script = f"(trap '' TERM; {up.pass_on}; {gate.wait}) & {up.wait}; exit 0"
        made = Sweep(job, script, gate.wait).made()
        made._fill()
        pid = made.job.replicas[0].pid
        until_dead(pid)
        (child,) = eventually(lambda: [p for p in proctree.snapshot().values() if p.group == pid and p.pid != pid])
        made._reap()
        until_dead(child.pid)
        assert [*made._running.values()] == [1]

    in_fork(steps)


@pytest.mark.parametrize(
    ("code", "stopped", "ends"),
    [
        (0, False, "SUCCEEDED"),
        (0, True, "SUCCEEDED"),
        (3, False, "FAILED"),
        (3, True, "CANCELLED"),
        (-9, False, "FAILED"),
        (None, False, "UNKNOWN"),
        (None, True, "CANCELLED"),
    ],
)
def test_how_a_task_ended(job: Path, clock: Clock, code: int | None, stopped: bool, ends: str) -> None:
    """By its exit code, and by whether it was told to end; the first that failed is named, and no later one."""

    def steps() -> None:
        made = Sweep(job, "true", "true", "true").made()
        if stopped:
            made._stopping[1] = 5.0
        made._ended(1, code)
        made._ended(2, 1)
        read = state(job)
        assert (read.replicas[1].state, read.replicas[1].exit, read.replicas[1].ended) == (ends, code, NOW)
        assert read.first == (1 if ends == "FAILED" else 2)
        assert made._stopping == {}

    in_fork(steps)


@pytest.mark.parametrize(
    ("states", "msg", "outcome"),
    [
        (["SUCCEEDED"] * 3, "", "SUCCEEDED"),
        (["SUCCEEDED", "FAILED", "CANCELLED"], "", "FAILED"),
        (["SUCCEEDED", "UNKNOWN", "SUCCEEDED"], "", "FAILED"),
        (["SUCCEEDED", "CANCELLED", "SUCCEEDED"], "", "CANCELLED"),
        (["SUCCEEDED", "FAILED", "CANCELLED"], CANCEL_ALL, "CANCELLED"),
    ],
)
def test_how_a_sweep_ended(job: Path, clock: Clock, states: list[str], msg: str, outcome: str) -> None:
    """FAILED if one task failed or is lost; CANCELLED if one was cancelled, or all of it."""

    def steps() -> None:
        made = Sweep(job, "true", "true", "true").made()
        made.job.msg = msg
        for line, ended in zip(made.job.replicas, states, strict=True):
            line.state = ended
        made._finish()
        assert (state(job).state, state(job).ended, state(job).msg) == (outcome, NOW, msg)

    in_fork(steps)


def test_a_sweep_ends_what_has_left_its_tasks(job: Path, up: Gate, gate: Gate) -> None:
    """A daemon in a session of its own is found by its environment when the last task has ended."""

    def steps() -> None:
        sweep = Sweep(job, f"setsid sh -c '{up.pass_on}; {gate.wait}' & true")
        made = sweep.made()
        made._fill()
        up.reached()
        until_dead(made.job.replicas[0].pid)
        made._reap()
        made._finish()
        assert not proctree.marked(sweep.folder)

    in_fork(steps)


# -- polling -------------------------------------------------------------------------------------


def test_a_task_that_is_no_child_is_polled(job: Path, gate: Gate, clock: Clock) -> None:
    """Five times a second; while its process is there nothing changes, and then its exit code is unknown."""

    def steps() -> None:
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", gate.wait], {"PATH": os.environ["PATH"]})
        made = Sweep(job, "true", "true").made()
        assert made._patience_ms() is None
        line = made.job.replicas[0]
        line.state, line.pid, line.ticks = RUNNING, pid, proctree.start_ticks(pid)
        made._others[pid] = 0
        made._look_after()
        assert (made._others, line.state, made._busy()) == ({pid: 0}, RUNNING, 1)
        assert made._patience_ms() == pytest.approx(200.0)
        gate.open()
        until_dead(pid)
        made._look_after()
        assert (made._others, state(job).replicas[0].state) == ({}, "UNKNOWN")

    in_fork(steps)


def test_how_long_it_waits(job: Path, clock: Clock) -> None:
    """Until the first of all that is due, and never a negative time."""

    def steps() -> None:
        made = Sweep(job, "true", sample_s=15.0).made()
        made._sampler.due = NOW + 15.0
        assert made._patience_ms() == pytest.approx(15_000.0)
        made._stopping = {0: NOW + 4.0, 1: NOW + 3.0}
        assert made._patience_ms() == pytest.approx(3000.0)
        clock.now += 3.5
        assert made._patience_ms() == 0.0

    in_fork(steps)


# -- cancelling ----------------------------------------------------------------------------------


def test_grace_is_to_the_moment(job: Path, up: Gate, gate: Gate, clock: Clock) -> None:
    """A task that ignores SIGTERM is killed at its deadline, not earlier; a second cancellation changes nothing."""

    def steps() -> None:
        made = Sweep(job, f"trap '' TERM; {up.pass_on}; while :; do {gate.wait}; done", "true").made()
        made._start(0)
        up.reached()
        line = made.job.replicas[0]
        made._cancel(0)
        assert made._stopping == {0: NOW + 10.0}
        clock.now += 9.999
        made._cancel(0)
        made._look_after()
        assert made._stopping == {0: NOW + 10.0} and proctree.start_ticks(line.pid) == line.ticks
        clock.now = NOW + 10.0
        made._look_after()
        assert made._stopping == {0: pytest.approx(NOW + 10.2)}, "if it still runs then it is killed again"
        until_dead(line.pid)
        made._reap()
        made._look_after()
        assert (state(job).replicas[0].state, state(job).replicas[0].exit) == ("CANCELLED", -9)

    in_fork(steps)


def test_a_task_that_was_not_started_is_cancelled_at_once(job: Path, clock: Clock) -> None:
    """It is never started; one that has ended stays as it is, and one that is only claimed is left for later."""

    def steps() -> None:
        made = Sweep(job, "true", "true", "true").made()
        made.job.replicas[1].state = "SUCCEEDED"
        made.job.replicas[2].state = RUNNING
        for k in range(3):
            made._cancel(k)
        assert [(line.state, line.ended) for line in made.job.replicas] == [
            *(("CANCELLED", NOW), ("SUCCEEDED", 0.0), (RUNNING, 0.0)),
        ]
        made.writer.flush()
        assert state(job).replicas[0].state == "CANCELLED"
        assert made._stopping == {}

    in_fork(steps)


@pytest.mark.parametrize(
    ("pieces", "cancelled"),
    [
        ([b"cancel\n"], [0, 1, 2]),
        ([b"cancel 1\n"], [1]),
        ([b"can", b"cel", b" 2", b"\ncancel 0"], [2]),
        ([b"cancel 0\ncancel 2\n"], [0, 2]),
        ([b"cancel 3\ncancel -1\ncancel x\ncancel 1 2\n\nCANCEL\n"], []),
    ],
    ids=["all", "one", "in pieces", "two", "nonsense"],
)
def test_commands(job: Path, pieces: list[bytes], cancelled: list[int]) -> None:
    """Whole lines are obeyed, whatever pieces they come in, and nonsense is passed over; the disk shows it at once."""

    def steps() -> None:
        sweep = Sweep(job, "true", "true", "true")
        made = sweep.made()
        for piece in pieces:
            made._obey(piece)
        assert sweep.states() == ["CANCELLED" if k in cancelled else "PENDING" for k in range(3)]
        assert state(job).msg == (CANCEL_ALL if len(cancelled) == 3 else "")

    in_fork(steps)


# -- samples -------------------------------------------------------------------------------------


def test_tasks_are_sampled_when_they_have_run_for_an_interval(
    job: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in its own file, with the GPUs that its own variables name; nothing is asked if there is no such task."""

    def steps() -> None:
        sweep = Sweep(job, "true", "true", "true", env={"CUDA_VISIBLE_DEVICES": "0"}, sample_s=15.0)
        sweep.lines[1][2] = {"CUDA_VISIBLE_DEVICES": "1"}
        made = sweep.made()
        looks: list[tuple[list[Root], float]] = []
        monkeypatch.setattr(made._sampler, "look", lambda roots, now: looks.append(([*roots], now)))
        made._sampler.due = 50.0
        made._running, made._others = {71: 0, 73: 2}, {72: 1}
        for line, started in zip(made.job.replicas, (NOW - 15.0, NOW - 20.0, NOW - 14.9), strict=True):
            line.started = started
        made._sample(49.9)
        assert looks == []
        made._sample(50.0)
        [(roots, now)] = looks
        assert now == 50.0
        assert [(r.pid, r.started, r.attempt, r.path, r.devices) for r in roots] == [
            (71, NOW - 15.0, 0, task_metrics(str(job), "r", 0), "0"),
            (72, NOW - 20.0, 0, task_metrics(str(job), "r", 1), "1"),
        ]
        made._running, made._others = {73: 2}, {}
        made._sample(60.0)
        assert (len(looks), made._sampler.due) == (1, 75.0)
        made._sampler.due = None
        made._sample(1e9)
        assert (len(looks), made._sampler.due) == (1, None)

    in_fork(steps)
