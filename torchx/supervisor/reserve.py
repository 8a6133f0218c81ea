"""Where supervisors without a job wait for the next request, and in which order.

All processes of one launcher share the pipe of requests, so only one of them may read at a time: the one that has
locked the first byte of a file that only they know. The others wait for that lock, each in a place, which is another
locked byte. The kernel frees the locks of a process that dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_READER = 0
_PLACES = range(1, 8)


class Reserve:
    """One process's part in the reserve; a fork has a part of its own.

    Args:
        requests, answers: the pipes to the caller.
        news: where the launcher hears which job a supervisor took.
        guardian: pid and start ticks of the launcher.

    Where the system has no such file each supervisor takes one job, and the launcher forks them one after the other.
    """

    def __init__(self, requests: int, answers: int, news: int, guardian: tuple[int, int]) -> None:
        self.requests = requests
        self.answers = answers
        self.news = news
        self.guardian = guardian
        self._open = True
        self._place: int | None = None
        self._locks: int | None = None
        with suppress(AttributeError, OSError):  # another system, or a sandbox that does not know the call
            self._locks = os.memfd_create("torchx-reserve")

    def next_request(self, read: Callable[[int], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Wait for this process's turn and for a request; None when there is nothing more to do.

        Without a guardian no job is taken: the caller finds nobody, and starts another launcher.
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
        """Report to the guardian which job this process has taken; False when it is gone."""
        return self._write(b"%d %s\0" % (os.getpid(), os.fsencode(folder)))

    def report_answer(self) -> None:
        """Report that the caller has been told: should this process be killed now, the caller does not wait for it."""
        self._write(b"%d +\0" % os.getpid())

    def let_next_read(self) -> None:
        """Let another process read the next request."""
        if self._locks is not None:
            _lock(self._locks, fcntl.LOCK_UN, _READER)
        else:
            self.leave()

    def rejoin(self) -> bool:
        """Take a place again after a job.

        Returns:
            False when all places are taken, or when the job lasted and :meth:`leave` was called.
        """
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
        """Let go of the pipes: were this process to hold them, a caller would not see that the others are gone."""
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
