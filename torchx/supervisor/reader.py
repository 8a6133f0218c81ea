"""What became of a local job, as any process at any later time sees it."""

from __future__ import annotations

import errno
import os
import time

from torchx.supervisor import proctree
from torchx.supervisor.layout import CONTROL_FIFO, STATE_FILE
from torchx.supervisor.statefile import (
    FAILED,
    TASKS,
    TERMINAL,
    JobState,
    StateFileError,
    check_owner,
    parse_state,
    read_bytes,
    read_state,
)

GUARDIAN_S = 2.0  # how long a living guardian may take to end a job whose supervisor was killed


class JobReader:
    """Reads the state of one job again and again; parses it only when it has changed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._data = b""
        self._job: JobState | None = None

    def read(self) -> JobState | None:
        """The job's state now; the very same object while nothing changes. None when there is no such job.

        A job whose supervisor is gone is ended first: what is left of it is killed, and it has FAILED.

        Raises:
            ForeignJobError: somebody else may have written the file.
            StateFileError: it is damaged, or of another version's format.
        """
        job = self._read()
        if job is None or job.state in TERMINAL:
            return job
        here = proctree.boot_id()
        boot = job.facts.get("boot", "")
        if boot and here and boot != here:
            if job.facts.get("host") != os.uname().nodename:
                return job  # it runs, or ran, on another machine that shares this folder
            return self._end_job(job, "the machine was restarted while the job ran")
        if has_supervisor(self.folder):
            return job
        deadline = time.monotonic() + GUARDIAN_S
        pid, ticks = job.guardian
        while pid and proctree.start_ticks(pid) == ticks and time.monotonic() < deadline:
            time.sleep(0.002)  # the guardian is about to write what it knows
            job = self._read()
            if job is None or job.state in TERMINAL:
                return job
        job = self._read()  # it may have come to its proper end while we looked
        if job is None or job.state in TERMINAL:
            return job
        return self._end_job(job, "the supervisor of the job was killed; its processes were ended")

    def _end_job(self, job: JobState, reason: str) -> JobState | None:
        if TASKS in job.facts:
            from torchx.supervisor.task_client import resume

            if resume(self.folder):
                return self._read()
        from torchx.supervisor.orphans import end_job

        if end_job(self.folder, reason):
            return self._read()
        job.state, job.msg = FAILED, reason  # another user's job: we may look, but not write
        return job

    def _read(self) -> JobState | None:
        path = f"{self.folder}/{STATE_FILE}"
        try:
            if self._job is not None and self._job.state in TERMINAL:
                os.stat(path)  # it may have been deleted; it can become nothing else any more
                return self._job
            if self._job is None:
                check_owner(self.folder)
            data = read_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if data != self._data or self._job is None:
            try:
                self._job = parse_state(data)
            except StateFileError:  # read in the middle of a transition
                self._job = read_state(path)
                data = b""
            self._data = data
        return self._job


def has_supervisor(folder: str) -> bool:
    """Whether a supervisor holds the job's FIFO open: the kernel's word, no pid is trusted."""
    try:
        os.close(os.open(os.path.join(folder, CONTROL_FIFO), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as e:
        return e.errno not in (errno.ENXIO, errno.ENOENT, errno.ENOTDIR)
    return True


def ask_to_cancel(folder: str) -> bool:
    """Ask the supervisor to end the job; False when there is none any more."""
    return tell(folder, "cancel")


def tell(folder: str, word: str) -> bool:
    """Say a word to the supervisor; False when there is none any more.

    Args:
        word: ``cancel``; ``preempt``: end the attempt as if its place were taken; ``expire``: its time limit is over.
    """
    try:
        fd = os.open(os.path.join(folder, CONTROL_FIFO), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        if e.errno in (errno.ENXIO, errno.ENOENT, errno.ENOTDIR):
            return False
        raise
    try:
        os.write(fd, f"{word}\n".encode())
    except BlockingIOError:
        pass  # a full pipe: it was asked often enough
    except BrokenPipeError:
        return False
    finally:
        os.close(fd)
    return True


def wait_for_end(folder: str, timeout_s: float) -> bool:
    """Sleep until the supervisor lets go of the job, at most ``timeout_s``. The kernel tells; nothing is polled.

    Returns:
        False, at once, when there is no supervisor on this machine.
    """
    import select

    try:
        fd = os.open(os.path.join(folder, CONTROL_FIFO), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(fd, 0)  # hang-up and error are told in any case
        poll.poll(min(timeout_s, 3600.0) * 1000)
        return True
    finally:
        os.close(fd)
