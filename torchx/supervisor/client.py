"""How a program hands local jobs to its launcher; the launcher is started with the first one."""

from __future__ import annotations

import _thread
import marshal
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from torchx.supervisor import launcher_path
from torchx.supervisor.layout import CONTROL_FIFO, KEPT_ENVIRONMENT, STATE_FILE
from torchx.supervisor.reader import has_supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"txrq"
DIED = b"D"
ANSWER_S = 60.0


class LauncherError(RuntimeError):
    """The launcher refused the job, or is gone and cannot be started."""


class LauncherClient:
    """One launcher for all jobs of this process. Safe to use from several threads, and after a fork."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._process = 0
        self._requests = -1
        self._answers = -1
        self._starter = 0
        self._awaited = b""

    def start(self) -> None:
        """Start the launcher if there is none. It gets ready while the caller goes on."""
        self._forget_parent()
        with self._lock:
            self._start()

    def _forget_parent(self) -> None:
        if self._process not in (0, os.getpid()):  # we are a fork: the launcher is our parent's, and so may the lock be
            self._lock = _thread.allocate_lock()
            self._drop()
            self._process = 0

    def _start(self) -> None:
        if self._requests >= 0:
            return
        inner_requests, self._requests = _pipe()
        self._answers, inner_answers = _pipe()
        try:
            self._starter = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", launcher_path()],
                {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, inner_requests, 0),
                    (os.POSIX_SPAWN_DUP2, inner_answers, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
        except OSError as e:
            self._drop()
            raise LauncherError(f"cannot start `{sys.executable}`: {e.strerror}") from e
        finally:
            os.close(inner_requests)
            os.close(inner_answers)
        self._process = os.getpid()

    def submit(self, request: dict[str, Any], meanwhile: Callable[[], None] | None = None) -> None:
        """Hand a job over; returns when its supervisor has taken it.

        Args:
            meanwhile: called while the supervisor sets itself up.

        Raises:
            LauncherError: the job was not taken, and does not run.
        """
        body = marshal.dumps(request, 2)
        message = MAGIC + len(body).to_bytes(8, "big") + body
        fifo = os.path.join(request["job"], CONTROL_FIFO)
        self._forget_parent()
        with self._lock:
            self._awaited = os.fsencode(os.path.basename(request["job"]))
            in_doubt = False  # whether the request of an earlier attempt may still be taken
            for last in (False, True):
                self._start()
                try:
                    answer = self._exchange(message, meanwhile)
                    meanwhile = None
                except BaseException:
                    self._drop()  # a late answer must not be taken for that to the next request
                    raise
                if answer.startswith(b"K") or (answer.startswith(b"E") and in_doubt and os.path.exists(fifo)):
                    return
                if answer.startswith(b"E"):
                    raise LauncherError(answer[1:].decode("utf-8", "replace").strip())
                # Nobody will answer. A supervisor starts nothing before it has, and takes no job that has a FIFO.
                if len(answer) <= 1:
                    self._drop()
                    if has_supervisor(request["job"]):
                        return
                if last:
                    raise LauncherError("the launcher of local jobs ended unexpectedly")
                in_doubt = answer == DIED
                if not in_doubt:
                    for path in (fifo, os.path.join(request["job"], STATE_FILE)):
                        _unlink(path)

    def close(self) -> None:
        """Let go of the launcher; it ends when the last of its jobs does."""
        if self._process == os.getpid():
            self._drop()

    def _exchange(self, message: bytes, meanwhile: Callable[[], None] | None) -> bytes:
        """The answer to a message; empty when the launcher is gone.

        It is ``K`` when the job was taken, ``E`` and why when it was not, ``D`` and the name of its folder when the
        supervisor was killed that had taken it, and ``D`` when one was of which nobody knows whether it had.
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
            while answer.startswith(DIED):  # of which an old one may still be there
                line, _, answer = answer.partition(b"\n")
                if line in (DIED, DIED + self._awaited):
                    died = line
        if self._starter:  # it has forked the launcher proper, and ended, long ago
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
"""The launcher of this process. It ends with the process, or after its last job."""


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not 0, 1 or 2, even where the caller has closed those."""
    import fcntl

    ends = list(os.pipe())
    for i, fd in enumerate(ends):
        if fd < 3:
            ends[i] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(fd)
    return ends[0], ends[1]


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
