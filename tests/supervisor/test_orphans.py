"""A job whose supervisor was killed: its processes are ended, and nobody else's; what became of it is written down."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.supervisor.forks import Clock, eventually, forked, in_fork, state, text, until_dead
from torchx.supervisor import orphans, proctree
from torchx.supervisor.orphans import end_job
from torchx.supervisor.statefile import JobState, StateWriter, read_bytes

NOW = 2000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    clock = Clock(NOW)
    monkeypatch.setattr(orphans, "time", clock)
    return clock


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def _start(processes, gate, **env: str) -> proctree.Process:
    # a session of its own, as each replica has
    processes.append(subprocess.Popen(["/bin/sh", "-c", f"{gate.wait}; true"], env=env, start_new_session=True))
    pid = processes[-1].pid
    eventually(lambda: env.items() <= proctree.environment(pid).items())  # which are not there while it begins
    return proctree.snapshot()[pid]


def _job(folder, *states: str, here: bool = True, **facts: str) -> JobState:
    folder.mkdir(exist_ok=True)
    place = {"boot": proctree.boot_id(), "pidns": proctree.pid_namespace()} if here else {}
    job = JobState({"app_id": "a", **place, **facts}, [("r", len(states))])
    job.state = "RUNNING"
    for line, line_state in zip(job.replicas, states, strict=True):
        line.state = line_state
    return job


def _write(folder, job: JobState) -> None:
    writer = StateWriter(str(folder / "state"), job)
    writer.flush()
    writer.close()


def test_what_is_written_down(tmp_path) -> None:
    """The job FAILED with the reason; what ran or waited is CANCELLED; what had ended keeps its state and time."""
    job = _job(tmp_path, "RUNNING", "PENDING", "SUCCEEDED", "FAILED")
    job.replicas[2].ended = job.replicas[3].ended = 1000.0
    job.restarts, job.first, job.created = 3, 3, 900.0
    _write(tmp_path, job)
    size = os.stat(tmp_path / "state").st_size
    assert end_job(str(tmp_path), "it was killed")
    read = state(tmp_path)
    assert (read.state, read.msg) == ("FAILED", "it was killed")
    assert read.ended == pytest.approx(NOW + 0.005)
    assert (read.restarts, read.first, read.created) == (3, 3, 900.0)
    assert [(r.state, r.ended) for r in read.replicas] == [
        ("CANCELLED", read.ended), ("CANCELLED", read.ended), ("SUCCEEDED", 1000.0), ("FAILED", 1000.0),
    ]  # fmt: skip
    assert os.stat(tmp_path / "state").st_size == size
    before = read_bytes(str(tmp_path / "state"))
    assert end_job(str(tmp_path), "another reason")
    assert read_bytes(str(tmp_path / "state")) == before


@pytest.mark.parametrize("ended", ["SUCCEEDED", "FAILED", "CANCELLED"])
def test_a_job_that_has_ended_is_left_alone(tmp_path, processes, gate, ended) -> None:
    """Its state stays, and so does a process that still has its mark."""
    job = _job(tmp_path, ended)
    job.state = ended
    _write(tmp_path, job)
    process = _start(processes, gate, **{proctree.ENV_JOB: str(tmp_path)})
    assert end_job(str(tmp_path), "x")
    assert (state(tmp_path).state, state(tmp_path).msg) == (ended, "")
    assert proctree.start_ticks(process.pid) == process.ticks


def test_processes_of_the_job_are_ended_and_no_others(tmp_path, processes, gate) -> None:
    """By pid and start time, by the mark, and what is below them; not one of another job or that got an old pid."""
    recorded = _start(processes, gate)
    marked = _start(processes, gate, **{proctree.ENV_JOB: str(tmp_path)})
    other = _start(processes, gate, **{proctree.ENV_JOB: f"{tmp_path}2"})
    reused = _start(processes, gate)
    ended = _start(processes, gate)
    job = _job(tmp_path, "RUNNING", "RUNNING", "SUCCEEDED", "RUNNING")
    for line, process, ticks in zip(job.replicas, (recorded, reused, ended, other), (0, 1, 0, None), strict=True):
        line.pid, line.ticks = process.pid, 0 if ticks is None else process.ticks + ticks
    _write(tmp_path, job)
    below = subprocess.Popen(
        ["/bin/sh", "-c", f"(exec {'/bin/sh'} -c '{gate.wait}; true') & {gate.wait}"],
        env={proctree.ENV_JOB: str(tmp_path)},
    )
    processes.append(below)
    child = eventually(lambda: proctree.descendants(proctree.snapshot(), {below.pid})[1:])[0]
    assert end_job(str(tmp_path), "x")
    alive = [p for p in (recorded, marked, other, reused, ended, child) if proctree.start_ticks(p.pid) == p.ticks]
    assert alive == [other, reused, ended]
    assert processes[0].wait() == processes[1].wait() == -signal.SIGKILL


def test_children_without_a_mark_go_with_their_parent(tmp_path, processes, gate, up) -> None:
    """A replica's child that cleared its environment is found below it."""
    script = f"env -i sh -c '{up.pass_on}; {gate.wait}; true' & wait"
    processes.append(subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True))
    up.reached()
    replica = proctree.snapshot()[processes[0].pid]
    child = proctree.descendants(proctree.snapshot(), {replica.pid})[1]
    job = _job(tmp_path, "RUNNING")
    job.replicas[0].pid, job.replicas[0].ticks = replica.pid, replica.ticks
    _write(tmp_path, job)
    assert end_job(str(tmp_path), "x")
    eventually(lambda: proctree.start_ticks(child.pid) != child.ticks)


