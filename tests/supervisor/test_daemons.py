"""Processes of our own: how one leaves its caller, what is known of one that is stopped, and signals to groups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import eventually, forked, in_fork, text, until_dead
from torchx.supervisor import proctree

SHELL = ("/bin/sh", ["sh", "-c", "exit 3"], {})


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_that_leaves_its_caller(tmp_path: Path) -> None:
    """Its parent ends with 0; it has a session of its own, no open file but those it keeps, and cannot be interrupted."""
    facts = tmp_path / "facts"

    def steps() -> None:
        kept = os.dup2(os.open("/dev/zero", os.O_RDONLY), 5)
        closed = os.dup2(kept, 6, inheritable=True)
        before = os.getpid()
        proctree.leave_caller(6)
        fds = [os.path.exists(f"/proc/self/fd/{fd}") for fd in (kept, closed)]
        targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)]
        ignored = [signal.getsignal(n) == signal.SIG_IGN for n in (1, 2, 3, 13, 15)]
        subprocess.run(["/bin/sh", "-c", "sleep 600 & exit 0"], check=True)
        orphans = proctree.children_of_self()
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        own = (os.getpid() != before, os.getsid(0) == os.getpid())
        Path(f"{facts}.new").write_text(f"{os.getpid()} {(own, fds, targets, ignored, len(orphans))}")
        os.rename(f"{facts}.new", facts)
        signal.pause()

    with forked(steps) as fork:
        assert fork.end() == 0
        eventually(facts.exists)
    pid, _, found = text(facts).partition(" ")
    assert proctree.start_ticks(int(pid)), "it outlives its caller"
    os.kill(int(pid), signal.SIGKILL)
    until_dead(int(pid))
    assert found == repr(((True, True), [True, False], ["/dev/null"] * 3, [True] * 5, 1))


def test_who_is_stopped(sleeper: subprocess.Popen[bytes]) -> None:
    """By a signal or by a debugger; neither one that sleeps nor one that is not there."""
    assert not proctree.is_stopped(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    eventually(lambda: proctree.is_stopped(sleeper.pid))
    assert proctree.start_ticks(sleeper.pid), "it is alive"
    sleeper.send_signal(signal.SIGCONT)
    eventually(lambda: not proctree.is_stopped(sleeper.pid))
    assert not proctree.is_stopped(999_999_999)


@pytest.mark.parametrize(("state", "stopped"), [("t", True), ("T", True), ("S", False), ("Z", False)])
def test_states_of_a_process(monkeypatch: pytest.MonkeyPatch, state: str, stopped: bool) -> None:
    """A process that a debugger has stopped is alive."""
    monkeypatch.setattr(proctree, "read_process", lambda pid: proctree.Process(pid, state, 1, 1, 9))
    assert (proctree.is_stopped(5), proctree.start_ticks(5)) == (stopped, 0 if state == "Z" else 9)


def test_a_signal_to_a_group(sleeper: subprocess.Popen[bytes]) -> None:
    """All of it, and no error when it is gone."""
    child = proctree.read_process(sleeper.pid)
    assert child is not None and child.group == sleeper.pid
    proctree.signal_group(sleeper.pid, signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM
    proctree.signal_group(sleeper.pid, signal.SIGTERM)


@pytest.mark.parametrize("sessions", [True, False])
def test_a_program_has_a_session_where_that_is_possible(monkeypatch: pytest.MonkeyPatch, sessions: bool) -> None:
    """Else a process group; options are passed on both times."""
    asked: list[dict[str, Any]] = []

    def spawn(*words: Any, **how: Any) -> int:
        asked.append(how)
        if "setsid" in how and not sessions:
            raise NotImplementedError
        return 5

    monkeypatch.setattr(os, "posix_spawn", spawn)
    assert proctree.spawn(*SHELL, setsigmask=()) == 5
    expected: list[dict[str, Any]] = [{"setsid": True, "setsigmask": ()}, {"setpgroup": 0, "setsigmask": ()}]
    assert asked == expected[: 1 if sessions else 2]


def test_a_mark_is_for_ones_descendants(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a number that nobody would choose, it is inherited, and it lowers no limit of theirs; none without /proc."""

    def steps() -> None:
        import resource

        before = resource.getrlimit(proctree.RLIMIT_LOCKS)
        mark = proctree.set_mark()
        assert 1 << 55 <= int(mark) < 1 << 56
        assert resource.getrlimit(proctree.RLIMIT_LOCKS) == (int(mark), before[1])
        child = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
        assert proctree.has_mark(child, mark) and not proctree.has_mark(child, mark[:-1])
        assert not proctree.has_mark(999_999_999, mark)
        monkeypatch.setattr(proctree, "HAS_PROC", False)
        assert proctree.set_mark() == ""
        monkeypatch.setattr(proctree, "HAS_PROC", True)
        monkeypatch.setitem(sys.modules, "resource", None)
        assert proctree.set_mark() == ""

    in_fork(steps)


def test_processes_with_the_mark_of_a_job(tmp_path: Path) -> None:
    """Or with its environment: either is enough."""

    def steps() -> None:
        mark = proctree.set_mark()
        pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
        assert {os.getpid(), pid} <= {p.pid for p in proctree.marked("/no/job", mark)}
        assert proctree.marked("/no/job") == proctree.marked("/no/job", "7") == []
        os.kill(pid, signal.SIGKILL)
        until_dead(pid)
        assert pid not in {p.pid for p in proctree.marked("/no/job", mark)}

    in_fork(steps)
