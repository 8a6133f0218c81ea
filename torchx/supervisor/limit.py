"""How long an attempt of a local job may run, and what is said to its ranks before the end."""

from __future__ import annotations

import os

from torchx.supervisor.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOOK_S = 0.1  # between two looks for a checkpoint that was asked for


class Limit:
    """The time limit of a job; of one that has none it never comes.

    Args:
        asked: ``seconds``; ``text``, the limit as people write it; ``early_s``, by how many seconds before its end the
            ranks are asked for a checkpoint, and the files ``ask``, which says so to them, and ``progress``, by which
            they say that it is written. All may be missing.
        watchdog: hears when an attempt begins, and when it is ended.
    """

    def __init__(self, asked: dict[str, Any], watchdog: Watchdog | None = None) -> None:
        self._watchdog = watchdog or Watchdog({}, {})
        self._seconds: float = asked.get("seconds", 0)
        self._early_s: float = asked.get("early_s", 0)
        self._ask: str = asked.get("ask", "")
        self._progress: str = asked.get("progress", "")
        self._text: str = asked.get("text", "")
        self._end: float | None = None
        self._asked_at = 0.0
        self.due: float | None = None
        self.why = ""

    def begin(self, now: float) -> None:
        """An attempt starts, which has all of its time."""
        self._watchdog.begin(now)
        self._set(now + self._seconds if self._seconds else None, f"it reached its time limit of {self._text}")

    def expire(self, now: float) -> None:
        """The time is over now, but for what it takes to write a checkpoint."""
        self._set(now + self._early_s, "it reached its time limit (simulated)")

    def forget(self) -> None:
        """The attempt is being ended."""
        self._watchdog.forget()
        self._set(None, "")

    def ask(self) -> None:
        """Asks the ranks for a checkpoint, where they may be asked."""
        if self._ask:
            try:
                with open(self._ask, "w", encoding="utf-8") as f:
                    self._asked_at = os.fstat(f.fileno()).st_mtime
            except OSError:
                pass  # a full disk: the attempt ends without

    def is_over(self, now: float) -> bool:
        """Whether the attempt is to be ended now: its time is over, or the checkpoint is written."""
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
