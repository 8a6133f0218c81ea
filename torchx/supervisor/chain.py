"""Continues a local job with a total time after its supervisor was killed, by a new supervisor in the same folder.

The request of such a job is kept in its folder, without variables that look like credentials; these come from the
process that continues. Whoever holds a lock on that file continues the job: after its processes have been killed, and
the attempt is on record, once.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from torchx.supervisor import at_end, orphans, proctree
from torchx.supervisor.layout import CHAIN_FILE, CONTROL_FIFO, STATE_FILE, private
from torchx.supervisor.statefile import (
    CANCELLED,
    LOST,
    PENDING,
    RUNNING,
    TERMINAL,
    JobState,
    StateFileError,
    StateWriter,
    has_supervisor,
    parse_state,
    read_bytes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torchx.supervisor.layout import JobRequest


def keep(request: JobRequest, hidden: Collection[str]) -> None:
    """Write the request of a job to its folder. ``hidden``: names of variables that must not be on disk."""
    import json

    shown = {name: value for name, value in request["env"].items() if name not in hidden}
    kept = {**request, "env": shown}
    away = sorted(request["env"].keys() & set(hidden))
    with open(os.path.join(request["job"], CHAIN_FILE), "w", encoding="utf-8", opener=private) as f:
        json.dump({"hidden": away, "request": kept}, f)


def is_chain(folder: str) -> bool:
    """Whether the job can be continued after its supervisor was killed."""
    return os.path.exists(os.path.join(folder, CHAIN_FILE))


def go_on(folder: str, left: Callable[[], set[int]] = set, *, is_guardian: bool = False) -> bool:
    """Start the next piece of a job without supervisor. Returns whether the job goes on; if not, it has to be ended.

    Args:
        left: see :func:`torchx.supervisor.orphans.end_job`.
        is_guardian: leave a job with credentials to the next reader, after its processes have been killed.
    """
    try:
        lock = os.open(os.path.join(folder, CHAIN_FILE), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return has_supervisor(folder) or _go_on(folder, left, is_guardian)
    except (OSError, ValueError, KeyError, StateFileError):
        return False
    finally:
        os.close(lock)


def _go_on(folder: str, left: Callable[[], set[int]], is_guardian: bool) -> bool:
    import json

    from torchx.supervisor.client import LauncherClient, LauncherError

    path = os.path.join(folder, STATE_FILE)
    data = read_bytes(path)
    job = parse_state(data)
    kept = json.loads(read_bytes(os.path.join(folder, CHAIN_FILE)))
    request: JobRequest = kept["request"]
    if job.state in TERMINAL:
        return False
    away = any(name not in os.environ for name in kept["hidden"])
    if job.facts.get("boot") == proctree.boot_id():
        mark = job.facts.get("mark", "")
        running = {(r.pid, r.ticks) for r in job.replicas if r.state == RUNNING and r.ticks}
        orphans.end_processes(folder, running, mark, left)
        if any(True for _ in proctree.marked(folder, mark)):
            return False  # a process that cannot be killed: two pieces at once are worse than none
    if away:
        return is_guardian  # the next command of the user has these variables
    _settle(path, job, header=int(data.split(b" ", 3)[2]))
    request["env"].update({name: os.environ[name] for name in kept["hidden"]})
    if not at_end.may_start_again(request["again"], request["env"]):
        return False
    request["facts"].update(boot=proctree.boot_id(), pidns=proctree.pid_namespace())
    request["resumes"] = (max(line.attempt for line in job.replicas) + 1, job.created)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, CONTROL_FIFO))
    client = LauncherClient()
    try:
        client.submit(request)
    except LauncherError:
        return False
    finally:
        client.close()
    return True


def _settle(path: str, job: JobState, header: int) -> None:
    """Record what the program that decides on another attempt has to know: no replica runs."""
    job.kind, job.msg = "lost", "the supervisor of the job was killed"
    writer = StateWriter(path, job, header=header)
    for index, line in enumerate(job.replicas):
        if line.state in (PENDING, RUNNING):
            line.state = LOST if line.state == RUNNING else CANCELLED
            line.ended = time.time()
            writer.replica_changed(index)
    writer.flush()
    writer.close()