def test_none_sees_another_one_end(tmp_path, processes, up, monkeypatch) -> None:
    """Replicas that exit when another one has gone are ended, too: none exits by itself, which would be recorded."""
    job = _job(tmp_path, "RUNNING", "RUNNING")
    for name in "ab":
        os.mkfifo(tmp_path / name)
    for line, (own, other) in zip(job.replicas, (("a", "b"), ("b", "a")), strict=True):
        script = f"exec 3<>{own}; {up.pass_on}; read line <{other}; exit 7"  # until nobody has the other one open
        processes.append(subprocess.Popen(["/bin/sh", "-c", script], cwd=tmp_path, start_new_session=True))
        up.reached()
        line.pid, line.ticks = processes[-1].pid, proctree.start_ticks(processes[-1].pid)
    _write(tmp_path, job)
    send = proctree.send

    def slowly(process: proctree.Process, number: int) -> None:
        send(process, number)
        if number == signal.SIGKILL:
            eventually(lambda: all(_is_still(line.pid) for line in job.replicas))

    monkeypatch.setattr(proctree, "send", slowly)
    assert end_job(str(tmp_path), "x")
    assert [p.wait() for p in processes] == [-signal.SIGKILL] * 2


def _is_still(pid: int) -> bool:
    """Whether it has ended or is stopped: it does nothing more."""
    return not proctree.start_ticks(pid) or proctree.is_stopped(pid)


def test_a_pid_alone_is_no_proof(tmp_path, processes, gate) -> None:
    """A process of the recorded pid and start that leads no session, and has no mark of the job, is not its replica."""
    processes.append(subprocess.Popen(["/bin/sh", "-c", f"{gate.wait}; true"], env={}))
    other = proctree.snapshot()[processes[0].pid]
    job = _job(tmp_path, "RUNNING")
    job.replicas[0].pid, job.replicas[0].ticks = other.pid, other.ticks
    _write(tmp_path, job)
    assert end_job(str(tmp_path), "x")
    assert proctree.start_ticks(other.pid) == other.ticks


def test_a_daemon_that_cleared_all_is_found_by_its_mark(tmp_path, gate, up) -> None:
    """It forked twice, made a session and an empty environment: the limit of file locks tells whose it is."""
    job = _job(tmp_path, "RUNNING")
    seen = tmp_path / "pid"

    def start() -> None:
        mark = proctree.set_mark()
        (tmp_path / "mark").write_text(mark)
        script = f"echo $$ > '{seen}'; {up.pass_on}; {gate.wait}; true"
        subprocess.run(["env", "-i", "setsid", "-f", "sh", "-c", script], check=True)

    pid = os.fork()  # not a subreaper: as when supervisor and guardian are both gone
    if not pid:
        start()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    up.reached()
    daemon = proctree.snapshot()[int(text(seen))]
    assert proctree.environment(daemon.pid).get(proctree.ENV_JOB) is None
    job.facts["mark"] = text(tmp_path / "mark")
    _write(tmp_path, job)
    assert not proctree.has_mark(os.getpid(), job.facts["mark"])
    assert end_job(str(tmp_path), "x")
    assert proctree.start_ticks(daemon.pid) != daemon.ticks


