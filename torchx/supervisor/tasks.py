"""The process that runs the tasks of one sweep, a limited number at a time, and records their states.

It claims a task in the state file, starts it, and records its pid, in this order and one task at a time. So at most one
task is in doubt after a kill: the successor decides by ``/proc``, and by the log that exists before the program runs.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from contextlib import suppress

from torchx.supervisor import orphans, proctree
from torchx.supervisor.layout import STATE_FILE, TASKS_FILE, USED_FILE, make_folder, private, task_log, task_metrics
from torchx.supervisor.metrics import Root, Sampler, limits
from torchx.supervisor.replica import DEFAULT_SIGNALS
from torchx.supervisor.statefile import (
    CANCELLED,
    FAILED,
    LOST,
    PENDING,
    RUNNING,
    SUCCEEDED,
    TASKS,
    JobState,
    StateWriter,
    read_bytes,
    read_state,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CANCEL_ALL = "cancelled"
_LOOK_S = 0.2  # interval of polls for processes that are not our children
_NOT_STARTED = 127


class TaskSupervisor:
    """Starts the tasks of a sweep in order, each once.

    It claims a task in the state file before it starts the process, and records the pid right after. So there is never
    more than one task that may or may not have been started, and a successor finds out by looking at the processes.

    Args:
        folder: of the job. Its state file exists.
        env: of every task; its own variables override it.
        control: the job's FIFO, open for reading.
        ends: exit codes of children that have already ended, by pid.
        started: index of a claimed task -> pid of its process, 0 if its exit code is unknown.
    """

    def __init__(
        self, folder: str, env: dict[str, str], *, control: int, ends: dict[int, int], started: dict[int, int]
    ) -> None:
        self.folder = folder
        head, self._lines = read_tasks(folder)
        path = os.path.join(folder, STATE_FILE)
        self.job: JobState = read_state(path)
        self.job.supervisor = os.getpid()
        self.writer = StateWriter(path, self.job, header=int(read_bytes(path)[:64].split(b" ", 3)[2]))
        self._env = {**env, **head["env"], proctree.ENV_JOB: folder}
        self._cwd: str = head["cwd"]
        self._grace_s: float = head["grace_s"]
        self._width = int(self.job.facts[TASKS])
        self._role = self.job.roles[0][0]
        self._logs = os.path.dirname(task_log(self.job.facts["logs"], self._role, 0))
        self._sample_s: float = head.get("sample_s", 0.0)
        self._sampler = Sampler(self._sample_s, self._env, time.monotonic())
        self._used = os.open(
            os.path.join(folder, USED_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        if not os.fstat(self._used).st_size:
            _add(self._used, b"%d %d\n" % limits(self._env))
        self._control = control
        self._partial = b""
        self._next = 0
        self._running: dict[int, int] = {}  # our children: pid -> index
        self._others: dict[int, int] = {}  # other processes, whose exit codes we cannot get: pid -> index
        self._stopping: dict[int, float] = {}  # index -> time of SIGKILL
        self._left: dict[int, int] = {}  # those whose first process has ended, but no other yet: index -> exit code
        self._take_over(ends, started)
        self.writer.flush()

    def run(self) -> None:
        """Run the sweep until it has ended."""
        wake, wake_writer = os.pipe()
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._cancel_all())
        os.chdir(self._cwd)
        make_folder(self._logs, private=True)
        poll = select.poll()
        for fd in (self._control, wake):
            poll.register(fd, select.POLLIN)
        self._reap()  # children that ended before did not wake us
        while self._fill() or self._busy():
            for fd, _ in poll.poll(self._patience_ms()):
                if fd == wake:
                    os.read(fd, 512)
                else:
                    self._obey(os.read(fd, 1 << 16))
            self._reap()
            self._look_after()
            self._sample(time.monotonic())
        self._finish()

    # -- starting --------------------------------------------------------------------------------

    def _busy(self) -> int:
        return len(self._running) + len(self._others) + len(self._left)

    def _fill(self) -> bool:
        """Start as many tasks as may run now. Returns whether more are to be started."""
        replicas, count = self.job.replicas, len(self.job.replicas)
        while True:
            while self._next < count and replicas[self._next].state != PENDING:
                self._next += 1
            if self._next >= count or self._busy() >= self._width:
                return self._next < count
            self._start(self._next)

    def _start(self, k: int) -> None:
        line = self.job.replicas[k]
        line.state, line.pid, line.started = RUNNING, 0, time.time()
        self._changed(k)
        log = f"{self._logs}/{k}.log"
        try:
            exe, argv, own = json.loads(self._lines[k])
            pid = os.posix_spawn(
                exe,
                argv,
                {**self._env, **own, proctree.ENV_REPLICA: str(k)},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setpgroup=0,  # not a session: autogroup scheduling makes a new one wait for its turn
                setsigdef=DEFAULT_SIGNALS,
                setsigmask=(),
            )
        except (OSError, ValueError) as e:
            _note(log, f"torchx: the task could not be started: {e}\n")
            self._ended(k, _NOT_STARTED)
            return
        line.pid, line.ticks = pid, proctree.start_ticks(pid)
        self._changed(k)
        self._running[pid] = k

    def _take_over(self, ends: dict[int, int], started: dict[int, int]) -> None:
        """Take over tasks of an earlier supervisor that still run or have ended since it died."""
        same_boot = self.job.facts["boot"] == proctree.boot_id()
        for k, line in enumerate(self.job.replicas):
            if line.state != RUNNING:
                continue
            if not line.pid and k in started:
                line.pid, line.ticks = started[k], proctree.start_ticks(started[k])
                self._changed(k)  # before another one is claimed
            process = proctree.read_process(line.pid) if line.pid else None
            if line.pid in ends:
                self._ended(k, ends[line.pid])
            elif process is not None and process.ppid == os.getpid():
                self._running[line.pid] = k
            elif not line.pid and k not in started:
                line.state, line.started = PENDING, 0.0
                self._changed(k)
            elif same_boot and line.ticks and proctree.start_ticks(line.pid) == line.ticks:
                self._others[line.pid] = k
            else:
                self._ended(k, line.exit)

    # -- ending ----------------------------------------------------------------------------------

    def _reap(self) -> None:
        while self._running:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            k = self._running.pop(found.si_pid, None)
            if k is not None:  # record the exit code before reaping, or it would be lost if we were killed in between
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                if k in self._stopping and proctree.HAS_PROC:
                    self._left[k] = self.job.replicas[k].exit = code
                    self._changed(k)
                else:
                    proctree.signal_group(found.si_pid, signal.SIGKILL)  # leftovers; its pid cannot be reused yet
                    self._ended(k, code)
            used = os.wait4(found.si_pid, 0)[2]
            if k is not None:
                # A child starts with the memory of its parent, so a peak below ours is not its own.
                own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                peak = used.ru_maxrss if used.ru_maxrss > own else 0
                _add(self._used, b"%d %d %.3f\n" % (k, peak, used.ru_utime + used.ru_stime))

    def _sample(self, now: float) -> None:
        """Sample the tasks that have run for at least one interval."""
        if self._sampler.due is None or now < self._sampler.due:
            return
        wall = time.time()
        roots = []
        for pid, k in {**self._running, **self._others}.items():
            if wall - self.job.replicas[k].started >= self._sample_s:
                devices = {**self._env, **json.loads(self._lines[k])[2]}.get("CUDA_VISIBLE_DEVICES")
                path = task_metrics(self.job.facts["logs"], self._role, k)
                roots.append(Root(pid, self.job.replicas[k].started, 0, path, devices))
        if roots:
            self._sampler.look(roots, now)
        else:
            self._sampler.due = now + self._sample_s

    def _look_after(self) -> None:
        """Poll tasks that are not our children, and kills those that did not end after SIGTERM."""
        for pid, k in list(self._others.items()):
            if proctree.start_ticks(pid) != self.job.replicas[k].ticks:
                del self._others[pid]
                self._ended(k, None)
        now = time.monotonic()
        alive = [p for p in proctree.snapshot().values() if p.state not in "ZX"] if self._left else []
        for k, code in list(self._left.items()):
            left = [p for p in alive if (p.group, p.session) == (self.job.replicas[k].pid, os.getsid(0))]
            if now >= self._stopping[k] or not left:
                proctree.send_all(left, signal.SIGKILL)
                del self._left[k]
                self._ended(k, code)
        for k in [k for k, deadline in self._stopping.items() if now >= deadline]:
            self._stopping[k] = now + _LOOK_S
            proctree.signal_group(self.job.replicas[k].pid, signal.SIGKILL)

    def _patience_ms(self) -> float | None:
        waits = [deadline - time.monotonic() for deadline in self._stopping.values()]
        if self._others or self._left:
            waits.append(_LOOK_S)
        if self._sampler.due is not None:
            waits.append(self._sampler.due - time.monotonic())
        return max(min(waits), 0.0) * 1000 if waits else None

    def _ended(self, k: int, code: int | None) -> None:
        """Record the end of a task; ``code`` is None if it is unknown how it ended."""
        line = self.job.replicas[k]
        stopped = self._stopping.pop(k, None) is not None
        line.exit, line.ended = code, time.time()
        line.state = SUCCEEDED if code == 0 else CANCELLED if stopped else LOST if code is None else FAILED
        if line.state == FAILED and self.job.first < 0:
            self.job.first = k
            self.writer.header_changed()
        self._changed(k)

    def _finish(self) -> None:
        orphans.end_processes(self.folder, set(), "")
        states = {line.state for line in self.job.replicas}
        if self.job.msg == CANCEL_ALL:
            self.job.state = CANCELLED
        elif states & {FAILED, LOST}:
            self.job.state = FAILED
        else:
            self.job.state = CANCELLED if CANCELLED in states else SUCCEEDED
        self.job.ended = time.time()
        self.writer.header_changed()
        self.writer.flush()

    # -- commands --------------------------------------------------------------------------------

    def _obey(self, data: bytes) -> None:
        """``cancel`` cancels the sweep, ``cancel 17`` one task."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for words in map(bytes.split, lines):
            if words == [b"cancel"]:
                self._cancel_all()
            elif len(words) == 2 and words[1].isdigit() and int(words[1]) < len(self.job.replicas):
                self._cancel(int(words[1]))
        self.writer.flush()

    def _cancel_all(self) -> None:
        self.job.msg = CANCEL_ALL
        self.writer.header_changed()
        for k in range(len(self.job.replicas)):
            self._cancel(k)
        self.writer.flush()

    def _cancel(self, k: int) -> None:
        line = self.job.replicas[k]
        if line.state == PENDING:
            line.state, line.ended = CANCELLED, time.time()
            self.writer.replica_changed(k)
        elif line.state == RUNNING and line.pid and k not in self._stopping:
            self._stopping[k] = time.monotonic() + self._grace_s
            proctree.signal_group(line.pid, signal.SIGTERM)

    def _changed(self, k: int) -> None:
        self.writer.replica_changed(k)
        self.writer.flush()


def read_tasks(folder: str) -> tuple[dict[str, Any], list[bytes]]:
    """Read what all tasks have in common, and for each task a JSON list: program, arguments, variables."""
    head, *lines = read_bytes(os.path.join(folder, TASKS_FILE)).splitlines()
    return json.loads(head), lines


def _add(file: int, line: bytes) -> None:
    with suppress(OSError):  # for example a full disk; the tasks continue
        os.write(file, line)


def _note(path: str, text: str) -> None:
    # if it cannot be written, the state file still shows that the task failed
    with suppress(OSError), open(path, "a", encoding="utf-8", errors="surrogateescape", opener=private) as f:
        f.write(text)
