"""Waits for a job without asking more often, or noticing later, than makes sense."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from torchx.errors import EXIT_BACKEND, BackendError, TorchXError, TransientError
from torchx.runner.backends import is_near
from torchx.specs.api import AppStatus
from torchx.util.notices import logger
from torchx.util.outages import Outage

if TYPE_CHECKING:
    from torchx.runner.changes import News
    from torchx.schedulers.api import Scheduler

UNSUBMITTED_S = 120.0
"""A scheduler that has said for so long of a job it took that nobody submitted it is not waited for any longer."""

GONE_S = 15.0
"""A cluster has to say for so long that it does not have a job before that is believed: it may be starting up."""

_FIRST_S = 0.001
_EARLY_S = 0.0005
_TOLD_S = 0.05  # a scheduler that tells is not asked more often than this, however short the interval
_MOST_NEAR_S = 0.1
_GROWTH = 1.5
_GONE_PAUSE_S = 5.0
_LOOK_S = 60.0


class WaitTimeoutError(TorchXError, TimeoutError):
    """The job had not ended when the time limit of the wait was reached. It goes on."""

    exit_code = EXIT_BACKEND


class Waiter:
    """Waits for jobs; bears with schedulers that cannot be reached for a while, an engine that is restarted for one."""

    def __init__(self) -> None:
        self._outages: dict[str, Outage] = {}  # by job
        self._gone: dict[str, float] = {}  # of a job: since when

    def until_over(
        self,
        ask: Callable[[], AppStatus | None],
        scheduler: Scheduler[Any],
        app_id: str,
        *,
        interval_s: float,
        timeout_s: float | None,
        what: str,
        news: News | None = None,
    ) -> AppStatus | None:
        """Asks until the status is terminal, or None, or the job is gone.

        Pauses grow up to ``interval_s``. A scheduler that is told when a job ends (it has its own ``wait_for_end``) is
        slept on instead, for ``interval_s`` or the ``wait_hint`` of one that is far, whichever is longer.

        Args:
            ask: returns the status.
            timeout_s: gives up after so many seconds; None: never. 0 asks once.
            what: the handle of the job.
            news: sleep on these instead.

        Raises:
            WaitTimeoutError: the time is over.
            BackendError: the scheduler cannot be asked, for ten minutes where that may pass; or it says for
                :data:`UNSUBMITTED_S` that the job was not submitted.
        """
        began = time.monotonic()
        deadline = None if timeout_s is None else began + timeout_s
        submitted = False
        told = is_told(scheduler)
        pause, longest = _pauses(scheduler, interval_s)
        early = False
        while True:
            status = ask()
            if status is None or status.is_terminal():
                self._outages.pop(what, None)
                return status
            if status.gone and self._is_gone(what, is_near(scheduler)):
                return status
            nap = _GONE_PAUSE_S if status.gone else self.bear(what, status)
            submitted = submitted or str(status.state) != "UNSUBMITTED"
            if not submitted and time.monotonic() - began > UNSUBMITTED_S:
                raise never_submitted(what, time.monotonic() - began)
            left = interval_s if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeoutError(
                    f"`{what}` is {status.state} after {timeout_s:g} s of waiting",
                    hint="the job goes on; `torchx status` shows how it is",
                )
            if nap:
                time.sleep(min(nap, left))
                continue
            if news is not None:
                news.wait([what], _LOOK_S if deadline is None else left)
                continue
            if early or not told:
                time.sleep(min(pause, left))
                pause = min(pause * _GROWTH, longest)
            if told:
                most = max(interval_s, _TOLD_S, 0.0 if is_near(scheduler) else scheduler.wait_hint)
                # Early: it is over, or else there was nothing to sleep on.
                early = _slept_on(scheduler, app_id, most if deadline is None else min(most, left)) < _EARLY_S

    def _is_gone(self, what: str, near: bool) -> bool:
        """Whether to believe a scheduler that says again and again that it does not have a job that was there."""
        since = self._gone.setdefault(what, time.monotonic())
        if near or time.monotonic() - since >= GONE_S:
            del self._gone[what]
            return True
        return False

    def bear(self, what: str, status: AppStatus) -> float:
        """Seconds to sleep before a scheduler that could not be asked about ``what`` is asked again; 0: it could.

        From one call to the next it is the same outage.

        Raises:
            BackendError: why it cannot be asked: that does not pass, or has not for ten minutes.
        """
        self._gone.pop(what, None)
        if status.error is None:
            self._outages.pop(what, None)
            return 0.0
        if what not in self._outages:
            self._outages[what] = Outage(f"`{what}`", warn, now=time.monotonic)
        return self._outages[what].bear(status.error)


def never_submitted(what: str, seconds: float) -> BackendError:
    """The error for a job that its scheduler took, and says of it that nobody submitted it."""
    return BackendError(
        f"`{what}` is UNSUBMITTED, says its scheduler, {seconds:.0f} s after it took the job",
        hint="there is nothing to wait for; `torchx status` shows whether that changes",
    )


def _slept_on(scheduler: Scheduler[Any], app_id: str, most_s: float) -> float:
    """Sleeps until a scheduler that can wait reports the end of the job; returns the seconds slept, 0 on failure."""
    since = time.monotonic()
    try:
        scheduler.wait_for_end(app_id, most_s)
    except TransientError:
        return 0.0  # the next question shows whether that lasts
    return time.monotonic() - since


def is_told(scheduler: Scheduler[Any]) -> bool:
    """Whether the scheduler is told when a job ends."""
    from torchx.schedulers.api import Scheduler

    return scheduler.wait_for_end != MethodType(Scheduler.wait_for_end, scheduler)  # it has its own


def is_read(scheduler: Scheduler[Any]) -> bool:
    """Whether it is cheaper to read how a job is in the record, as whoever polls has seen it, than to ask."""
    from torchx.schedulers.api import Scheduler

    if not isinstance(scheduler, Scheduler) or not scheduler.capabilities.describe_many:
        return False
    return not is_near(scheduler) and not is_told(scheduler)


def _pauses(scheduler: Scheduler[Any], interval_s: float) -> tuple[float, float]:
    """The first and the longest pause between two questions, in seconds."""
    if is_near(scheduler):
        return min(_FIRST_S, interval_s), min(_MOST_NEAR_S, interval_s)
    return min(scheduler.wait_hint, interval_s), interval_s


def warn(message: str) -> None:
    """Warns the user."""
    logger("torchx.runner").warning(message)
