"""One replica of a local job, and how its process is started."""

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
    from typing import Any

    from torchx.supervisor.follow import Follower
DEFAULT_SIGNALS = (  # what we, or Python, handle or ignore, and a replica or a task must not
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGTERM, signal.SIGCHLD, signal.SIGXFSZ),
)


class Replica:
    """One replica and its processes.

    Attributes:
        stopping: it is being ended by us; its end is not a failure.
        restart: the wave of restarts that it waits for; None when it does not.
        deadline: when what is left of it is ended with SIGKILL.
        kills: how often that was done since it was started.
    """

    def __init__(self, index: int, role: int, k: int, *, request: dict[str, Any], line: ReplicaLine) -> None:
        self.index = index
        self.role = role
        self.k = k
        self.request = request
        self.line = line
        self.stopping = False
        self.restart: object = None
        self.deadline = 0.0
        self.kills = 0
        self.follower: Follower | None = None

    def root(self, env: dict[str, str]) -> Root:
        """What the sampler needs to know of it, where ``env`` is that of all replicas."""
        devices = {**env, **self.request["env"]}.get("CUDA_VISIBLE_DEVICES")
        path = f"{self.request['folder']}/{METRICS_FILE}"
        return Root(self.line.pid, self.line.started, self.line.attempt, path, devices)


def spawn(replica: Replica, job: str, env: dict[str, str]) -> int:
    """Starts its program in a session of its own; returns the pid.

    Args:
        job: the job's folder.
        env: of all replicas; its own comes on top.

    Raises:
        OSError: it cannot be started.
    """
    request = replica.request
    make_folder(request["folder"], private=request["folder"].startswith(job))
    if replica.line.attempt:
        with suppress(OSError):
            os.unlink(os.path.join(request["folder"], ERROR_FILE))
    env = {**env, **request["env"], proctree.ENV_JOB: job, proctree.ENV_REPLICA: str(replica.index)}
    os.chdir(request["cwd"])  # posix_spawn has no cwd of its own; a failure keeps what it was
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, request["stdout"], append, 0o644),
        (os.POSIX_SPAWN_OPEN, 2, request["stderr"], append, 0o644),
    ]
    options: dict[str, Any] = {"file_actions": files, "setsigdef": DEFAULT_SIGNALS, "setsigmask": ()}
    try:
        return os.posix_spawn(request["exe"], request["argv"], env, setsid=True, **options)
    except NotImplementedError:  # a C library without it: a process group must do
        return os.posix_spawn(request["exe"], request["argv"], env, setpgroup=0, **options)


def why_not_started(replica: Replica, error: OSError) -> str:
    """The sentence for a replica that could not be started, which also goes to its stderr; empty once it is there."""
    reason = f"cannot start `{replica.request['argv'][0]}`: {error.strerror or error}"
    if error.errno == errno.ENOEXEC:
        reason += " (a script needs a first line like `#!/bin/sh`)"
    if error.filename and error.filename not in (replica.request["exe"], replica.request["argv"][0]):
        reason += f": `{error.filename}`"
    try:
        with open(replica.request["stderr"], "a", encoding="utf-8", errors="surrogateescape") as f:
            f.write(f"torchx: {reason}\n")
    except OSError:
        return reason  # the folder itself could not be made: a full disk
    return ""
