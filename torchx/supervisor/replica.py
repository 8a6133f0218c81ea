"""One replica of a local job, and the start of its process."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from torchx.supervisor import proctree
from torchx.supervisor.layout import ERROR_FILE, METRICS_FILE, make_folder
from torchx.supervisor.metrics import Root
from torchx.supervisor.statefile import ReplicaLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from torchx.supervisor.follow import Follower
    from torchx.supervisor.layout import ReplicaRequest
DEFAULT_SIGNALS = (  # signals that this process handles or ignores, to be reset in replicas and tasks
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGTERM, signal.SIGCHLD, signal.SIGXFSZ),
)


class Ending:
    """Ends processes: once SIGTERM, which spares what its handlers start to save the work, then SIGKILL to all.

    Attributes:
        deadline: when the remaining processes get SIGKILL.
        kills: how many times they got it.
        first: all processes of the machine when SIGTERM was sent.
    """

    deadline = 0.0
    kills = 0
    first: dict[int, proctree.Process] | None = None

    def send(self, found: dict[int, proctree.Process], roots: set[int], now: float, termed: set[Any]) -> None:
        """Signal those at or below ``roots`` for which it is time; ``termed`` are those that have got SIGTERM."""
        family = proctree.descendants(found, roots)
        if now >= self.deadline:
            proctree.send_all(family, signal.SIGKILL)
            self.kills += 1
            return
        first = self.first = self.first or found
        old = [p for p in family if p.pid in first and p.ticks == first[p.pid].ticks]
        proctree.send_all([p for p in old if (p.pid, p.ticks) not in termed], signal.SIGTERM)
        termed.update((p.pid, p.ticks) for p in old)


class Replica(Ending):
    """One replica and its processes.

    Attributes:
        stopping: the supervisor is ending it, so its end is not a failure.
        restart: identifies the group of replicas to be restarted together that it belongs to; None if it is not to be
            restarted.
    """

    def __init__(self, index: int, role: int, k: int, *, request: ReplicaRequest, line: ReplicaLine) -> None:
        self.index = index
        self.role = role
        self.k = k
        self.request = request
        self.line = line
        self.stopping = False
        self.restart: object = None
        self.follower: Follower | None = None

    def root(self, env: dict[str, str]) -> Root:
        """Its data for the sampler; ``env`` is the environment of all replicas."""
        devices = {**env, **self.request["env"]}.get("CUDA_VISIBLE_DEVICES")
        path = f"{self.request['folder']}/{METRICS_FILE}"
        return Root(self.line.pid, self.line.started, self.line.attempt, path, devices)


def spawn(replica: Replica, job: str, env: dict[str, str]) -> int:
    """Start the replica's program in a new session and return the pid. Its own variables override ``env``."""
    request = replica.request
    make_folder(request["folder"], private=request["folder"].startswith(job))
    if replica.line.attempt:
        with suppress(OSError):
            os.unlink(os.path.join(request["folder"], ERROR_FILE))
    env = {**env, **request["env"], proctree.ENV_JOB: job, proctree.ENV_REPLICA: str(replica.index)}
    os.chdir(request["cwd"])  # posix_spawn has no option for it
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, request["stdout"], append, 0o644),
        (os.POSIX_SPAWN_OPEN, 2, request["stderr"], append, 0o644),
    ]
    argv = request["argv"]
    exe = request["exe"] or argv[0]
    try:
        return proctree.spawn(exe, argv, env, file_actions=files, setsigdef=DEFAULT_SIGNALS, setsigmask=())
    finally:
        os.chdir("/")  # or our own programs would load Python modules from there


def owner_of(
    process: proctree.Process | None, job: str, replicas: list[Replica], unclean: Iterable[Replica]
) -> Replica | None:
    """Return the replica that left a process behind; None if it is none of the job's. ``unclean``: those that may."""
    if process is None or process.state in "ZX":
        return None
    for replica in unclean:
        if replica.line.pid == process.session:
            return replica
    # It has a session of its own, so look at its environment.
    env = proctree.environment(process.pid)
    if env.get(proctree.ENV_JOB) != job:
        return None
    index = env.get(proctree.ENV_REPLICA, "")
    return replicas[int(index)] if index.isdigit() and int(index) < len(replicas) else None


def why_not_started(replica: Replica, error: OSError) -> str:
    """Write the reason why a replica could not be started to its stderr. Returns it if that failed, else empty."""
    reason = f"cannot start `{replica.request['argv'][0]}`: {error.strerror or error}"
    if error.errno == errno.ENOEXEC:
        reason += " (a script needs a first line like `#!/bin/sh`)"
    if error.filename and error.filename not in (replica.request["exe"], replica.request["argv"][0]):
        reason += f": `{error.filename}`"
    try:
        fd = os.open(replica.request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with open(fd, "a", encoding="utf-8", errors="surrogateescape") as f:
            f.write(f"torchx: {reason}\n")
    except OSError:
        return reason  # for example a full disk, on which the folder could not be created
    return ""
