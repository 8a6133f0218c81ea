"""Reads the state of a local job, from any process at any later time."""

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
    has_supervisor,
    parse_state,
    read_bytes,
    read_state,
)

GUARDIAN_S = 2.0  # how long a running guardian may take to end a job whose supervisor was killed


class JobReader:
    """Reads the state of one job repeatedly, and parses it only when it has changed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._data = b""
        self._job: JobState | None = None

    def read(self) -> JobState | None:
        """Return the current state, the same object while nothing changes; None if the job does not exist.

        If the job's supervisor is gone, its processes are killed and the job becomes FAILED. Raises StateFileError if
        the file is damaged or of another version, and ForeignJobError if another user may have written it.
        """
        job = self._read()
        if job is None or job.state in TERMINAL:
            return job
        here = proctree.boot_id()
        boot = job.facts.get("boot", "")
        if boot and here and boot != here:
            if job.facts.get("host") != os.uname().nodename:
                return job  # on another machine that shares this folder
            return self._end_job(job, "the machine was restarted while the job ran")
        if has_supervisor(self.folder):
            return job
        deadline = time.monotonic() + GUARDIAN_S
        pid, ticks = job.guardian
        while pid and proctree.start_ticks(pid) == ticks and time.monotonic() < deadline:
            time.sleep(0.002)  # the guardian is about to record the end
            job = self._read()
            if job is None or job.state in TERMINAL:
                return job
        job = self._read()  # it may have ended properly meanwhile
        if job is None or job.state in TERMINAL:
            return job
        return self._end_job(job, "the supervisor of the job was killed; its processes were ended")

    def _end_job(self, job: JobState, reason: str) -> JobState | None:
        if TASKS in job.facts:
            from torchx.supervisor.task_client import resume

            if resume(self.folder):
                return self._read()
        from torchx.supervisor import chain
        from torchx.supervisor.orphans import end_job

        if chain.is_chain(self.folder) and chain.go_on(self.folder):
            return self._read()
        if end_job(self.folder, reason):
            return self._read()
        job.state, job.msg = FAILED, reason  # another user's job, which we may read but not write
        return job

    def _read(self) -> JobState | None:
        path = f"{self.folder}/{STATE_FILE}"
        try:
            if self._job is not None and self._job.state in TERMINAL:
                os.stat(path)  # a final state does not change, but the job may have been deleted
                return self._job
            if self._job is None:
                check_owner(self.folder)
            data = read_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if data != self._data or self._job is None:
            try:
                self._job = parse_state(data)
            except StateFileError:  # read during a write
                self._job = read_state(path)
                data = b""
            self._data = data
        return self._job


def send_command(folder: str, word: str) -> bool:
    """Send a command to the supervisor; False if there is none.

    ``cancel``; ``preempt``: end the attempt as if it were preempted; ``expire``: end its time limit now.
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
        pass  # a full pipe contains enough commands already
    except BrokenPipeError:
        return False
    finally:
        os.close(fd)
    return True


def wait_for_end(folder: str, timeout_s: float) -> bool:
    """Block until the supervisor closes the job's FIFO, or for this time. False, at once, if there is none here."""
    import select

    try:
        fd = os.open(os.path.join(folder, CONTROL_FIFO), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(fd, 0)  # POLLHUP and POLLERR are always reported
        poll.poll(min(timeout_s, 3600.0) * 1000)
        return True
    finally:
        os.close(fd)
