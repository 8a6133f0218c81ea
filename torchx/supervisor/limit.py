"""The time limit of an attempt of a local job, and the request for a checkpoint before it ends."""

from __future__ import annotations

import os
from contextlib import suppress

from torchx.supervisor.layout import private
from torchx.supervisor.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.supervisor.layout import LimitRequest

_LOOK_S = 0.1  # interval of polls for a requested checkpoint


class Limit:
    """The time limit of a job, if it has one.

    Args:
        options: see :class:`torchx.supervisor.layout.LimitRequest`.
        watchdogs: are informed when an attempt begins and when it is being ended.
    """

    def __init__(self, options: LimitRequest, *watchdogs: Watchdog) -> None:
        self._watchdogs = watchdogs
        self._seconds: float = options.get("seconds", 0)
        self._early_s: float = options.get("early_s", 0)
        self._ask: str = options.get("ask", "")
        self._progress: str = options.get("progress", "")
        self._text: str = options.get("text", "")
        self._end: float | None = None
        self._asked_at = 0.0
        self.due: float | None = None
        self.why = ""

    def begin(self, now: float) -> None:
        """Start the time of a new attempt."""
        for watchdog in self._watchdogs:
            watchdog.begin(now)
        self._set(now + self._seconds if self._seconds else None, f"it reached its time limit of {self._text}")

    def expire(self, now: float, why: str = "it reached its time limit (simulated)") -> None:
        """Lets the time end now, except for the time to write a checkpoint."""
        self._set(now + self._early_s, why)

    def forget(self) -> None:
        """Stop the time, because the attempt is being ended."""
        for watchdog in self._watchdogs:
            watchdog.forget()
        self._set(None, "")

    def ask(self) -> None:
        """Request a checkpoint from the ranks, if the job supports it."""
        if self._ask:
            # with a full disk, for example, the attempt ends without a checkpoint
            with suppress(OSError), open(self._ask, "w", encoding="utf-8", opener=private) as f:
                self._asked_at = os.fstat(f.fileno()).st_mtime

    def is_over(self, now: float) -> bool:
        """Whether to end the attempt now, because its time is over or the checkpoint is written."""
        if self._end is None or self.due is None or now < self.due:
            return False
        if now >= self._end:
            return True
        if not self._asked_at:
            self.ask()
        self.due = min(self._end, now + _LOOK_S)
        try:
            return os.stat(self._progress).st_mtime >= self._asked_at > 0
        except OSError:
            return False

    def _set(self, end: float | None, why: str) -> None:
        self._end, self.why, self._asked_at = end, why, 0.0
        self.due = end if end is None else end - self._early_s
