"""The guard of a sweep: which process is that of a claimed task, what it prepares, and what it does after a crash."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import Clock, Gate, eventually, forked, in_fork, state, text
from torchx.supervisor import proctree, task_client, task_guard
from torchx.supervisor.layout import CONTROL_FIFO, CRASH_FILE, STATE_FILE, TASKS_FILE, task_log
from torchx.supervisor.proctree import Process
from torchx.supervisor.statefile import PENDING, RUNNING, TASKS, StateWriter
from torchx.supervisor.task_client import HELD, TAKEN, TasksError, resume
from torchx.supervisor.tasks import TaskSupervisor

K = 1  # the claimed task
PID = 4711


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(task_guard, "time", clock)
    return clock


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


def _tasks(job: Path, *scripts: str, **head: Any) -> None:
    facts = {"logs": str(job), "boot": proctree.boot_id(), "pidns": proctree.pid_namespace(), TASKS: "2"}
    whole = {"facts": facts, "role": "r", "cwd": "/", "grace_s": 5.0, "env": {}, "resumable": True, **head}
    lines = [["/bin/sh", ["sh", "-c", script], {}] for script in scripts]
    (job / TASKS_FILE).write_text("".join(json.dumps(line) + "\n" for line in (whole, *lines)))


@pytest.fixture
def claimed(job: Path) -> Path:
    """Task 0 runs as process 17, task 1 is claimed, task 2 waits."""
    _tasks(job, "true", "true", "true")
    os.close(task_guard._prepare(str(job)))
    read = state(job)
    read.replicas[0].state = read.replicas[1].state = RUNNING
    read.replicas[0].pid = 17
    writer = StateWriter(str(job / STATE_FILE), read)
    writer.flush()
    writer.close()
    return job


def _log(job: Path) -> None:
    path = Path(task_log(str(job), "r", K))
    path.parent.mkdir(exist_ok=True)
    path.touch()


@pytest.fixture
def look(claimed: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[int, int]]:
    """What is found out where these processes exist; a variable per pid names the task of each, None: unknown."""

    def look(
        *processes: Process, whose: dict[int, str | None], fresh: bool = False, ends: dict[int, int] | None = None
    ) -> dict[int, int]:
        found = {process.pid: process for process in processes}
        monkeypatch.setattr(task_guard, "_strangers" if fresh else "_children", lambda *_: found)
        env = {pid: {} if k is None else {proctree.ENV_REPLICA: k} for pid, k in whose.items()}
        monkeypatch.setattr(proctree, "environment", lambda pid: env.get(pid, {}))
        return task_guard._claimed(str(claimed), ends or {}, fresh=fresh)

    return look


def _process(pid: int, state: str = "S", group: int | None = None) -> Process:
    return Process(pid, state, os.getpid(), 1, 5, group=pid if group is None else group)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_process_of_another_task_is_not_taken_for_it(look, clock: Clock, fresh: bool) -> None:
    """It is known at once that the task was not started."""
    assert look(_process(PID), whose={PID: "2"}, fresh=fresh) == {}
    assert look(_process(PID), _process(PID + 1), whose={PID: "2", PID + 1: "1"}, fresh=fresh) == {K: PID + 1}
    assert clock.now == 1000.0


def test_a_process_on_record_is_not_taken_for_it(look, clock: Clock) -> None:
    """The supervisor had recorded that one, so it is another task's, whatever its environment says by now."""
    assert look(_process(17), whose={17: "1"}) == {}
    assert look(_process(17, "Z"), whose={17: None}) == {}


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("over", ["Z", "X"])
def test_a_dead_process_that_nobody_named(look, claimed: Path, clock: Clock, over: str, fresh: bool) -> None:
    """As a child of the guard it is the task's, and its exit code can be known; as another's it tells nothing."""
    assert look(_process(PID, over), whose={PID: None}, fresh=fresh) == ({} if fresh else {K: PID})
    assert look(_process(PID, over, group=1), whose={PID: None}, fresh=fresh) == {}
    assert clock.now == 1000.0, "the dead do not change"


@pytest.mark.parametrize("whose", [None, "1"], ids=["no environment yet", "no group yet"])
def test_a_new_process_is_waited_for(look, claimed: Path, clock: Clock, whose: str | None) -> None:
    """For a second, in steps of a millisecond: until then it may become the task's process."""
    new = _process(PID, group=1 if whose else None)
    assert look(new, whose={PID: whose}) == {}
    assert clock.now == pytest.approx(1001.0, abs=0.002)
    _log(claimed)
    assert look(new, whose={PID: whose}) == {K: 0}


