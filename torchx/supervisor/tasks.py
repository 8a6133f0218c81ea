"""The process that runs the tasks of one sweep, so many at a time, and writes down what became of each."""
# ruff: noqa: SIM105  # contextlib costs more at start-up than it saves

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time

from torchx.supervisor import orphans, proctree
from torchx.supervisor.layout import STATE_FILE, TASKS_FILE, USED_FILE, make_folder, task_log, task_metrics
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
_LOOK_S = 0.2  # between two looks at processes that are nobody's children
_NOT_STARTED = 127


class TaskSupervisor:
    """Starts the tasks of a sweep in order, each once.

    A task is claimed in the state file before its process is started, and its pid follows at once: so there is never
    more than one task of which the file does not say whether it was started, and whoever goes on after this process
    was killed finds out by the processes that are there.

    Args:
        folder: of the job. Its state file is there already.
        env: of every task; each one's own comes on top.
        control: the job's FIFO, open for reading.
        ends: exit codes of children that have ended already, by their pids.
        started: index of a task that was claimed to the pid of its process, 0 where nobody knows whether there was one.
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
        self._asked_of = b""
        self._next = 0
        self._running: dict[int, int] = {}  # our own children: pid to index
        self._others: dict[int, int] = {}  # nobody's: how they end cannot be seen
        self._stopping: dict[int, float] = {}  # index to when it is killed
        self._take_over(ends, started)
        self.writer.flush()

    def run(self) -> None:
        """Bring the sweep to its end."""
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
        self._reap()  # nobody was woken by what ended before
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
        return len(self._running) + len(self._others)

    def _fill(self) -> bool:
        """Starts what there is room for; whether there is more to start."""
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
                setpgroup=0,  # Linux schedules each session apart, and lets one that is new wait for its turn
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
        """What an earlier supervisor has left: tasks that run, or that ended when it did not live."""
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
                self._lost(k)

    # -- ending ----------------------------------------------------------------------------------

    def _reap(self) -> None:
        while self._running:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            k = self._running.pop(found.si_pid, None)
            if k is not None:  # written down before it is reaped: else nobody could know, were we killed in between
                proctree.signal_group(found.si_pid, signal.SIGKILL)  # what it left behind; its pid is still taken
                self._ended(k, found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)
            used = os.wait4(found.si_pid, 0)[2]
            if k is not None:
                # A process begins with the memory of who spawns it, which is all that is known of smaller ones.
                own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                peak = used.ru_maxrss if used.ru_maxrss > own else 0
                _add(self._used, b"%d %d %.3f\n" % (k, peak, used.ru_utime + used.ru_stime))

    def _sample(self, now: float) -> None:
        """Looks at the tasks that have run for so long that a job of its own would have been looked at, too."""
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
        """Tasks that are nobody's children, and those that were asked to end and have not."""
        for pid, k in list(self._others.items()):
            if proctree.start_ticks(pid) != self.job.replicas[k].ticks:
                del self._others[pid]
                self._lost(k)
        now = time.monotonic()
        for k in [k for k, deadline in self._stopping.items() if now >= deadline]:
            self._stopping[k] = now + _LOOK_S
            proctree.signal_group(self.job.replicas[k].pid, signal.SIGKILL)

    def _patience_ms(self) -> float | None:
        waits = [deadline - time.monotonic() for deadline in self._stopping.values()]
        if self._others:
            waits.append(_LOOK_S)
        if self._sampler.due is not None:
            waits.append(self._sampler.due - time.monotonic())
        return max(min(waits), 0.0) * 1000 if waits else None

    def _ended(self, k: int, code: int) -> None:
        line = self.job.replicas[k]
        stopped = self._stopping.pop(k, None) is not None
        line.exit, line.ended = code, time.time()
        line.state = SUCCEEDED if code == 0 else CANCELLED if stopped else FAILED
        if line.state == FAILED and self.job.first < 0:
            self.job.first = k
            self.writer.header_changed()
        self._changed(k)

    def _lost(self, k: int) -> None:
        line = self.job.replicas[k]
        stopped = self._stopping.pop(k, None) is not None
        line.state, line.ended = CANCELLED if stopped else LOST, time.time()
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

    # -- being asked -----------------------------------------------------------------------------

    def _obey(self, data: bytes) -> None:
        """``cancel`` ends the sweep, ``cancel 17`` one task."""
        *lines, self._asked_of = (self._asked_of + data).split(b"\n")
        for words in map(bytes.split, lines):
            if words == [b"cancel"]:
                self._cancel_all()
            elif len(words) == 2 and words[1].isdigit() and int(words[1]) < len(self.job.replicas):
                self._cancel(int(words[1]))

    def _cancel_all(self) -> None:
        self.job.msg = CANCEL_ALL
        self.writer.header_changed()
        for k in range(len(self.job.replicas)):
            self._cancel(k, write=False)
        self.writer.flush()

    def _cancel(self, k: int, *, write: bool = True) -> None:
        line = self.job.replicas[k]
        if line.state == PENDING:
            line.state, line.ended = CANCELLED, time.time()
            self.writer.replica_changed(k)
        elif line.state == RUNNING and line.pid and k not in self._stopping:
            self._stopping[k] = time.monotonic() + self._grace_s
            proctree.signal_group(line.pid, signal.SIGTERM)
        if write:
            self.writer.flush()

    def _changed(self, k: int) -> None:
        self.writer.replica_changed(k)
        self.writer.flush()


def read_tasks(folder: str) -> tuple[dict[str, Any], list[bytes]]:
    """What all tasks have in common, and for each its program, its arguments and its variables, as JSON."""
    head, *lines = read_bytes(os.path.join(folder, TASKS_FILE)).splitlines()
    return json.loads(head), lines


def _add(file: int, line: bytes) -> None:
    try:
        os.write(file, line)
    except OSError:
        pass  # the disk is full: the tasks go on


def _note(path: str, text: str) -> None:
    try:
        with open(path, "a", encoding="utf-8", errors="surrogateescape") as f:
            f.write(text)
    except OSError:
        pass  # the state says that it failed
