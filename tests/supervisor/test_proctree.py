"""Processes as they are on this machine: found, told apart, and signalled only when they are the ones that are meant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.supervisor.forks import eventually, in_fork, text
from torchx.supervisor import proctree, statefile
from torchx.supervisor.proctree import Process


@pytest.fixture
def shell(gate) -> Iterator[subprocess.Popen[bytes]]:
    env = {"A": "x", "AB": "y=z", proctree.ENV_JOB: "/the/job"}
    process = subprocess.Popen(["/bin/sh", "-c", f"{gate.wait}; true"], env=env)
    yield process
    process.kill()
    process.wait()


def test_a_living_process(shell) -> None:
    """Its parent, session and start are the kernel's; a snapshot has it, too."""
    found = proctree.snapshot()
    me, process = found[os.getpid()], found[shell.pid]
    assert (process.pid, process.ppid, process.session) == (shell.pid, os.getpid(), os.getsid(0))
    assert process.ticks == proctree.start_ticks(shell.pid) == int(text(f"/proc/{shell.pid}/stat").split()[21])
    assert process.ticks >= me.ticks > 0
    assert process.state in "SDR"


def test_a_name_with_blanks_and_parentheses(tmp_path, gate) -> None:
    """What a program is called is no part of the numbers."""
    program = tmp_path / ") R 1 1 ("
    program.symlink_to("/bin/sh")
    process = subprocess.Popen([str(program), "-c", f"{gate.wait}; true"])
    eventually(lambda: "R 1 1" in text(f"/proc/{process.pid}/stat"))
    assert proctree.snapshot()[process.pid].ppid == os.getpid()
    process.kill()
    process.wait()


def test_the_dead_have_no_start(shell) -> None:
    """Neither a zombie nor a pid that nobody has."""
    assert proctree.start_ticks(shell.pid)
    shell.kill()
    eventually(lambda: proctree.snapshot()[shell.pid].state == "Z")
    assert proctree.start_ticks(shell.pid) == 0
    assert shell.pid in proctree.children_of_self()
    shell.wait()
    assert proctree.start_ticks(shell.pid) == 0
    assert shell.pid not in proctree.snapshot()


def _tree() -> dict[int, Process]:
    parents = {1: 0, 2: 1, 3: 1, 4: 2, 5: 4, 9: 9}
    return {pid: Process(pid, "S", ppid, 1, 1) for pid, ppid in parents.items()}


@pytest.mark.parametrize(
    ("roots", "found"),
    [({2}, [2, 4, 5]), ({1}, [1, 2, 3, 4, 5]), ({2, 4}, [2, 4, 5]), ({7}, []), ({9}, [9]), (set(), [])],
    ids=["below", "all", "each once", "gone", "its own parent", "none"],
)
def test_descendants(roots, found) -> None:
    """The roots and all below them, each once, parents first."""
    pids = [p.pid for p in proctree.descendants(_tree(), roots)]
    assert sorted(pids) == found
    assert all(
        pids.index(p) < pids.index(c) for p, c in [(1, 2), (2, 4), (4, 5)] if {p, c} <= set(pids) and p not in roots
    )


def test_children_of_this_process(shell, monkeypatch) -> None:
    """Its own and not its grandchildren; in another way where the kernel has no list of them; unknown without /proc."""
    assert proctree.children_of_self() == {p.pid for p in proctree.snapshot().values() if p.ppid == os.getpid()}
    assert shell.pid in proctree.children_of_self()
    real = statefile.read_bytes

    def without_lists(path: str) -> bytes:
        if path.endswith("/children"):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(proctree, "read_bytes", without_lists)
    children = proctree.children_of_self()
    assert shell.pid in children and os.getpid() not in children
    monkeypatch.setattr(proctree, "snapshot", dict)
    assert proctree.children_of_self() == set()


def test_variables_of_a_process(shell, gate) -> None:
    """As it was started with them; None when unset, or when it is gone."""
    eventually(lambda: proctree.environment(shell.pid).get("A"))
    assert proctree.environment(shell.pid).get("A") == "x"
    assert proctree.environment(shell.pid).get("AB") == "y=z"
    assert proctree.environment(shell.pid).get("B") is None
    shell.kill()
    shell.wait()
    assert proctree.environment(shell.pid).get("A") is None


