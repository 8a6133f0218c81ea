"""Ends a job whose supervisor was killed, and writes down what became of it."""
# ruff: noqa: SIM105  # contextlib costs more at start-up than it saves

from __future__ import annotations

import fcntl
import os
import signal
import time

from torchx.supervisor import proctree
from torchx.supervisor.follow import Follower
from torchx.supervisor.layout import STATE_FILE, replica_folder
from torchx.supervisor.statefile import (
    CANCELLED,
    FAILED,
    PENDING,
    RUNNING,
    TERMINAL,
    StateFileError,
    StateWriter,
    parse_state,
    read_bytes,
)

_GIVE_UP_S = 5.0  # a process in an uninterruptible wait does not even die of SIGKILL
_LEAST_KILLS = 50  # by the clock alone whoever was stopped meanwhile would leave what it had not seen yet


def end_job(folder: str, reason: str) -> bool:
    """End all processes of a job without a supervisor and write FAILED, with the reason, into its state.

    Any number of processes may call this at once: a lock lets one do the work. Nothing is touched when the job has
    ended properly. Processes are ended only where it is certain that they are the job's: on the same boot of the same
    machine, by the mark in their environment, or by a pid whose start time is the recorded one.

    Returns:
        True when the state says that the job is over.
    """
    path = os.path.join(folder, STATE_FILE)
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: twice the same is written
        return _end_job(folder, path, reason)
    except (OSError, StateFileError):
        return False
    finally:
        os.close(lock)


def _end_job(folder: str, path: str, reason: str) -> bool:
    data = read_bytes(path)
    job = parse_state(data)
    if job.state in TERMINAL:
        return True
    if job.facts.get("boot") == proctree.boot_id() and job.facts.get("pidns") == proctree.pid_namespace():
        _end_processes(folder, {(r.pid, r.ticks) for r in job.replicas if r.state == RUNNING and r.ticks})
    now = time.time()
    writer = StateWriter(path, job, header=int(data.split(b" ", 3)[2]))
    try:
        for index, replica in enumerate(job.replicas):
            if replica.state in (PENDING, RUNNING):
                replica.state = CANCELLED
                replica.ended = now
                writer.replica_changed(index)
            _complete_logs(job.facts.get("logs", folder), job.position(index), now)
        job.state = FAILED
        job.ended = now
        job.msg = reason
        writer.header_changed()
        writer.flush()
    finally:
        writer.close()
    return True


def _end_processes(folder: str, recorded: set[tuple[int, int]]) -> None:
    deadline = time.monotonic() + _GIVE_UP_S
    kills = 0
    while kills < _LEAST_KILLS or time.monotonic() < deadline:
        kills += 1
        processes = proctree.snapshot()
        ours = {p.pid: p for p in processes.values() if (p.pid, p.ticks) in recorded and p.state not in "ZX"}
        ours.update((p.pid, p) for p in proctree.marked(folder))
        if not ours:
            return
        family = {p.pid: p for p in proctree.descendants(processes, set(ours))}
        proctree.send_all(list((ours | family).values()), signal.SIGKILL)
        time.sleep(0.005)


def _complete_logs(logs: str, position: tuple[str, int], now: float) -> None:
    """What the replica wrote after its supervisor last looked goes into combined.log, too."""
    role, k = position
    folder = replica_folder(logs, role, k)
    if os.path.isdir(folder):
        try:
            Follower.resumed(folder, now).look(now, last=True)
        except OSError:
            pass  # a full disk; the replica's own files have it all