def test_a_new_process_that_becomes_the_tasks(look, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken as soon as it can be recognized."""

    def sleep(_: float) -> None:
        monkeypatch.setattr(proctree, "environment", lambda pid: {proctree.ENV_REPLICA: "1"})

    monkeypatch.setattr(clock, "sleep", sleep)
    assert look(_process(PID), whose={PID: None}) == {K: PID}


def test_of_several_that_have_ended_the_last_is_the_tasks(look, claimed: Path) -> None:
    """Whoever ended last was started last; a process on record is not meant."""
    assert look(whose={}, ends={1: 0, PID: 3, 17: 1}) == {K: PID}
    assert look(whose={}, ends={17: 1}) == {}
    _log(claimed)
    assert look(whose={}, ends={17: 1}) == {K: 0}


def test_nothing_is_in_question_without_a_claim(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then processes are not even looked at."""
    _tasks(job, "true")
    os.close(task_guard._prepare(str(job)))
    monkeypatch.setattr(task_guard, "_children", lambda: 1 / 0)
    assert task_guard._claimed(str(job), {PID: 0}, fresh=False) == {}


def test_strangers_of_a_sweep(job: Path, tmp_path: Path) -> None:
    """Processes with its mark, and forks of its guard that still run the guard's program; not this process, nor others."""
    gate, up = Gate(tmp_path / "gate"), Gate(tmp_path / "up")
    script = f"{up.pass_on}; {gate.wait}; true"
    folder, guard = str(job), "/x/task_guard.py"
    env = {"PATH": os.environ["PATH"]}
    cases: list[tuple[list[str], dict[str, str], bool]] = [
        ([], {proctree.ENV_JOB: folder}, True),
        ([guard, folder], {}, True),
        ([guard, f"{folder}2"], {}, False),
        (["/x/other.py", folder], {}, False),
    ]
    pids = [
        os.posix_spawn("/bin/sh", ["sh", "-c", script, *words], {**env, **more}, setsid=True)
        for words, more, _ in cases
    ]
    try:
        for _ in pids:
            up.reached()
        found = task_guard._strangers(folder)
        assert [pid in found for pid in pids] == [ours for _, _, ours in cases]
        assert all(process.pid == pid for pid, process in found.items())
        assert os.getpid() not in found
    finally:
        gate.open(len(pids))
        for pid in pids:
            os.waitpid(pid, 0)
        gate.close()
        up.close()


def test_children_are_ones_own(tmp_path: Path) -> None:
    """Not those of others, and not this process itself."""
    gate = Gate(tmp_path / "gate")
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", gate.wait], {"PATH": os.environ["PATH"]})
    found = task_guard._children()
    gate.open()
    os.waitpid(pid, 0)
    gate.close()
    assert pid in found and {process.ppid for process in found.values()} == {os.getpid()}


# -- preparing -----------------------------------------------------------------------------------


def test_what_a_guard_prepares(job: Path, clock: Clock) -> None:
    """A FIFO for its owner alone, which is open as long as the guard lives, and the state; what is there already stays."""

    def steps() -> None:
        os.umask(0)
        _tasks(job, "true", "true", "true")
        control = task_guard._prepare(str(job))
        mode = os.stat(job / CONTROL_FIFO).st_mode
        assert stat.S_ISFIFO(mode) and mode & 0o777 == 0o600
        read = state(job)
        assert (read.state, read.created, read.roles) == (RUNNING, 1000.0, [("r", 3)])
        assert [line.state for line in read.replicas] == [PENDING] * 3
        with pytest.raises(BlockingIOError):  # and not the end of the file, which would wake it again and again
            os.read(control, 10)
        clock.now = 2000.0
        task_guard._prepare(str(job))
        assert state(job).created == 1000.0

    in_fork(steps)


# -- crashes -------------------------------------------------------------------------------------


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """So many supervisors crash before they do anything."""
    read, write = os.pipe()
    real = TaskSupervisor.run

    def run(self: TaskSupervisor) -> None:
        if os.read(read, 1) == b"x":
            raise ZeroDivisionError("a defect")
        real(self)

    monkeypatch.setattr(TaskSupervisor, "run", run)
    yield lambda count: [os.write(write, b"x" * count + b"." * (2 - count))].clear()
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(("count", "outcome"), [(0, "SUCCEEDED"), (1, "SUCCEEDED"), (2, "FAILED")])
def test_a_supervisor_that_crashes(job: Path, crashes: Callable[[int], None], count: int, outcome: str) -> None:
    """The guard takes its place, once; after a second crash the sweep has failed, and each crash leaves a traceback."""
    crashes(count)

    def steps() -> None:
        _tasks(job, f"echo run >> '{job}/runs'", "exit 0")
        task_guard.guard(str(job), {"PATH": os.environ["PATH"]}, task_guard._prepare(str(job)))

    in_fork(steps)
    read = state(job)
    assert (read.state, read.ended > 0) == (outcome, True)
    notes = text(job / CRASH_FILE) if count else ""
    assert notes.count("ZeroDivisionError: a defect") == count
    if outcome == "FAILED":
        assert read.msg == f"the supervisor of the sweep crashed; see `{CRASH_FILE}` in `{job}`"
        assert [line.state for line in read.replicas] == ["CANCELLED"] * 2
    else:
        assert text(job / "runs") == "run\n", "once"


def test_exit_codes_survive_a_killed_supervisor(job: Path, tmp_path: Path) -> None:
    """A task that ends while there is no supervisor is a child of the guard, which knows how it ended."""
    gate = Gate(tmp_path / "gate")

    def steps() -> None:
        _tasks(job, f"{gate.wait}; exit 5")
        task_guard.guard(str(job), {"PATH": os.environ["PATH"]}, task_guard._prepare(str(job)))

    with forked(steps) as fork:
        read = eventually(lambda: os.path.exists(job / STATE_FILE) and (s := state(job)).replicas[0].ticks and s)
        os.kill(read.supervisor, signal.SIGKILL)
        gate.open()
        assert fork.end() == 0
    gate.close()
    read = state(job)
    assert (read.state, read.replicas[0].state, read.replicas[0].exit) == ("FAILED", "FAILED", 5)
    assert not os.path.exists(job / CRASH_FILE)


# -- the client ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"), [(b"", "its process ended unexpectedly"), (b"Eno room", "no room"), (HELD, "ended unexp")]
)
def test_a_sweep_that_was_not_taken(job: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str) -> None:
    """The caller hears why; what it wrote for the tasks only its owner can read."""
    monkeypatch.setattr(task_client, "_run_guard", lambda *_: answer)
    old = os.umask(0)
    try:
        with pytest.raises(TasksError, match=said):
            task_client.start(str(job), {"role": "r"}, [("/bin/true", ["true"], {"A": "é"})], {})
    finally:
        os.umask(old)
    assert os.stat(job / TASKS_FILE).st_mode & 0o777 == 0o600
    head, task = (job / TASKS_FILE).read_text().splitlines()
    assert (json.loads(head), json.loads(task)) == ({"role": "r"}, ["/bin/true", ["true"], {"A": "é"}])
    with pytest.raises(FileExistsError):  # a folder is that of one sweep
        task_client.start(str(job), {"role": "r"}, [], {})


