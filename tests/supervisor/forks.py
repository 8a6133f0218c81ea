"""Code of supervisors, in forks of the test: as in real life it may wait for any child and handle signals."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torchx.supervisor import proctree
from torchx.supervisor.layout import STATE_FILE
from torchx.supervisor.statefile import JobState, read_state
from torchx.supervisor.supervise import Supervisor

GUARDIAN = (4711, 99)
PATIENCE_S = 60.0  # for what happens at once on a machine that has nothing else to do


class Fork:
    """A process that does ``work``, in a session of its own; killed with all below it when the test leaves it."""

    def __init__(self, work: Callable[[], int | None]) -> None:
        sys.stdout.flush()
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code: int | None = 99
        me = os.getpid()  # what it forks comes by here as well, and its children are its own business
        try:
            os.setsid()
            proctree.become_subreaper()
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            if os.getpid() == me:
                _kill_below(me)
            os._exit(code or 0)

    def end(self) -> int:
        """Its exit code, when it ends by itself."""
        if self.code is None:
            fd = os.pidfd_open(self.pid)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(PATIENCE_S * 1000), "it does not end"
            os.close(fd)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self) -> None:
        if self.code is not None:
            return
        os.kill(self.pid, signal.SIGSTOP)  # it starts nothing more, and inherits what is left of its children
        _kill_below(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.code = -9


def _kill_below(pid: int) -> None:
    """Kills all below a process that is a subreaper: again until none is left, as one may just fork another."""
    deadline = time.monotonic() + PATIENCE_S
    while below := [p for p in proctree.descendants(proctree.snapshot(), {pid})[1:] if p.state not in "ZX"]:
        assert time.monotonic() < deadline, f"cannot be killed: {below}"
        proctree.send_all(below, signal.SIGKILL)
        time.sleep(0.005)


@contextmanager
def forked(work: Callable[[], int | None]) -> Iterator[Fork]:
    fork = Fork(work)
    try:
        yield fork
    finally:
        fork.kill()


def in_fork(work: Callable[[], Any]) -> None:
    """Do it in a fork; an assertion that fails there fails here."""

    def quietly() -> None:
        work()

    with forked(quietly) as fork:
        assert fork.end() == 0, "see the traceback in what was captured"


def eventually(condition: Callable[[], Any]) -> Any:
    """What ``condition`` returns once it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came true"
        os.sched_yield()
        select.select([], [], [], 0.001)
    return value


def text(path: object) -> str:
    with open(str(path), encoding="utf-8") as f:
        return f.read()


def request(folder: Any, *roles: dict[str, Any], grace_s: float = 30.0, env: dict[str, str] | None = None) -> Any:
    """A job as :class:`Supervisor` takes it; ``role()`` makes the roles."""
    os.makedirs(folder, exist_ok=True)
    for role in roles:
        for k, replica in enumerate(role["replicas"]):
            replica["folder"] = f"{folder}/{role['name']}/{k}"
            replica["stdout"] = f"{replica['folder']}/stdout.log"
            replica["stderr"] = f"{replica['folder']}/stderr.log"
            replica["cwd"] = replica["cwd"] or str(folder)
    return {
        "job": str(folder),
        "facts": {"app_id": "a-1", "logs": str(folder), "boot": proctree.boot_id(), "pidns": proctree.pid_namespace()},
        "env": {"PATH": os.environ["PATH"], **(env or {})},
        "grace_s": grace_s,
        "roles": list(roles),
    }


def for_job(folder: object) -> Any:
    """A request of which only the folder counts."""
    return {"job": str(folder)}


def role(
    *scripts: str, name: str = "r", retries: int = 0, policy: str = "APPLICATION", least: int | None = None
) -> Any:
    """A role, each replica of which runs a script of the shell."""
    replicas = [{"argv": ["sh", "-c", s], "exe": "/bin/sh", "env": {}, "cwd": ""} for s in scripts]
    return {"name": name, "max_retries": retries, "policy": policy, "min_replicas": least, "replicas": replicas}


def state(folder: Any) -> JobState:
    return read_state(os.path.join(folder, STATE_FILE))


class Clock:
    """Stands for the module ``time`` where the time is what a test says; a wait takes no time but the clock's."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.stepped = 0.0  # by how much somebody has set the clock of the wall

    def time(self) -> float:
        return self.now + self.stepped

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Gate:
    """A FIFO at which scripts wait: ``gate.wait`` is the shell's command for it; several may wait, each one time."""

    def __init__(self, path: Any) -> None:
        self.path = str(path)
        os.mkfifo(self.path)
        # Read and write, so that neither side waits for the other to open it.
        self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self.wait = f"read -r _ < '{self.path}'"
        self.pass_on = f"echo x > '{self.path}'"

    def open(self, times: int = 1) -> None:
        os.write(self.fd, b"x\n" * times)

    def reached(self) -> None:
        """Wait until a script has run :attr:`pass_on`."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        assert poll.poll(PATIENCE_S * 1000), "nobody came"
        os.read(self.fd, 2)

    def is_empty(self) -> bool:
        return not select.select([self.fd], [], [], 0)[0]

    def close(self) -> None:
        os.close(self.fd)


def started(job: str, *roles: dict, grace_s: float = 30.0) -> Supervisor:
    """A supervisor whose replicas run; to be called in a fork."""
    supervisor = Supervisor(request(job, *roles, grace_s=grace_s), GUARDIAN)
    while supervisor._starts.now:
        supervisor._start_pending()
    supervisor.writer.flush()
    return supervisor


def until_dead(pid: int) -> None:
    """Wait until a process has ended, whether or not its parent knows."""
    eventually(lambda: not proctree.start_ticks(pid))