def test_marks_differ_and_none_is_no_mark() -> None:
    """Two jobs of one supervisor have two; a process without one is not taken for that of a job without one."""

    def steps() -> None:
        first, second = proctree.set_mark(), proctree.set_mark()
        assert first and second and first != second
        assert (proctree.has_mark(os.getpid(), first), proctree.has_mark(os.getpid(), second)) == (False, True)
        assert not proctree.has_mark(os.getpid(), "")

    in_fork(steps)


def test_a_replica_whose_end_nobody_saw_is_lost(tmp_path, processes, gate) -> None:
    """It is gone, and not by us: it may have succeeded, and FAILED would be a lie; one that we ended was cancelled."""
    gone = _start(processes, gate)
    gate.open()
    assert processes[0].wait() == 0
    there = _start(processes, gate)
    job = _job(tmp_path, "RUNNING", "RUNNING", "SUCCEEDED")
    for line, process in zip(job.replicas, (gone, there), strict=False):
        line.pid, line.ticks = process.pid, process.ticks
    _write(tmp_path, job)
    assert end_job(str(tmp_path), "the supervisor of the job was killed; its processes were ended")
    read = state(tmp_path)
    assert [(r.state, r.exit) for r in read.replicas] == [("UNKNOWN", None), ("CANCELLED", None), ("SUCCEEDED", None)]
    assert (read.state, read.msg) == ("FAILED", "the supervisor of the job was killed; it is not known how r/0 ended")


@pytest.mark.parametrize(
    ("code", "seen", "outcome"),
    [(0, "SUCCEEDED", "SUCCEEDED"), (3, "FAILED", "FAILED"), (-9, "CANCELLED", "FAILED"), (-11, "FAILED", "FAILED")],
)
def test_an_end_that_the_guardian_saw(tmp_path, processes, gate, code, seen, outcome) -> None:
    """It counts as if the supervisor had seen it; a job of which all replicas succeeded did, too."""
    gone = _start(processes, gate)
    gate.open()
    processes[0].wait()
    job = _job(tmp_path, "RUNNING", "SUCCEEDED")
    job.replicas[0].pid, job.replicas[0].ticks = gone.pid, gone.ticks
    _write(tmp_path, job)
    assert end_job(str(tmp_path), "it was killed", {gone.pid: code, 1: 7}.get)
    read = state(tmp_path)
    assert (read.state, read.msg) == (outcome, "" if outcome == "SUCCEEDED" else "it was killed")
    assert (read.replicas[0].state, read.replicas[0].exit) == (seen, None if code == -9 else code)


@pytest.mark.parametrize("facts", [{"boot": "another"}, {"pidns": "another"}], ids=["boot", "namespace"])
def test_pids_of_elsewhere_mean_nothing_here(tmp_path, processes, gate, facts) -> None:
    """Of another boot or pid namespace no process is ended; the job has failed all the same."""
    process = _start(processes, gate, **{proctree.ENV_JOB: str(tmp_path)})
    job = _job(tmp_path, "RUNNING", **facts)
    job.replicas[0].pid, job.replicas[0].ticks = process.pid, process.ticks
    _write(tmp_path, job)
    assert end_job(str(tmp_path), "x")
    assert proctree.start_ticks(process.pid) == process.ticks
    assert state(tmp_path).state == "FAILED"


def test_what_is_dead_but_not_waited_for_is_gone(tmp_path, processes, gate, clock) -> None:
    """A zombie that nobody reaps holds nothing up."""
    process = _start(processes, gate, **{proctree.ENV_JOB: str(tmp_path)})
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: proctree.snapshot()[process.pid].state == "Z")
    job = _job(tmp_path, "RUNNING")
    job.replicas[0].pid, job.replicas[0].ticks = process.pid, process.ticks
    _write(tmp_path, job)
    assert end_job(str(tmp_path), "x")
    assert clock.now == NOW + 0.005  # one pause between the two looks that find nothing