def test_marked_processes(shell) -> None:
    """Those of exactly this job that are alive."""
    eventually(lambda: proctree.environment(shell.pid).get("A"))
    assert [p.pid for p in proctree.marked("/the/job")] == [shell.pid]
    assert proctree.marked("/the/jo") == proctree.marked("/the/job2") == []
    shell.kill()
    eventually(lambda: proctree.snapshot()[shell.pid].state == "Z")
    assert proctree.marked("/the/job") == []


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_signal_reaches_exactly_who_is_meant(shell, monkeypatch, pidfd) -> None:
    """Not the next process with that pid; quiet when there is none."""
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    process = proctree.snapshot()[shell.pid]
    before = os.listdir("/proc/self/fd")
    proctree.send(Process(shell.pid, "S", 1, 1, process.ticks + 1), signal.SIGKILL)
    assert proctree.start_ticks(shell.pid) == process.ticks
    proctree.send(process, signal.SIGTERM)
    assert shell.wait() == -signal.SIGTERM
    proctree.send(process, signal.SIGTERM)
    assert os.listdir("/proc/self/fd") == before


def test_who_was_stopped_is_woken(shell) -> None:
    """After SIGTERM, so that it can act on it; a dead one is not signalled."""
    shell.send_signal(signal.SIGSTOP)
    eventually(lambda: proctree.snapshot()[shell.pid].state == "T")
    stopped = proctree.snapshot()[shell.pid]
    proctree.send_all([stopped], signal.SIGTERM)
    assert shell.wait() == -signal.SIGTERM


def test_what_is_sent_to_whom(monkeypatch) -> None:
    """SIGCONT only to the stopped, not after SIGKILL; what looks dead may have threads that run."""
    sent = []
    monkeypatch.setattr(proctree, "send", lambda process, number: sent.append((process.state, number)))
    everyone = [Process(i, state, 1, 1, 1) for i, state in enumerate("STZX")]
    proctree.send_all(everyone, signal.SIGTERM)
    term = signal.SIGTERM
    assert sent == [("S", term), ("T", term), ("T", signal.SIGCONT), ("Z", term), ("X", term)]
    sent.clear()
    proctree.send_all(everyone, signal.SIGKILL)
    assert sent == [(state, signal.SIGKILL) for state in "STZX"]


def test_a_process_whose_main_thread_has_ended() -> None:
    """It looks like a zombie, and ends by a signal nonetheless."""
    program = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    found = subprocess.Popen([sys.executable, "-c", program])
    try:
        eventually(lambda: proctree.snapshot()[found.pid].state == "Z")
        proctree.send_all([proctree.snapshot()[found.pid]], signal.SIGTERM)
        assert found.wait(60) == -signal.SIGTERM
    finally:
        found.kill()
        found.wait()


def test_orphans_come_to_a_subreaper(gate, up, monkeypatch) -> None:
    """A Python without ctypes, or a system without prctl, is no error."""

    def adopted() -> bool:
        shell = subprocess.Popen(["/bin/sh", "-c", f"setsid sh -c '{up.pass_on}; {gate.wait}; true' &"])
        shell.wait()
        up.reached()
        return bool(proctree.children_of_self())

    def steps() -> None:
        proctree.become_subreaper()
        assert adopted()
        gate.open()
        os.wait()
        monkeypatch.setitem(sys.modules, "ctypes", None)
        proctree.become_subreaper()

    in_fork(steps)


def test_which_boot_and_namespace(monkeypatch) -> None:
    """The kernel's ids, the boot id read once; empty where it has none."""
    boot = text("/proc/sys/kernel/random/boot_id").strip()
    monkeypatch.setattr(proctree, "_boot_id", "")
    assert proctree.boot_id() == boot
    monkeypatch.setattr(proctree, "read_bytes", lambda path: 1 / 0)
    assert proctree.boot_id() == boot
    assert proctree.pid_namespace() == os.readlink("/proc/self/ns/pid")

    def refused(path: str) -> bytes:
        raise PermissionError(path)

    monkeypatch.setattr(proctree, "_boot_id", "")
    monkeypatch.setattr(proctree, "read_bytes", refused)
    monkeypatch.setattr(os, "readlink", refused)
    assert (proctree.boot_id(), proctree.pid_namespace()) == ("", "")


def test_a_line_that_is_cut(monkeypatch) -> None:
    """Too few fields are no process; exactly enough are one."""
    fields = b" ".join(b"%d" % i for i in range(2, 20))
    monkeypatch.setattr(proctree, "read_bytes", lambda path: b"7 (a) S " + fields)
    assert proctree.read_process(7) is None
    monkeypatch.setattr(proctree, "read_bytes", lambda path: b"7 (a) S " + fields + b" 99")
    process = proctree.read_process(7)
    assert process is not None and (process.ppid, process.session, process.ticks) == (2, 4, 99)


def test_without_proc(monkeypatch) -> None:
    """No process is visible."""

    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", missing)
    assert proctree.snapshot() == {}
