"""Sweeps with real processes: each task is started once, whoever is killed meanwhile, and its end is written down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.supervisor.forks import eventually
from torchx.supervisor import proctree, task_guard
from torchx.supervisor.layout import STATE_FILE, TASKS_FILE, task_log
from torchx.supervisor.reader import JobReader, send_command
from torchx.supervisor.statefile import PENDING, RUNNING, TASKS, JobState, StateWriter, has_supervisor, read_state
from torchx.supervisor.task_client import TAKEN, TasksError, resume, start
from torchx.supervisor.tasks import TaskSupervisor


class Sweep:
    """A sweep whose tasks leave a witness when they start, and wait for the file ``go``."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        folder.mkdir(mode=0o700)
        self.go, self.witness = folder.parent / "go", folder.parent / "witness"

    def start(self, count: int, *, width: int = 2, ends: str = "exit 0", resumable: bool = True) -> None:
        script = f"echo $0 >> {self.witness}; until [ -e {self.go} ]; do sleep 0.01; done; echo out $0; {ends}"
        facts = {
            **{"app_id": "s", "name": "s", "session": "t", "handle": "local_cwd://t/s", "logs": self.folder},
            **{"host": os.uname().nodename, "boot": proctree.boot_id(), "pidns": proctree.pid_namespace()},
            TASKS: str(width),
        }
        head = {"facts": facts, "role": "r", "cwd": "/", "grace_s": 5.0, "env": {}, "resumable": resumable}
        start(self.folder, head, [("/bin/sh", ["sh", "-c", script, str(k)], {}) for k in range(count)], os.environ)

    def state(self) -> JobState:
        return read_state(os.path.join(self.folder, STATE_FILE))

    def states(self) -> list[str]:
        return [line.state for line in self.state().replicas]

    def witnesses(self) -> list[int]:
        return sorted(map(int, self.witness.read_text().split())) if self.witness.exists() else []

    def supervisor(self) -> int:
        """Pid of the supervisor, once it lives."""
        return int(eventually(lambda: (pid := self.state().supervisor) and proctree.start_ticks(pid) and pid))

    def guard(self) -> int:
        process = proctree.read_process(self.supervisor())
        assert process is not None
        return process.ppid

    def ended(self) -> JobState:
        def over() -> JobState | None:
            job = JobReader(self.folder).read()
            return job if job is not None and job.ended else None

        job: JobState = eventually(over)
        return job


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    made = Sweep(tmp_path / "job")
    yield made
    made.go.touch()
    for process in proctree.marked(made.folder):
        proctree.send(process, signal.SIGKILL)
    eventually(lambda: not has_supervisor(made.folder))


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_tasks_run_so_many_at_a_time(sweep: Sweep) -> None:
    """No more than the width run at once; in the end each has run once, and its output is in a file of its own."""
    sweep.start(5, width=2)
    eventually(lambda: sweep.witnesses() == [0, 1])
    assert sweep.states() == [RUNNING] * 2 + [PENDING] * 3
    sweep.go.touch()
    assert sweep.ended().state == "SUCCEEDED"
    assert sweep.witnesses() == [0, 1, 2, 3, 4]
    assert [Path(task_log(sweep.folder, "r", k)).read_text() for k in range(5)] == [f"out {k}\n" for k in range(5)]


def test_a_task_that_fails_ends_no_other(sweep: Sweep) -> None:
    """Its exit code is on record, the sweep has failed, and the others have run."""
    sweep.go.touch()
    sweep.start(4, ends="[ $0 != 1 ] || exit 7")
    job = sweep.ended()
    assert (job.state, job.first) == ("FAILED", 1)
    assert [line.exit for line in job.replicas] == [0, 7, 0, 0]


def test_a_program_that_is_not_there(sweep: Sweep, tmp_path: Path) -> None:
    """A task that cannot be started fails with 127, and its log says why; the sweep goes on."""
    sweep.go.touch()
    facts = {"logs": sweep.folder, "boot": proctree.boot_id(), TASKS: "1"}
    head = {"facts": facts, "role": "r", "cwd": "/", "grace_s": 5.0, "env": {}, "resumable": True}
    start(sweep.folder, head, [("/nowhere", ["nowhere"], {}), ("/bin/true", ["true"], {})], os.environ)
    assert [line.exit for line in sweep.ended().replicas] == [127, 0]
    assert "could not be started" in Path(task_log(sweep.folder, "r", 0)).read_text()


