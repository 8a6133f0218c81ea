"""Where supervisors without a job wait for the next request, and in which order.

All processes of one launcher share the pipe of requests, so only one of them may read at a time: the one that has
locked the first byte of a file that only they know. The others wait for that lock, each on a seat, which is another
locked byte. The kernel frees the locks of a process that dies, however it dies.
"""
# ruff: noqa: SIM105  # contextlib costs more at start-up than it saves

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_READER = 0
_SEATS = range(1, 8)


class Desk:
    """One process's place among them; a fork has a place of its own.

    Args:
        requests, answers: the pipes to the caller.
        news: where the launcher hears which job a supervisor took.
        guardian: pid and start ticks of the launcher.

    Where the system has no such file each supervisor takes one job, and the launcher forks them one after the other.
    """

    __slots__ = ("_locks", "_open", "_seat", "answers", "guardian", "news", "requests")

    def __init__(self, requests: int, answers: int, news: int, guardian: tuple[int, int]) -> None:
        self.requests = requests
        self.answers = answers
        self.news = news
        self.guardian = guardian
        self._open = True
        self._seat = 0
        self._locks = -1
        if hasattr(os, "memfd_create"):
            try:
                self._locks = os.memfd_create("torchx-desk")
            except OSError:
                pass  # a sandbox that knows it not

    def next_request(self, read: Callable[[int], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Wait for this process's turn and for a request; None when there is nothing more to do.

        Without a guardian no job is taken: the caller finds nobody, and starts another launcher.
        """
        if self._locks >= 0:
            fcntl.lockf(self._locks, fcntl.LOCK_EX, 1, _READER)
            if self._seat:
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, self._seat)
                self._seat = 0
        if os.getppid() != self.guardian[0]:
            return None
        request = read(self.requests)
        return request if os.getppid() == self.guardian[0] else None

    def tell(self, folder: str) -> bool:
        """Tell the guardian which job this process has taken; False when it is gone."""
        try:
            os.write(self.news, b"%d %s\0" % (os.getpid(), os.fsencode(folder)))
        except OSError:
            return False
        return True

    def next_please(self) -> None:
        """Let another process read the next request."""
        if self._locks >= 0:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, _READER)
        else:
            self.leave()

    def come_back(self) -> bool:
        """Take a seat again after a job. False when all are taken, or the job lasted and :meth:`leave` was called."""
        if not self._open or self._locks < 0:
            return False
        for seat in _SEATS:
            try:
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, seat)
            except OSError:
                continue
            self._seat = seat
            try:
                os.write(self.news, b"%d\0" % os.getpid())
            except OSError:
                return False
            return True
        return False

    def leave(self) -> None:
        """Let go of the pipes: were this process to hold them, a caller would not see that the others are gone."""
        if self._open:
            self._open = False
            for fd in (self.requests, self.answers, self.news, self._locks):
                if fd >= 0:
                    os.close(fd)