@pytest.mark.parametrize(
    ("content", "answer", "resumed"),
    [
        ('{"resumable": true}\n', TAKEN, True),
        ('{"resumable": true}\n', HELD, True),
        ('{"resumable": true}\n', b"Eno room", False),
        ('{"resumable": true}\n', b"", False),
        ('{"resumable": false}\n', TAKEN, False),
        ("{}\n", TAKEN, False),
        ("garbage\n", TAKEN, False),
        (None, TAKEN, False),
    ],
)
def test_whether_a_sweep_is_resumed(
    job: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, answer: bytes, resumed: bool
) -> None:
    """If a guard holds it afterwards; not if its tasks need secrets, or if its files are damaged."""
    asked: list[object] = []
    monkeypatch.setattr(task_client, "_run_guard", lambda folder, env: asked.append((folder, env)) or answer)
    if content is not None:
        (job / TASKS_FILE).write_text(content)
    assert resume(str(job)) is resumed
    assert asked == ([(str(job), os.environ)] if content and "true" in content else [])


def test_a_guard_has_no_secrets_in_its_environment(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks have them, by a pipe; where others may look, in its environment, it has what it needs to start."""
    monkeypatch.setenv("MY_TOKEN", "secret")
    script = 'tr "\\0" "\\n" < /proc/$PPID/environ; echo "token $MY_TOKEN"'
    _tasks(job, script)
    assert task_client._run_guard(str(job), {"MY_TOKEN": "secret", "PATH": os.environ["PATH"]}) == TAKEN
    eventually(lambda: state(job).state == "SUCCEEDED")
    said = Path(task_log(str(job), "r", 0)).read_text()
    assert "token secret" in said and "MY_TOKEN=" not in said and f"PATH={os.environ['PATH']}" in said