def test_the_supervisor_is_killed(sweep: Sweep) -> None:
    """Tasks that run when it is killed run on, and how they end is known; those that wait are run, all of them once."""
    sweep.start(6, width=3, ends="exit $0")
    eventually(lambda: sweep.witnesses() == [0, 1, 2])
    killed = sweep.supervisor()
    kill(killed)
    eventually(lambda: sweep.state().supervisor != killed)
    sweep.go.touch()
    assert [line.exit for line in sweep.ended().replicas] == [0, 1, 2, 3, 4, 5]
    assert sweep.witnesses() == [0, 1, 2, 3, 4, 5]


def test_the_guard_is_killed(sweep: Sweep) -> None:
    """The supervisor goes on without one."""
    sweep.start(3, width=1)
    eventually(lambda: sweep.witnesses() == [0])
    kill(sweep.guard())
    sweep.go.touch()
    assert sweep.ended().state == "SUCCEEDED"
    assert sweep.witnesses() == [0, 1, 2]


def test_both_are_killed(sweep: Sweep) -> None:
    """Whoever looks next has the rest run. A task whose end nobody could see is UNKNOWN, and is not run again."""
    sweep.start(4, width=1)
    eventually(lambda: sweep.witnesses() == [0])
    kill(sweep.guard(), sweep.supervisor())
    eventually(lambda: not has_supervisor(sweep.folder))
    sweep.go.touch()
    assert sweep.ended().state == "FAILED"
    assert sweep.states() == ["UNKNOWN", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED"]
    assert sweep.witnesses() == [0, 1, 2, 3]


def test_secrets_are_not_written_down(sweep: Sweep) -> None:
    """So a sweep that needs them does not go on when both are killed: it has failed, and what had not begun is over."""
    sweep.start(3, width=1, resumable=False)
    eventually(lambda: sweep.witnesses() == [0])
    kill(sweep.guard(), sweep.supervisor())
    eventually(lambda: not has_supervisor(sweep.folder))
    assert sweep.ended().state == "FAILED"
    assert sweep.states()[1:] == ["CANCELLED", "CANCELLED"]
    assert not resume(sweep.folder)


def test_a_sweep_has_one_guard(sweep: Sweep) -> None:
    """Whoever would take it too is refused, and nothing is run twice."""
    sweep.start(2, width=1)
    eventually(lambda: sweep.witnesses() == [0])
    assert resume(sweep.folder)  # it goes on: by the guard that has it
    sweep.go.touch()
    assert sweep.ended().state == "SUCCEEDED"
    assert sweep.witnesses() == [0, 1]


def test_cancel(sweep: Sweep) -> None:
    """No task is left, neither of those that run nor of those to come."""
    sweep.start(100, width=2)
    eventually(lambda: sweep.witnesses() == [0, 1])
    assert send_command(sweep.folder, "cancel")
    assert sweep.ended().state == "CANCELLED"
    assert sweep.states() == ["CANCELLED"] * 100
    assert not proctree.marked(sweep.folder)
    assert sweep.witnesses() == [0, 1]


def test_cancel_one_task(sweep: Sweep) -> None:
    """The others run; the sweep that lacks one is CANCELLED, not FAILED."""
    sweep.start(3, width=1)
    eventually(lambda: sweep.witnesses() == [0])
    assert send_command(sweep.folder, "cancel 0")
    assert send_command(sweep.folder, "cancel 2")
    eventually(lambda: sweep.states()[0] == sweep.states()[2] == "CANCELLED")
    sweep.go.touch()
    assert sweep.ended().state == "CANCELLED"
    assert (sweep.states(), sweep.witnesses()) == (["CANCELLED", "SUCCEEDED", "CANCELLED"], [0, 1])
    eventually(lambda: not send_command(sweep.folder, "cancel 1"))


def test_what_a_task_leaves_behind_is_ended(sweep: Sweep) -> None:
    """With the task its process group, and with the sweep what has left that."""
    sweep.go.touch()
    sweep.start(1, ends="sleep 1000 & setsid sleep 1001 & exit 0")
    sweep.ended()
    assert not proctree.marked(sweep.folder)


@pytest.fixture
def claimed(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[int, int]]:
    """What a guard makes of a sweep whose supervisor was killed between the claim of task 1 and the note of its pid."""
    children = task_guard._children
    others = set(children())  # a guard has none; here a test before may have left one that nobody has waited for
    monkeypatch.setattr(task_guard, "_children", lambda: {p: q for p, q in children().items() if p not in others})

    def look(*, fresh: bool, ends: dict[int, int] | None = None) -> dict[int, int]:
        job = JobState({"logs": sweep.folder, TASKS: "2"}, [("r", 3)])
        job.replicas[0].state, job.replicas[0].pid = "SUCCEEDED", 4711
        job.replicas[1].state = RUNNING
        writer = StateWriter(os.path.join(sweep.folder, STATE_FILE), job)
        writer.flush()
        writer.close()
        return task_guard._claimed(sweep.folder, ends or {}, fresh=fresh)

    return look


def test_a_claimed_task_that_was_not_started(claimed: Callable[..., dict[int, int]]) -> None:
    """There is no process, and no log: it is started again."""
    assert claimed(fresh=False) == {}
    assert claimed(fresh=True) == {}


def test_a_claimed_task_that_was_started(sweep: Sweep, claimed: Callable[..., dict[int, int]]) -> None:
    """A process that ended as the guard's child is the task's; a log without a process is one whose end nobody saw."""
    assert claimed(fresh=False, ends={4711: 0, 4712: 3}) == {1: 4712}
    path = task_log(sweep.folder, "r", 1)
    os.makedirs(os.path.dirname(path))
    Path(path).touch()
    assert claimed(fresh=True) == {1: 0}


def test_a_claimed_task_that_ended_at_once(claimed: Callable[..., dict[int, int]]) -> None:
    """Its process is still a child of the guard, which has not waited for it: its exit code is not lost."""
    pid = os.posix_spawn("/bin/true", ["true"], {}, setsid=True)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        assert claimed(fresh=False) == {1: pid}
    finally:
        os.waitpid(pid, 0)


def test_a_task_that_runs_is_found_by_its_environment(sweep: Sweep, claimed: Callable[..., dict[int, int]]) -> None:
    """It is the claimed one, although the state file does not name it."""
    env = {**os.environ, proctree.ENV_JOB: sweep.folder, proctree.ENV_REPLICA: "1"}
    pid = os.posix_spawn("/bin/sleep", ["sleep", "1000"], env, setsid=True)
    try:
        eventually(lambda: proctree.environment(pid).get(proctree.ENV_REPLICA) == "1")
        assert claimed(fresh=False) == {1: pid}
        assert claimed(fresh=True) == {1: pid}
    finally:
        kill(pid)
        os.waitpid(pid, 0)


def test_a_task_that_was_seen_before_it_had_its_group(
    sweep: Sweep, claimed: Callable[..., dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time its environment is read it is the task's program: it is looked at again, not taken for lost."""
    path = task_log(sweep.folder, "r", 1)
    os.makedirs(os.path.dirname(path))
    Path(path).touch()
    env = {**os.environ, proctree.ENV_JOB: sweep.folder, proctree.ENV_REPLICA: "1"}
    pid = os.posix_spawn("/bin/sleep", ["sleep", "1000"], env, setsid=True)
    try:
        eventually(lambda: proctree.environment(pid).get(proctree.ENV_REPLICA) == "1")
        seen = [proctree.Process(pid, "R", os.getpid(), os.getpid(), 1, group=group) for group in (pid, os.getpid())]
        monkeypatch.setattr(task_guard, "_children", lambda: {pid: seen.pop()})
        assert claimed(fresh=False) == {1: pid}
    finally:
        kill(pid)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("over", [False, True], ids=["it runs", "it has ended"])
def test_a_claimed_task_is_named_once_it_is_found(sweep: Sweep, over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the state file, before another one is claimed: after the next kill there is still but one in doubt."""
    monkeypatch.setattr("torchx.supervisor.task_client._run_guard", lambda *_: TAKEN)
    sweep.start(2)
    control = task_guard._prepare(sweep.folder)
    job = sweep.state()
    job.replicas[0].state = RUNNING
    writer = StateWriter(os.path.join(sweep.folder, STATE_FILE), job)
    writer.flush()
    writer.close()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "0" if over else "1000"], os.environ, setsid=True)
    if over:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        made = TaskSupervisor(sweep.folder, {}, control=control, ends={}, started={0: pid})
        assert (sweep.state().replicas[0].pid, made._running) == (pid, {pid: 0})
    finally:
        kill(pid)
        os.waitpid(pid, 0)
        os.close(control)


def test_a_folder_that_cannot_be_used(sweep: Sweep) -> None:
    """What is wrong is said to the caller, and nothing runs."""
    fifo = Path(sweep.folder, "control")
    fifo.mkdir()
    with pytest.raises(TasksError, match="control"):
        sweep.start(1)
    fifo.rmdir()
    assert os.path.exists(os.path.join(sweep.folder, TASKS_FILE))
    assert sweep.witnesses() == []
