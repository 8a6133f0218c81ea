"""Which processes belong to a job, and how they are ended without ever touching another's.

Everything is read from ``/proc``; where there is none (macOS) only process groups are known.
"""

from __future__ import annotations

import os

from torchx.supervisor.statefile import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENV_JOB = "TORCHX_LOCAL_JOB"
"""In the environment of every process of a local job: the job's folder, a name that never comes again."""

ENV_REPLICA = "TORCHX_LOCAL_REPLICA"
"""In the environment of every process of a replica: its index in the job."""

HAS_PROC = os.path.exists("/proc/self/stat")

_PR_SET_CHILD_SUBREAPER = 36


class Process:
    """One process at the moment of a :func:`snapshot`; ``pid`` and ``ticks`` together never come again."""

    def __init__(self, pid: int, state: str, ppid: int, session: int, ticks: int, *, group: int = 0) -> None:
        self.pid = pid
        self.state = state
        self.ppid = ppid
        self.session = session
        self.ticks = ticks
        self.group = group


def become_subreaper() -> bool:
    """Make orphans among this process's descendants its children; False where the system cannot do that.

    Not inherited by ``fork``: each process that wants it calls this.
    """
    if _prctl is None:
        return False
    return bool(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def leave_caller(first: int) -> None:
    """Go on as a child of nobody: no terminal, no session, no file of the caller's, no signal that a shell sends.

    Args:
        first: files from this number on are closed; those before it, but for the standard ones, stay open.
    """
    import signal  # `status`, too, imports this module

    if os.fork():
        os._exit(0)
    os.setsid()
    # Whatever else the caller let us inherit: holding the write end of its pipe would keep a reader waiting.
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    load_prctl()
    become_subreaper()


def load_prctl() -> None:
    """Find ``prctl`` once, before forking: ``ctypes`` takes some milliseconds to import, ``resource`` one."""
    global _prctl
    if not HAS_PROC:
        return
    try:
        import ctypes
        import resource  # noqa: F401  # for `set_mark`

        _prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        _prctl = None


_prctl: Any = None


def boot_id() -> str:
    """Changes with each start of the machine; empty where the system does not tell."""
    global _boot_id
    if not _boot_id:  # asked at each look at a job: a process does not outlive the machine's start
        try:
            _boot_id = read_bytes("/proc/sys/kernel/random/boot_id").decode().strip()
        except OSError:
            return ""
    return _boot_id


_boot_id = ""


def pid_namespace() -> str:
    """Pids can be compared only within one of these; empty where the system does not tell."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """When the process started, in the kernel's ticks since boot; 0 when it is gone or not visible.

    A zombie is gone: where process 1 reaps nothing, as in many containers, it stays for good.
    """
    process = read_process(pid)
    return process.ticks if process and process.state not in "ZX" else 0


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped, as SIGSTOP does, and does nothing until it is told to go on."""
    process = read_process(pid)
    return process is not None and process.state in "Tt"


def snapshot() -> dict[int, Process]:
    """All processes that are visible now, by pid."""
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
    """The processes at or below ``roots``, parents before children."""
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


def children_of_self() -> set[int] | None:
    """Pids of this process's children, dead ones not yet waited for included; None when the system cannot tell."""
    try:
        return {int(pid) for pid in read_bytes(f"/proc/self/task/{os.getpid()}/children").split()}
    except OSError:
        pass
    if not HAS_PROC:
        return None
    me = os.getpid()
    return {p.pid for p in snapshot().values() if p.ppid == me}


def environment(pid: int, name: str) -> str | None:
    """A variable as the process was started with it; None when it is unset or may not be read."""
    try:
        data = read_bytes(f"/proc/{pid}/environ")
    except OSError:
        return None
    key = name.encode() + b"="
    for entry in data.split(b"\0"):
        if entry.startswith(key):
            return entry[len(key) :].decode("utf-8", "surrogateescape")
    return None


def set_mark() -> str:
    """Give this process, and all that it starts from now on, a mark that no other job has; empty where that fails.

    It is the limit of file locks, RLIMIT_LOCKS, which Linux has kept and not looked at since 2.4. Unlike the
    environment it stays with a daemon that forks twice and clears everything: without a parent, a cgroup or a right to
    anything the kernel still says whose it is.
    """
    if not HAS_PROC:
        return ""
    try:
        import resource

        mark = int.from_bytes(os.urandom(7), "big") | 1 << 55  # not what anybody sets
        resource.setrlimit(_RLIMIT_LOCKS, (mark, resource.getrlimit(_RLIMIT_LOCKS)[1]))
    except (ImportError, OSError, ValueError):
        return ""
    return str(mark)


_RLIMIT_LOCKS = 10


def has_mark(pid: int, mark: str) -> bool:
    """Whether the process was started, at whatever distance, by the one that :func:`set_mark` gave the mark to."""
    try:
        limits = read_bytes(f"/proc/{pid}/limits") if mark else b""
    except OSError:
        return False
    _, _, locks = limits.partition(b"Max file locks")
    return locks.split()[:1] == [mark.encode()] if mark else False


def marked(job: str, mark: str = "") -> list[Process]:
    """All processes that belong to the job by what they inherited, whoever their parent is now.

    Args:
        mark: of :func:`set_mark`; or else their environment says so.
    """
    alive = (p for p in snapshot().values() if p.state not in "ZX")
    return [p for p in alive if environment(p.pid, ENV_JOB) == job or has_mark(p.pid, mark)]


def send(process: Process, number: int) -> None:
    """Signal exactly this process: never another that got its pid meanwhile. Quiet when it is gone."""
    import signal  # `status`, too, imports this module

    try:
        if not hasattr(os, "pidfd_open"):
            if start_ticks(process.pid) == process.ticks:
                os.kill(process.pid, number)
            return
        fd = os.pidfd_open(process.pid)
        try:
            # The descriptor holds on to one process: what is checked now is what is signalled.
            if start_ticks(process.pid) == process.ticks:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)
    except OSError:
        pass  # gone, or a kernel without pidfd and a pid that vanished between the two calls


def send_all(processes: list[Process], number: int) -> None:
    """:func:`send` to each; one that was stopped is woken, so that it can act on the signal."""
    import signal

    for process in processes:
        if process.state not in "ZX":
            send(process, number)
            if process.state == "T" and number != signal.SIGKILL:
                send(process, signal.SIGCONT)


def read_process(pid: int) -> Process | None:
    try:
        data = read_bytes(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name, in parentheses, may itself hold blanks and parentheses.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]), group=int(fields[2]))


def signal_group(pid: int, number: int) -> None:
    """Signals a process group, if it is still there."""
    try:  # noqa: SIM105  # contextlib costs more at start-up than it saves
        os.killpg(pid, number)
    except OSError:
        pass
