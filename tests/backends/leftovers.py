"""What a run of tests leaves behind: processes, files, descriptors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from typing import NamedTuple

from torchx.supervisor.client import shared


class Left(NamedTuple):
    """A process that descends from this one."""

    pid: int
    parent: int
    state: str
    command: str


def adopt_orphans() -> None:
    """From now on whatever our processes leave behind becomes our child, however well it has hidden itself."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
        raise OSError(ctypes.get_errno(), "prctl")


def descendants() -> list[Left]:
    """Children of this process, their children, and so on."""
    everyone = {process.pid: process for process in map(_look, os.listdir("/proc")) if process is not None}
    found: list[Left] = []
    family = {os.getpid()}
    while new := [p for p in everyone.values() if p.parent in family and p.pid not in family]:
        found += new
        family.update(p.pid for p in new)
    return found


def living(word: str = "") -> list[Left]:
    """Descendants that run, with ``word`` in their command line."""
    return [p for p in descendants() if p.state not in "ZX" and word in p.command]


def reap() -> None:
    """Lets go of children that have ended: one that was adopted keeps its namespaces, and who waits for those, alive."""
    for process in descendants():
        if process.state == "Z" and process.parent == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def gone(word: str, within_s: float = 120.0) -> None:
    """Wait until no descendant with ``word`` in its command line runs; the launcher of our own jobs does not count."""
    deadline = time.monotonic() + within_s
    empty = 0
    while empty < 3:  # one look may miss a process that forks and ends while it is looked at
        left = [process for process in living(word) if process.pid not in own_launcher()]
        empty = 0 if left else empty + 1
        assert not left or time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02 if left else 0)


def own_launcher() -> set[int]:
    """The processes of the launcher that this process hands its jobs to: those that read from our pipe, or descend
    from one that does. Not the jobs' own processes."""
    if shared._process != os.getpid() or shared._requests < 0:
        return set()
    pipe = os.readlink(f"/proc/self/fd/{shared._requests}")
    launchers = living("launcher.py")
    family = {process.pid for process in launchers if pipe in _files(process.pid)}
    while new := {p.pid for p in launchers if p.parent in family} - family:
        family |= new
    return family


def _files(pid: int) -> set[str]:
    found = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # it has ended
        for fd in os.listdir(folder):
            with contextlib.suppress(OSError):  # it has closed that one
                found.add(os.readlink(f"{folder}/{fd}"))
    return found


def resident_peak_mb(pid: int) -> float:
    """The most memory that the process has had resident so far; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status") as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return 0.0


def _look(name: str) -> Left | None:
    if not name.isdigit():
        return None
    try:
        with open(f"/proc/{name}/stat", "rb") as f:
            state, parent = f.read().rpartition(b")")[2].split()[:2]
        with open(f"/proc/{name}/cmdline", "rb") as f:
            words = f.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    return Left(int(name), int(parent), state.decode(), words)
