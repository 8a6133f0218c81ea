"""The guard of a sweep: starts its supervisor, and takes over if that is killed.

Runs as ``python -I -S task_guard.py FOLDER``, with the environment of the tasks as stdin; :mod:`task_client` starts it.
It is a child subreaper, so that the tasks of a killed supervisor become its children and continue. If the guard is
killed, too, the next reader of the sweep starts another one.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # Isolated mode sees only the standard library. This package comes last, so that it shadows none of its modules.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import fcntl
import marshal
import time

from torchx.supervisor import orphans, proctree
from torchx.supervisor.layout import CONTROL_FIFO, CRASH_FILE, STATE_FILE, TASKS_FILE, task_log
from torchx.supervisor.statefile import RUNNING, JobState, StateWriter, read_bytes, read_state
from torchx.supervisor.task_client import HELD, TAKEN
from torchx.supervisor.tasks import TaskSupervisor, read_tasks

_CRASHED = 70
_PATIENCE_S = 1.0  # for a new process to load the task's program, after which its environment is visible


def guard(folder: str, env: dict[str, str], control: int) -> None:
    """Supervise a sweep until it has ended."""
    ends: dict[int, int] = {}
    started = _claimed(folder, ends, fresh=True)
    supervisor = os.fork()
    if not supervisor:
        code = _CRASHED
        try:
            TaskSupervisor(folder, env, control=control, ends=ends, started=started).run()
            code = 0
        except BaseException as e:
            orphans.leave_note(folder, e)
        finally:
            os._exit(code)
    while supervisor not in ends:
        pid, status = os.waitpid(-1, 0)
        ends[pid] = os.waitstatus_to_exitcode(status)
    if not ends.pop(supervisor):
        return
    try:
        started = _claimed(folder, ends, fresh=False)
        TaskSupervisor(folder, env, control=control, ends=ends, started=started).run()
    except Exception as e:
        orphans.leave_note(folder, e)
        orphans.end_job(folder, f"the supervisor of the sweep crashed; see `{CRASH_FILE}` in `{folder}`", ends.get)


def _claimed(folder: str, ends: dict[int, int], *, fresh: bool) -> dict[int, int]:
    """Find the process of the task that was claimed, but whose pid is not recorded, if there is such a task.

    The supervisor is gone, so a process of that task is a child of this one that the state file does not name. Its
    environment identifies it once it runs the task's program. It creates the task's log before that. If there is a log
    but no process, the task was started and its exit code is unknown.

    Returns the index of the task -> pid, which is 0 if the exit code is unknown; empty if the task was not started.
    ``fresh``: the guard of that supervisor is gone, too, so its processes are not children of this one.
    """
    job = read_state(os.path.join(folder, STATE_FILE))
    k = next((k for k, line in enumerate(job.replicas) if line.state == RUNNING and not line.pid), None)
    if k is None:
        return {}
    named = {line.pid for line in job.replicas}
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        unknown = _strangers(folder) if fresh else {p: q for p, q in _children().items() if p not in named}
        in_doubt = False
        for pid, process in unknown.items():
            whose = proctree.environment(pid).get(proctree.ENV_REPLICA)
            if process.group == pid and (whose == str(k) or (process.state in "ZX" and not fresh)):
                return {k: pid}
            # It may not have set its process group or loaded the task's program yet: look again.
            in_doubt |= whose in (None, str(k)) and process.state not in "ZX"
        if not in_doubt or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    gone = [pid for pid in ends if pid not in named]
    if gone:
        return {k: gone[-1]}
    return {k: 0} if os.path.exists(task_log(job.facts["logs"], job.roles[0][0], k)) else {}


def _children() -> dict[int, proctree.Process]:
    """Return this process's children, by a snapshot: the kernel's list may miss one while another one exits."""
    me = os.getpid()
    return {p.pid: p for p in proctree.snapshot().values() if p.ppid == me}


def _strangers(folder: str) -> dict[int, proctree.Process]:
    """Return the processes of the job, including those that its supervisor has just forked."""
    found = {p.pid: p for p in proctree.marked(folder)}
    me = os.getpid()
    for process in proctree.snapshot().values():
        try:
            words = read_bytes(f"/proc/{process.pid}/cmdline").split(b"\0")
        except OSError:
            continue
        if os.fsencode(folder) in words and any(w.endswith(b"task_guard.py") for w in words) and process.pid != me:
            found[process.pid] = process
    return found


def _prepare(folder: str) -> int:
    """Create the job's FIFO and state file if they do not exist. Returns the FIFO, open for reading."""
    path = os.path.join(folder, STATE_FILE)
    fifo = os.path.join(folder, CONTROL_FIFO)
    if not os.path.exists(fifo):
        os.mkfifo(fifo, 0o600)
    control = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # avoids POLLHUP events
    if not os.path.exists(path):
        head, lines = read_tasks(folder)
        job = JobState(head["facts"], [(head["role"], len(lines))])
        job.state, job.created = RUNNING, time.time()
        writer = StateWriter(path, job)
        writer.flush()
        writer.close()
    return control


def main() -> None:
    """Detach from the caller and supervise the sweep, unless another guard holds it."""
    folder = sys.argv[1]
    env: dict[str, str] = marshal.loads(sys.stdin.buffer.read())  # noqa: S302  # written by our own client
    answer = 3
    os.dup2(1, answer, inheritable=False)
    proctree.leave_caller(answer + 1)
    lock = os.open(os.path.join(folder, TASKS_FILE), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the forked supervisor shares it; the kernel releases it
        control = _prepare(folder)
    except BlockingIOError:
        os.write(answer, HELD)
        return
    except OSError as e:
        os.write(answer, f"E{e}".encode("utf-8", "replace"))
        return
    with suppress(OSError):  # the caller was killed, but the sweep continues
        os.write(answer, TAKEN)
    os.close(answer)
    guard(folder, env, control)


if __name__ == "__main__":
    main()
