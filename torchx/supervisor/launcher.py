"""The program that forks one supervisor per local job of a caller and stays as their guardian.

Runs as ``python -I -S launcher.py``, with a pipe of requests as stdin and one of responses as stdout; :mod:`client` has
the other ends. It leaves the caller's session at once, and exits when the caller has closed the pipes and the last job
has ended. It is a child subreaper: processes that a killed supervisor leaves behind become its children. It ends them
and records the state of the job.

The next supervisor is forked in advance and reads the next request itself, so that submitting a job does not wait for a
fork. A supervisor whose job was short takes another one: see :mod:`reserve`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # Isolated mode sees only the standard library. This package comes last, so that it shadows none of its modules.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import gc
import marshal
import select
import signal

from torchx.supervisor import at_end, orphans, proctree, retention
from torchx.supervisor.reserve import Reserve
from torchx.supervisor.supervise import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.supervisor.layout import JobRequest, RetentionRequest

MAGIC = b"txrq"
HEADER = len(MAGIC) + 8

_NO_MORE = 3  # exit code of a supervisor that found no more requests
_CRASHED = 70
_JOBS_PER_PROCESS = 256  # limits the memory that jobs may leak in a supervisor
_MAX_REPLICAS = 8  # of a job whose supervisor takes another one, so that the memory of a big job is freed


class Launcher:
    """The guardian: keeps track of the supervisors that wait for a request and of those that have a job."""

    def __init__(self, requests: int, answers: int) -> None:
        self.jobs: dict[int, str] = {}
        self.idle: set[int] = set()
        self.open = True
        self._news, news_writer = os.pipe()
        self._wake, self._wake_writer = os.pipe()
        for fd in (self._news, self._wake, self._wake_writer):
            os.set_blocking(fd, False)
        self._ends: dict[int, int] = {}  # exit codes of replicas of supervisors that were killed
        self._spared: set[int] = set()  # pids of programs that run at the end of a job
        self._partial = b""
        guardian = (os.getpid(), proctree.start_ticks(os.getpid()))
        self.reserve = Reserve(requests, answers, news_writer, guardian)

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._news, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self.open or self.jobs:
            if self.open and not self.idle and not poll.poll(0):
                self._fork_spare()
            for fd, _ in poll.poll():
                if fd == self._wake:
                    os.read(fd, 512)
                    self._reap()
                elif not self._read_news():
                    poll.unregister(fd)  # or poll would return at once until the last job has ended
                    self._reap()

    def _fork_spare(self) -> None:
        pid = os.fork()
        if pid:
            self.idle.add(pid)
            return
        code = _CRASHED
        try:
            os.close(self._news)
            code = serve(self.reserve)
        finally:
            os._exit(code)

    def _read_news(self) -> bool:
        """Read reports of supervisors, ended by NUL: ``pid folder`` after reading a request, ``pid`` when idle again.

        False if no process is left that could take a request.
        """
        try:
            data = os.read(self._news, 1 << 16)
        except BlockingIOError:
            return True
        self._partial += data
        *lines, self._partial = self._partial.split(b"\0")
        for line in lines:
            word, _, folder = line.partition(b" ")
            pid = int(word)
            if folder:
                self.jobs[pid] = os.fsdecode(folder)
                self.idle.discard(pid)
            else:
                del self.jobs[pid]
                self.idle.add(pid)
        return bool(data)

    def _reap(self) -> None:
        died = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = -1
            if pid <= 0:
                break
            self._read_news()  # it may have read a request and died since the last time
            code = os.waitstatus_to_exitcode(status)
            self._spared.discard(pid)
            folder = self.jobs.pop(pid, None)
            if folder is not None and code != 0:
                died.append((folder, code))
            elif pid in self.idle:
                self.idle.discard(pid)
                if code in (_NO_MORE, _CRASHED):  # another spare would crash, too
                    self._close()
                elif code:
                    self._say_died("")
            elif folder is None:
                self._ends[pid] = code
        for folder, code in died:
            self._supervisor_died(folder, code)
            self._say_died(folder)  # its caller ignores this if it has had the response before
        self._ends.clear()
        if pid < 0:
            self.jobs.clear()  # no children are left, so nothing would end our wait for them

    def _say_died(self, folder: str) -> None:
        """Report to the caller that no response will come for a job; ``folder`` is empty if the job is unknown."""
        if self.open and select.select([], [self.reserve.answers], [], 0)[1]:
            with suppress(OSError):  # the caller is gone
                os.write(self.reserve.answers, b"D" + os.fsencode(os.path.basename(folder)) + b"\n")

    def _close(self) -> None:
        if self.open:
            self.open = False
            self.reserve.leave()

    def _supervisor_died(self, folder: str, code: int) -> None:
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"crashed with exit code {code}"
        reason = f"the supervisor of the job {how}; its processes were ended"
        from torchx.supervisor import chain  # few jobs lose their supervisor

        if chain.is_chain(folder) and chain.go_on(folder, self._left, is_guardian=True):
            self._spared |= self._left()  # the launcher of the next piece
            return
        if not orphans.end_job(folder, reason, self._code_of, self._left) and self._left():
            orphans.end_processes(folder, set(), "", self._left)  # its state file is gone
        at_end.start(folder)
        self._spared |= self._left()

    def _left(self) -> set[int]:
        """Our children that a killed supervisor left behind, whether they have the marks of its job or not."""
        return proctree.children_of_self() - {*self.jobs, *self.idle, *self._spared}

    def _code_of(self, pid: int) -> int | None:
        """Return the exit code of a replica, which has become our child; None if it is unknown."""
        if pid and pid not in self._ends:
            with suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._ends[pid] = os.waitstatus_to_exitcode(status)
        return self._ends.get(pid)


def serve(reserve: Reserve) -> int:
    """Read a request and supervise its job, then perhaps another one. Returns the exit code of this process."""
    for number in range(_JOBS_PER_PROCESS):
        request = reserve.next_request(read_request)
        if request is None:
            return _NO_MORE
        if not number:
            os.setsid()
            proctree.become_subreaper()
        if not serve_one(request, reserve) or not reserve.rejoin():
            break
    return 0


def serve_one(request: JobRequest, reserve: Reserve) -> bool:
    """Supervise one job. Returns whether this process can take another one."""
    if not reserve.report(request["job"]):
        return False
    try:
        supervisor = Supervisor(request, reserve.guardian, reserve.leave)
    except Exception as e:  # report any error to the caller
        with suppress(OSError):  # the caller was killed, or has turned to another launcher
            os.write(reserve.answers, f"E{str(e) or repr(e)}".encode("utf-8", "replace"))
        return False
    with suppress(OSError):  # the caller was killed, but the job continues
        os.write(reserve.answers, b"K\n")
    reserve.let_next_read()
    try:
        supervisor.run()
    except BaseException as e:
        orphans.leave_note(request["job"], e)
        raise
    if policy := request.get("retention"):
        reserve.leave()
        _tidy_up(policy)
        return False
    return supervisor.release() and len(supervisor.replicas) <= _MAX_REPLICAS


def read_request(requests: int) -> JobRequest | None:
    """Read the next request; None at the end of the pipe or if the data is not a request."""
    header = _read_exactly(requests, HEADER)
    if len(header) < HEADER or header[: len(MAGIC)] != MAGIC:
        return None
    size = int.from_bytes(header[len(MAGIC) :], "big")
    body = _read_exactly(requests, size)
    if len(body) < size:
        return None
    request: JobRequest = marshal.loads(body)  # noqa: S302  # written by our own client, of the same Python
    return request


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read_exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(fd, min(size - len(data), 1 << 20))
        if not piece:
            break
        data += piece
    return bytes(data)


def _tidy_up(policy: RetentionRequest) -> None:
    """Remove old jobs, when our own job has ended and nothing waits for this process."""
    os.nice(10)
    retention.apply(policy["base"], max_age_s=policy["max_age_s"], max_bytes=policy["max_bytes"])


def main() -> None:
    """Detach from the caller and serve its requests."""
    requests, answers = 3, 4
    os.dup2(0, requests, inheritable=False)
    os.dup2(1, answers, inheritable=False)
    proctree.leave_caller(5)
    os.chdir("/")
    gc.disable()  # there are no reference cycles here, and collecting would unshare memory with every supervisor
    Launcher(requests, answers).run()


if __name__ == "__main__":
    main()
