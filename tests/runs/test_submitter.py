"""The identity of submitting processes: recognized, and never mistaken for another process."""

from __future__ import annotations

import os
from typing import Any

import pytest

from torchx.runs import submitter
from torchx.runs.submitter import identity, is_elsewhere, may_be_alive, nobody
from torchx.supervisor import proctree


def test_an_identity_is_what_the_kernel_says() -> None:
    """Host, start of the boot id, pid, and start time (field 22 of /proc/PID/stat)."""
    with open("/proc/self/stat", encoding="utf-8") as f:
        start = f.read().split()[21]  # our own name has no blanks
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as f:
        boot = f.read()[:8]
    assert identity() == f"{os.uname().nodename}|{boot}|{os.getpid()}|{start}"


def test_nobody_is_gone_and_of_this_host() -> None:
    """So that any process of this host can take over."""
    assert not may_be_alive(nobody())
    assert not is_elsewhere(nobody())


@pytest.mark.parametrize(
    ("who", "elsewhere"),
    [
        ("other|b|1|1", True),
        ("a|host|b|1|1", True),
        ("other|b|1", False),
        ("", False),
        (f"{os.uname().nodename}|b|1|1", False),
    ],
)
def test_who_is_elsewhere(who, elsewhere) -> None:
    """A process of another host, also if the host name contains a bar; an invalid identity is not elsewhere."""
    assert is_elsewhere(who) is elsewhere
    assert may_be_alive(who) is elsewhere


def _identity(pid: int, start: str = "") -> str:
    return "|".join([os.uname().nodename, identity().rsplit("|", 3)[1], str(pid), start])


def test_without_a_start_the_pid_must_do(monkeypatch) -> None:
    """Alive if it can be signalled or belongs to another user; gone if there is none."""
    assert may_be_alive(_identity(os.getpid()))
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert not may_be_alive(_identity(pid))
    signalled: list[tuple[int, int]] = []

    def refused(pid: int, number: int) -> None:
        signalled.append((pid, number))
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert may_be_alive(_identity(7))
    assert signalled == [(7, 0)]


def test_a_zombie_is_gone() -> None:
    """It can no longer record the answer."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        start = f.read().rpartition(")")[2].split()[19]
    assert not may_be_alive(_identity(pid, start))
    os.waitpid(pid, 0)


def test_without_proc(monkeypatch) -> None:
    """Boot id and start time are empty, and a process is told by its pid."""

    def missing(*_: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(proctree, "read_bytes", missing)
    monkeypatch.setattr(proctree, "_boot_id", "")
    submitter._identity.cache_clear()
    try:
        assert identity() == f"{os.uname().nodename}||{os.getpid()}|"
        assert may_be_alive(identity())
    finally:
        submitter._identity.cache_clear()
