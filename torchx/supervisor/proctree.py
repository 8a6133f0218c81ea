"""Finds the processes of a job, and signals them without ever hitting others.

Reads ``/proc``. On systems without it (macOS), only process groups are known.
"""

from __future__ import annotations

import os
from contextlib import suppress

from torchx.supervisor.statefile import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ENV_JOB = "TORCHX_LOCAL_JOB"
"""Environment variable of every process of a local job: the job's folder, whose name is never reused."""

ENV_REPLICA = "TORCHX_LOCAL_REPLICA"
"""Environment variable of every process of a replica: its index in the job."""

HAS_PROC = os.path.exists("/proc/self/stat")

_PR_SET_CHILD_SUBREAPER = 36


class Process:
    """One process at the time of a :func:`snapshot`. The pair of ``pid`` and ``ticks`` is unique."""

    def __init__(self, pid: int, state: str, ppid: int, session: int, ticks: int, *, group: int = 0) -> None:
        self.pid = pid
        self.state = state
        self.ppid = ppid
        self.session = session
        self.ticks = ticks
        self.group = group


def become_subreaper() -> None:
    """Make this process the parent of orphans among its descendants, if the system can do that.

    ``fork`` does not inherit this.
    """
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leave_caller(first: int) -> None:
    """Become a daemon: no terminal, session or open file of the caller, and signals that a shell sends are ignored.

    Args:
        first: file descriptors from this number on are closed. Those below stay open, except the standard ones.
    """
    import signal  # not at the head: `status` imports this module

    if os.fork():
        os._exit(0)
    os.setsid()
    # An inherited write end of a pipe of the caller would block its reader.
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    with suppress(ImportError):
        import resource  # noqa: F401  # before forking, for `set_mark`


def boot_id() -> str:
    """Return an id that changes with each boot of the machine; empty if unknown.

    Read once: no process survives a boot.
    """
    global _boot_id
    if not _boot_id:
        with suppress(OSError):
            _boot_id = read_bytes("/proc/sys/kernel/random/boot_id").decode().strip()
    return _boot_id


_boot_id = ""


def pid_namespace() -> str:
    """Return an id of this process's pid namespace, within which pids can be compared; empty if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Return the start time of a process in kernel ticks since boot; 0 if it is gone or not visible.

    A zombie counts as gone, since it may remain forever if process 1 does not reap, as in many containers.
    """
    process = read_process(pid)
    return process.ticks if process and process.state not in "ZX" else 0


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped, for example by SIGSTOP."""
    process = read_process(pid)
    return process is not None and process.state in "Tt"


def snapshot() -> dict[int, Process]:
    """All visible processes, by pid."""
    found = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    for name in names:
        if name.isdigit():
            process = read_process(int(name))
            if process:
                found[process.pid] = process
    return found


def descendants(processes: dict[int, Process], roots: set[int]) -> list[Process]:
    """Return the processes at or below ``roots``: the roots, then the others, parents before children."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process)
    found = [processes[pid] for pid in roots if pid in processes]
    seen = set(roots)
    for process in found:  # grows while it is walked
        for child in children.get(process.pid, ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
    return found


def children_of_self() -> set[int]:
    """Pids of this process's children, including zombies; empty if unknown."""
    with suppress(OSError):
        return {int(pid) for pid in read_bytes(f"/proc/self/task/{os.getpid()}/children").split()}
    me = os.getpid()
    return {p.pid for p in snapshot().values() if p.ppid == me}


def environment(pid: int) -> dict[str, str]:
    """Return the initial environment of a process; empty if it is not readable."""
    try:
        data = read_bytes(f"/proc/{pid}/environ")
    except OSError:
        return {}
    entries = (entry.partition(b"=") for entry in data.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in entries}


def set_mark() -> str:
    """Set a mark, unique to the job, that this process and its future children inherit; empty if that fails.

    The mark is the soft limit of file locks, RLIMIT_LOCKS, which Linux stores but has ignored since 2.4. Unlike the
    environment, it survives in a daemon that forks twice and clears its environment.
    """
    if not HAS_PROC:
        return ""
    try:
        import resource

        mark = int.from_bytes(os.urandom(7), "big") | 1 << 55  # a value that no user would set
        resource.setrlimit(RLIMIT_LOCKS, (mark, resource.getrlimit(RLIMIT_LOCKS)[1]))
    except (ImportError, OSError, ValueError):
        return ""
    return str(mark)


RLIMIT_LOCKS = 10
"""Not defined by Python's `resource`."""


def has_mark(pid: int, mark: str) -> bool:
    """Whether the process inherited this mark of :func:`set_mark`."""
    try:
        limits = read_bytes(f"/proc/{pid}/limits") if mark else b""
    except OSError:
        return False
    _, _, locks = limits.partition(b"Max file locks")
    return locks.split()[:1] == [mark.encode()] if mark else False


def marked(job: str, mark: str = "") -> list[Process]:
    """All processes that belong to the job by their environment or, if it is given, their mark."""
    alive = (p for p in snapshot().values() if p.state not in "ZX")
    return [p for p in alive if environment(p.pid).get(ENV_JOB) == job or has_mark(p.pid, mark)]


def spawn(exe: str | bytes, argv: list[Any], env: Mapping[Any, str | bytes], **options: Any) -> int:
    """``os.posix_spawn`` in a new session, or in a new process group if this Python cannot create sessions.

    uv's Pythons cannot, for example: they are built for C libraries without ``POSIX_SPAWN_SETSID`` (glibc before 2.26).
    """
    try:
        return os.posix_spawn(exe, argv, env, setsid=True, **options)
    except NotImplementedError:
        return os.posix_spawn(exe, argv, env, setpgroup=0, **options)


def send(process: Process, number: int) -> None:
    """Signal exactly this process, never another one that reuses its pid. Does nothing if it is gone."""
    import signal  # not at the head: `status` imports this module

    with suppress(OSError):  # gone, or a kernel without pidfd and a pid that vanished between the two calls
        if not hasattr(os, "pidfd_open"):
            if _is_still(process):
                os.kill(process.pid, number)
            return
        fd = os.pidfd_open(process.pid)
        try:
            # The descriptor refers to one process, so the process that is checked is the one that is signalled.
            if _is_still(process):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def _is_still(process: Process) -> bool:
    """Whether its pid is still that of this process, dead or alive.

    A process whose main thread has ended looks like a zombie, while its other threads run.
    """
    found = read_process(process.pid)
    return found is not None and found.ticks == process.ticks


def send_all(processes: list[Process], number: int) -> None:
    """:func:`send` to each process; stopped ones are continued, so that they can handle the signal."""
    import signal

    for process in processes:
        send(process, number)
        if process.state == "T" and number != signal.SIGKILL:
            send(process, signal.SIGCONT)


def read_process(pid: int) -> Process | None:
    try:
        data = read_bytes(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name, in parentheses, may itself contain blanks and parentheses.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]), group=int(fields[2]))


def signal_group(pid: int, number: int) -> None:
    """Signals a process group, if it still exists."""
    with suppress(OSError):
        os.killpg(pid, number)
