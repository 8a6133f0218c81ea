"""Coordinates the supervisors without a job, which wait for the next request.

All processes of a launcher share the pipe of requests, but only the one that holds a lock on the first byte of a shared
anonymous file may read from it. The others wait for that lock. Each of them holds a lock on another byte, its place,
which limits how many wait. The kernel releases the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.supervisor.layout import JobRequest

_READER = 0
_PLACES = range(1, 8)


class Reserve:
    """The state of one process in the reserve.

    Args:
        requests, answers: the pipes to the caller.
        news: pipe to the launcher, for reports about jobs.
        guardian: pid and start ticks of the launcher.

    Without anonymous files (``memfd_create``), each supervisor takes one job, and the launcher forks them one by one.
    """

    def __init__(self, requests: int, answers: int, news: int, guardian: tuple[int, int]) -> None:
        self.requests = requests
        self.answers = answers
        self.news = news
        self.guardian = guardian
        self._open = True
        self._place: int | None = None
        self._locks: int | None = None
        with suppress(AttributeError, OSError):  # another system, or a sandbox without this call
            self._locks = os.memfd_create("torchx-reserve")

    def next_request(self, read: Callable[[int], JobRequest | None]) -> JobRequest | None:
        """Wait for the lock and for a request; None if there are no more requests.

        Takes no job if the guardian is gone. The caller then starts another launcher.
        """
        if self._locks is not None:
            _lock(self._locks, fcntl.LOCK_EX, _READER)
            if self._place is not None:
                _lock(self._locks, fcntl.LOCK_UN, self._place)
                self._place = None
        if not self._has_guardian():
            return None
        request = read(self.requests)
        return request if self._has_guardian() else None

    def report(self, folder: str) -> bool:
        """Report to the guardian which job this process has taken; False if the guardian is gone."""
        return self._write(b"%d %s\0" % (os.getpid(), os.fsencode(folder)))

    def let_next_read(self) -> None:
        """Let another process read the next request."""
        if self._locks is not None:
            _lock(self._locks, fcntl.LOCK_UN, _READER)
        else:
            self.leave()

    def rejoin(self) -> bool:
        """Wait for another request after a job. False if enough processes wait, or the job was not a short one."""
        if not self._open or self._locks is None:
            return False
        for place in _PLACES:
            try:
                _lock(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, place)
            except OSError:
                continue
            self._place = place
            return self._write(b"%d\0" % os.getpid())
        return False

    def leave(self) -> None:
        """Close the pipes, so that the caller notices when the other processes are gone."""
        if self._open:
            self._open = False
            for fd in (self.requests, self.answers, self.news, self._locks):
                if fd is not None:
                    os.close(fd)

    def _has_guardian(self) -> bool:
        return os.getppid() == self.guardian[0]

    def _write(self, news: bytes) -> bool:
        try:
            os.write(self.news, news)
        except OSError:
            return False
        return True


def _lock(locks: int, how: int, byte: int) -> None:
    fcntl.lockf(locks, how, 1, byte)
