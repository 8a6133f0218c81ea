"""Ends a job whose supervisor was killed and records its final state."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from torchx.supervisor import proctree
from torchx.supervisor.follow import Follower
from torchx.supervisor.layout import CRASH_FILE, STATE_FILE, private, replica_folder
from torchx.supervisor.statefile import (
    CANCELLED,
    FAILED,
    LOST,
    PENDING,
    RUNNING,
    SUCCEEDED,
    TERMINAL,
    JobState,
    ReplicaLine,
    StateFileError,
    StateWriter,
    parse_state,
    read_bytes,
)

_NAMED = 3  # how many lost replicas the message names
_GIVE_UP_S = 5.0  # a process in uninterruptible sleep does not even die of SIGKILL
_LEAST_KILLS = 50  # in addition to the time, in case this process itself was stopped meanwhile
# A process shows no environment, and so no mark, during exec: in 7 of 1,000 snapshots right after a start.
_QUIET_LOOKS = 2


def end_job(
    folder: str,
    reason: str,
    code_of: Callable[[int], int | None] = lambda _: None,
    left: Callable[[], set[int]] = set,
) -> bool:
    """End all processes of a job without supervisor and record it as FAILED. Returns whether it is recorded as ended.

    Several processes may call this concurrently; a lock serializes them. Does nothing if the job has ended properly.
    Kills only processes that certainly belong to the job: on the same boot of the same machine, those with its
    inherited marks, and leaders of process groups whose pid and start time are the recorded ones. A replica that
    disappeared without a known exit code is lost, not failed.

    Args:
        reason: of the failure; the part after a semicolon is dropped if a replica is lost.
        code_of: returns the exit code of a replica by its pid, if the caller knows it; ``-n`` for signal n.
        left: returns the pids of processes that belong to the job because the caller inherited them.
    """
    path = os.path.join(folder, STATE_FILE)
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with suppress(OSError):  # without locks in the file system, several processes write the same data
            fcntl.flock(lock, fcntl.LOCK_EX)
        return _end_job(folder, path, reason, code_of, left)
    except (OSError, StateFileError):
        return False
    finally:
        os.close(lock)


def _end_job(
    folder: str, path: str, reason: str, code_of: Callable[[int], int | None], left: Callable[[], set[int]]
) -> bool:
    data = read_bytes(path)
    job = parse_state(data)
    if job.state in TERMINAL:
        return True
    running = [r for r in job.replicas if r.state == RUNNING and r.ticks]
    if job.facts.get("boot") == proctree.boot_id() and job.facts.get("pidns") == proctree.pid_namespace():
        killed = end_processes(folder, {(r.pid, r.ticks) for r in running}, job.facts.get("mark", ""), left)
    else:
        killed = {r.pid for r in running}  # by the reboot, or not visible from here
    now = time.time()
    writer = StateWriter(path, job, header=int(data.split(b" ", 3)[2]))
    try:
        for index, (replica, position) in enumerate(zip(job.replicas, job.positions(), strict=True)):
            if replica.state in (PENDING, RUNNING):
                _settle(replica, code_of(replica.pid), killed)
                replica.ended = now
                writer.replica_changed(index)
            _complete_logs(job.facts.get("logs", folder), position, now)
        job.state, job.msg = _outcome(job, reason)
        job.ended = now
        writer.header_changed()
        writer.flush()
    finally:
        writer.close()
    return True


def _settle(replica: ReplicaLine, code: int | None, killed: set[int]) -> None:
    if replica.state == RUNNING and code is not None and code != -signal.SIGKILL:  # SIGKILL came from us
        replica.exit = code
        replica.state = SUCCEEDED if code == 0 else FAILED
    elif replica.state == RUNNING and replica.ticks and code is None and replica.pid not in killed:
        replica.state = LOST
    else:
        replica.state = CANCELLED


def _outcome(job: JobState, reason: str) -> tuple[str, str]:
    if all(replica.state == SUCCEEDED for replica in job.replicas):
        return SUCCEEDED, ""  # only the supervisor's last write was missing
    lost = [where for replica, where in zip(job.replicas, job.positions(), strict=True) if replica.state == LOST]
    if not lost:
        return FAILED, reason
    names = ", ".join(f"{role}/{k}" for role, k in lost[:_NAMED]) + (", ..." if len(lost) > _NAMED else "")
    return FAILED, f"{reason.partition(';')[0]}; it is not known how {names} ended"


def leave_note(folder: str, error: BaseException) -> None:
    """Append the traceback of a crash of the supervisor to a file in the job's folder."""
    import traceback

    with open(os.path.join(folder, CRASH_FILE), "a", encoding="utf-8", errors="replace", opener=private) as f:
        traceback.print_exception(type(error), error, error.__traceback__, file=f)


def end_processes(
    folder: str, recorded: set[tuple[int, int]], mark: str, left: Callable[[], set[int]] = set
) -> set[int]:
    """Kill all processes of a job. Returns which of the recorded pids were among them."""
    deadline = time.monotonic() + _GIVE_UP_S
    kills = quiet = 0
    killed: set[int] = set()
    while kills < _LEAST_KILLS or time.monotonic() < deadline:
        kills += 1
        processes = proctree.snapshot()
        leaders = {p.pid: p for p in processes.values() if p.group == p.pid and p.state not in "ZX"}
        ours = {pid: p for pid, p in leaders.items() if (pid, p.ticks) in recorded}
        ours.update((p.pid, p) for p in proctree.marked(folder, mark))
        ours.update((pid, processes[pid]) for pid in left() & processes.keys() if processes[pid].state not in "ZX")
        quiet = 0 if ours else quiet + 1
        if quiet == _QUIET_LOOKS:
            break
        family = {p.pid: p for p in proctree.descendants(processes, set(ours))} | ours
        killed.update(pid for pid, ticks in recorded if pid in family and family[pid].ticks == ticks)
        for process in family.values():  # first, so that none sees another one end and then exits by itself
            proctree.send(process, signal.SIGSTOP)
        proctree.send_all(list(family.values()), signal.SIGKILL)
        time.sleep(0.005)
    return killed


def _complete_logs(logs: str, position: tuple[str, int], now: float) -> None:
    """Copy to combined.log what the replica wrote after its supervisor's last poll."""
    role, k = position
    folder = replica_folder(logs, role, k)
    if os.path.isdir(folder):
        with suppress(OSError):  # for example a full disk; the replica's own files are complete
            Follower.resumed(folder, now).look(now, last=True)
