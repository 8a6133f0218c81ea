"""Hands local jobs over to the launcher, which is started with the first job."""

from __future__ import annotations

import _thread
import marshal
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from torchx.supervisor.layout import CONTROL_FIFO, KEPT_ENVIRONMENT, STATE_FILE
from torchx.supervisor.statefile import has_supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.supervisor.layout import JobRequest

PROGRAM = __file__.replace("client.py", "launcher.py")
MAGIC = b"txrq"
DIED = b"D"
ANSWER_S = 60.0
_MAX_ATTEMPTS = 10  # to submit a job


class LauncherError(RuntimeError):
    """The launcher rejected the job, or it died and cannot be restarted."""


class LauncherClient:
    """The launcher of all jobs of this process. Thread-safe, and safe to use after a fork."""

    def __init__(self) -> None:
        self._locks: dict[int, Any] = {}
        self._process = 0
        self._requests = -1
        self._answers = -1
        self._starter = 0
        self._awaited = b""

    @property
    def _lock(self) -> Any:
        """The lock of this process: in a fork, that of the parent may be held for ever."""
        return self._locks.setdefault(os.getpid(), _thread.allocate_lock())

    def _start(self) -> None:
        if self._requests >= 0:
            return
        self._process = os.getpid()  # before there is anything that a fork must not use
        inner: list[int] = []
        try:
            requests, self._requests = _pipe()
            inner.append(requests)
            self._answers, answers = _pipe()
            inner.append(answers)
            self._starter = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", PROGRAM],
                {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, requests, 0),
                    (os.POSIX_SPAWN_DUP2, answers, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
        except OSError as e:
            self._drop()
            raise LauncherError(f"cannot start `{sys.executable}`: {e.strerror}") from e
        finally:
            for fd in inner:
                os.close(fd)

    def submit(self, request: JobRequest, meanwhile: Callable[[], None] | None = None) -> None:
        """Hand a job over and wait until its supervisor has accepted it. Raises LauncherError if it does not run.

        ``meanwhile`` is called while the supervisor starts.
        """
        with self._lock:
            if self._process not in (0, os.getpid()):  # after a fork: the launcher is the parent's
                self._drop()
                self._process = 0
            self._start()  # it starts while we write
            body = marshal.dumps(dict(request), 2)
            message = MAGIC + len(body).to_bytes(8, "big") + body
            fifo = os.path.join(request["job"], CONTROL_FIFO)
            self._awaited = os.fsencode(os.path.basename(request["job"]))
            in_doubt = False  # whether the request of an earlier attempt may still be accepted
            failures = 0  # attempts of which that is certainly not so
            for _ in range(_MAX_ATTEMPTS):
                self._start()
                try:
                    answer = self._exchange(message, meanwhile)
                    meanwhile = None
                except BaseException:
                    self._drop()  # or a late response would be taken for that to the next request
                    raise
                if answer.startswith(b"K"):
                    return
                taken = answer.startswith(b"E")
                if taken and not (in_doubt and os.path.exists(fifo)):
                    raise LauncherError(answer[1:].decode("utf-8", "replace").strip())
                # No response will come. A supervisor starts nothing before its response, and takes no job with a FIFO.
                if len(answer) <= 1:
                    self._drop()
                if (taken or has_supervisor(request["job"])) and _has_begun(request["job"]):
                    return
                failures += answer != DIED
                if taken or failures == 2:
                    break
                in_doubt = in_doubt or answer == DIED
                if not in_doubt:
                    for path in (fifo, os.path.join(request["job"], STATE_FILE)):
                        with suppress(OSError):
                            os.unlink(path)
            raise LauncherError("the launcher of local jobs ended unexpectedly")

    def close(self) -> None:
        """Disconnect from the launcher, which exits when its last job has ended."""
        if self._process == os.getpid():
            self._drop()

    def _exchange(self, message: bytes, meanwhile: Callable[[], None] | None) -> bytes:
        """Send a message and return the response; empty if the launcher is gone.

        ``K``: the job was accepted. ``E`` and a reason: it was rejected. ``D`` and the name of the job's folder: the
        supervisor that had read the request was killed. ``D`` alone: a supervisor was killed that may have read it.
        """
        view = memoryview(message)
        try:
            while view:
                view = view[os.write(self._requests, view) :]
        except BrokenPipeError:
            return b""
        if meanwhile is not None:
            meanwhile()
        import select

        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        died = answer = b""
        while not answer and not died:
            if not poll.poll(ANSWER_S * 1000):
                raise LauncherError(f"the launcher of local jobs did not answer within {ANSWER_S:.0f} s")
            answer = os.read(self._answers, 1 << 16)
            if not answer:
                break
            while answer.startswith(DIED):  # may be about an earlier job
                line, _, answer = answer.partition(b"\n")
                if line in (DIED, DIED + self._awaited):
                    died = line
        if self._starter:  # it forked the launcher itself and exited
            _reap(self._starter)
            self._starter = 0
        return answer or died

    def _drop(self) -> None:
        for fd in (self._requests, self._answers):
            if fd >= 0:
                os.close(fd)
        self._requests = self._answers = -1
        if self._starter and self._process == os.getpid():
            _reap(self._starter)
        self._starter = 0


shared = LauncherClient()
"""The launcher of this process. It exits with the process, or after its last job."""


def _pipe() -> tuple[int, int]:
    """Return a pipe whose ends are not 0, 1 or 2, even if the caller has closed those."""
    import fcntl

    ends = list(os.pipe())
    for i, fd in enumerate(ends):
        if fd < 3:
            ends[i] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(fd)
    return ends[0], ends[1]


def _has_begun(folder: str) -> bool:
    """Whether the supervisor that made a job's FIFO has also written the job's state, for which this waits a second."""
    for _ in range(1000):
        with suppress(OSError):
            if os.path.getsize(os.path.join(folder, STATE_FILE)):
                return True
        if not os.path.exists(os.path.join(folder, CONTROL_FIFO)):
            return True  # the job has ended and was removed
        time.sleep(0.001)
    return has_supervisor(folder)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