def test_what_cannot_be_killed_is_given_up(tmp_path, processes, gate, monkeypatch, clock) -> None:
    """After five seconds and not before; and were the clock to jump, after fifty attempts."""
    sent: list[float] = []
    monkeypatch.setattr(proctree, "send_all", lambda processes, number: sent.append(clock.now))
    _start(processes, gate, **{proctree.ENV_JOB: str(tmp_path)})
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + 1.25)
    with monkeypatch.context() as patch:
        patch.setattr(orphans, "_LEAST_KILLS", 2)
        _write(tmp_path, _job(tmp_path, "RUNNING"))
        assert end_job(str(tmp_path), "x")
    assert sent == [NOW, NOW + 1.25, NOW + 2.5, NOW + 3.75]
    sent.clear()
    _write(tmp_path, _job(tmp_path, "RUNNING"))
    assert end_job(str(tmp_path), "x")
    assert len(sent) == 50


def test_a_pause_between_two_attempts(tmp_path, processes, gate, monkeypatch, clock) -> None:
    """A process takes a moment to die: five milliseconds are waited, not a processor kept busy; then it is looked twice."""
    process = _start(processes, gate, **{proctree.ENV_JOB: str(tmp_path)})
    real = proctree.send_all

    def send_all(found: list[proctree.Process], number: int) -> None:
        real(found, number)
        eventually(lambda: proctree.start_ticks(process.pid) != process.ticks)

    monkeypatch.setattr(proctree, "send_all", send_all)
    _write(tmp_path, _job(tmp_path, "RUNNING"))
    assert end_job(str(tmp_path), "x")
    assert clock.now == pytest.approx(NOW + 0.010)


def test_a_process_that_starts_its_program_just_now_is_ended(tmp_path, processes, gate, monkeypatch, clock) -> None:
    """In the middle of an exec nothing of its environment can be read: one look that finds nothing is not enough."""
    process = _start(processes, gate, **{proctree.ENV_JOB: str(tmp_path)})
    looks = [[], [process]]
    monkeypatch.setattr(proctree, "marked", lambda folder, mark: looks.pop(0) if looks else [])
    _write(tmp_path, _job(tmp_path, "RUNNING"))
    assert end_job(str(tmp_path), "x")
    until_dead(process.pid)


def test_logs_are_completed(tmp_path) -> None:
    """What a replica wrote at last is in combined.log too, also where the user wanted the logs."""
    for logs in (tmp_path / "job", tmp_path / "logs"):
        (logs / "r" / "0").mkdir(parents=True)
        (logs / "r" / "0" / "stdout.log").write_text("last words")
        _write(tmp_path / "job", _job(tmp_path / "job", "RUNNING", "PENDING", logs=str(logs)))
        assert end_job(str(tmp_path / "job"), "x")
        assert (logs / "r" / "0" / "combined.log").read_text() == "last words"
    assert not (tmp_path / "logs" / "r" / "1").exists()


def test_a_full_disk_does_not_hide_the_end(tmp_path) -> None:
    """The state needs no room; logs that cannot be completed are left as they are."""
    (tmp_path / "r" / "0").mkdir(parents=True)
    (tmp_path / "r" / "0" / "stdout.log").write_text("last words")
    (tmp_path / "r" / "0" / "combined.log").mkdir()
    _write(tmp_path, _job(tmp_path, "RUNNING"))
    assert end_job(str(tmp_path), "x")
    assert state(tmp_path).state == "FAILED"


@pytest.mark.parametrize("content", [None, b"", b"garbage"], ids=["gone", "empty", "garbage"])
def test_what_cannot_be_read_cannot_be_ended(tmp_path, content) -> None:
    """False, and nothing is written."""
    if content is not None:
        (tmp_path / "state").write_bytes(content)
    before = os.listdir("/proc/self/fd")
    assert end_job(str(tmp_path), "x") is False
    assert os.listdir("/proc/self/fd") == before
    assert content is None or (tmp_path / "state").read_bytes() == content


def test_one_at_a_time(tmp_path, gate) -> None:
    """Several who find the same dead supervisor: one does the work, the others wait and see that it is done."""
    _write(tmp_path, _job(tmp_path, "RUNNING"))
    lock = os.open(tmp_path / "state", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def second() -> int:
        os.close(lock)
        return 0 if end_job(str(tmp_path), "second") else 1

    with forked(second) as fork:
        waiting = f"-> FLOCK  ADVISORY  WRITE {fork.pid} "
        eventually(lambda: waiting in text("/proc/locks"))
        job = _job(tmp_path, "CANCELLED")
        job.state, job.msg = "FAILED", "first"
        _write(tmp_path, job)
        os.close(lock)
        assert fork.end() == 0
    assert state(tmp_path).msg == "first"
