"""The program that keeps a sweep going: starts its supervisor, and goes on in its place when that is killed.

Run as ``python -I -S task_guard.py FOLDER``, with the environment of the tasks as stdin; see :mod:`task_client` for the
other end. It is a child subreaper: the tasks of a supervisor that was killed become its children, and run on. Should it
be killed, too, whoever looks at the sweep next starts another guard.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # Isolated as it runs, it sees only the standard library: this package comes last, so that it can hide none of it.
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
_PATIENCE_S = 1.0  # of a process that was just forked, until it is the task's program and shows its environment


def guard(folder: str, env: dict[str, str], control: int) -> None:
    """Have a sweep supervised until it ends."""
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
        orphans.end_job(folder, f"the supervisor of the sweep crashed; see `{CRASH_FILE}` in `{folder}`", ends)


def _claimed(folder: str, ends: dict[int, int], *, fresh: bool) -> dict[int, int]:
    """The process of the task of which the state file does not say whether it was started, where there is one.

    The supervisor is gone, so a process of that task is a child of ours that the file does not name. Its environment
    says whose it is once it runs the task's program; before that, it made the task's log. Where there is a log and no
    process, the task was started and nobody knows how it ended: that is said with pid 0.

    Args:
        ends: children that have ended, and how.
        fresh: the guard of that supervisor is gone, too: its processes are not our children.
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
            whose = proctree.environment(pid, proctree.ENV_REPLICA)
            if process.group == pid and (whose == str(k) or (process.state in "ZX" and not fresh)):
                return {k: pid}
            # Seen before it had its group, or before it is the task's program: it is looked at again.
            in_doubt |= whose in (None, str(k)) and process.state not in "ZX"
        if not in_doubt or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    gone = [pid for pid in ends if pid not in named]
    if gone:
        return {k: gone[-1]}
    return {k: 0} if os.path.exists(task_log(job.facts["logs"], job.roles[0][0], k)) else {}


def _children() -> dict[int, proctree.Process]:
    """This process's children. The kernel's list of them may lack one while another one ends."""
    me = os.getpid()
    return {p.pid: p for p in proctree.snapshot().values() if p.ppid == me}


def _strangers(folder: str) -> dict[int, proctree.Process]:
    """Processes of the job, and those that a supervisor of it has just forked."""
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
    """The job's FIFO, open to read, and its state file."""
    path = os.path.join(folder, STATE_FILE)
    fifo = os.path.join(folder, CONTROL_FIFO)
    if not os.path.exists(fifo):
        os.mkfifo(fifo, 0o600)
    control = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # spares us hang-up events
    if not os.path.exists(path):
        head, lines = read_tasks(folder)
        job = JobState(head["facts"], [(head["role"], len(lines))])
        job.state, job.created = RUNNING, time.time()
        writer = StateWriter(path, job)
        writer.flush()
        writer.close()
    return control


def main() -> None:
    """Leave the caller, take the sweep unless another guard has it, and see it through."""
    folder = sys.argv[1]
    env: dict[str, str] = marshal.loads(sys.stdin.buffer.read())  # noqa: S302  # written by our own client
    answer = 3
    os.dup2(1, answer, inheritable=False)
    proctree.leave_caller(answer + 1)
    lock = os.open(os.path.join(folder, TASKS_FILE), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by the supervisor, too, and let go by the kernel
        control = _prepare(folder)
    except BlockingIOError:
        os.write(answer, HELD)
        return
    except OSError as e:
        os.write(answer, f"E{e}".encode("utf-8", "replace"))
        return
    with suppress(OSError):  # the caller was killed: the sweep goes on
        os.write(answer, TAKEN)
    os.close(answer)
    guard(folder, env, control)


if __name__ == "__main__":
    main()
