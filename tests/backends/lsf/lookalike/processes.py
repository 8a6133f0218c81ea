"""Processes of jobs: started in a session of their own, measured and signalled as a whole, descendants included."""

from __future__ import annotations

import os
import signal
import subprocess


def start(argv: list[str], *, env: dict[str, str], cwd: str, stdout: str, stderr: str) -> int:
    """Starts a job's first process; returns its pid, which is its session too."""
    with open(stdout, "ab") as out, open(stderr, "ab") as err, open(os.devnull) as nothing:
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=nothing, stdout=out, stderr=err, start_new_session=True
        )
    process.returncode = 0  # the daemon reaps it itself
    return process.pid


def family(leader: int) -> list[int]:
    """The living processes of a session, and the descendants of any of them."""
    parents: dict[int, int] = {}
    members = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] in (b"Z", b"X"):
            continue
        parents[int(name)] = int(fields[1])
        if int(fields[3]) == leader:
            members.add(int(name))
    grown = True
    while grown:
        new = {pid for pid, parent in parents.items() if parent in members or parent == leader} - members
        members |= new
        grown = bool(new)
    return sorted(members)


def memory_mb(leader: int) -> float:
    """Resident memory of a job, MB: private pages once for each process, shared ones for the first."""
    total = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for i, pid in enumerate(family(leader)):
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                _, resident, shared, *_ = map(int, file.read().split())
        except (OSError, ValueError):
            continue
        total += resident if i == 0 else resident - shared
    return total * page / (1 << 20)


def cpu_s(leader: int) -> float:
    """Processor time of a job's processes that have not ended, and of those that these have waited for."""
    total = 0
    for pid in family(leader):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                total += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
        except (OSError, ValueError):
            continue
    return total / os.sysconf("SC_CLK_TCK")


def send(leader: int, number: int) -> bool:
    """Signals all of a job's processes; False when there are none."""
    sent = False
    for pid in family(leader):
        try:
            os.kill(pid, number)
            if number == signal.SIGTERM:
                os.kill(pid, signal.SIGCONT)
            sent = True
        except ProcessLookupError:
            continue
    return sent


def reap() -> list[tuple[int, int]]:
    """Ended children: pid and exit code as LSF counts it, 128 more than the signal for one that was killed."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended.append((pid, code if code >= 0 else 128 - code))
