"""Waits for the end of a job: polls its scheduler at growing intervals, or sleeps until the scheduler reports it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from torchx.errors import EXIT_BACKEND, BackendError, TorchXError, TransientError
from torchx.runner.ground.backends import is_near
from torchx.specs.api import AppState, AppStatus
from torchx.util.notices import logger
from torchx.util.outages import Outage

if TYPE_CHECKING:
    from torchx.runner.watching.changes import StatusFeed
    from torchx.schedulers.api import Scheduler

UNSUBMITTED_S = 120.0
"""The wait ends with an error if a job is still UNSUBMITTED after this time."""

GONE_S = 15.0
"""How long a cluster must report a job as unknown before the wait ends: the cluster may be starting up."""

_FIRST_S = 0.001
_EARLY_S = 0.0005
_LEAST_SLEEP_S = 0.05  # minimum time between polls of a scheduler that reports the end, however short the interval
_MAX_NEAR_S = 0.1
_GROWTH = 1.5
_GONE_PAUSE_S = 5.0
_LOOK_S = 60.0
_AGAIN_S = 0.5


class WaitTimeoutError(TorchXError, TimeoutError):
    """The job did not end within the time limit of the wait. It keeps running.

    Args:
        handle: app handle of the job; empty if tasks of a sweep were awaited.
        state: its last state.
    """

    exit_code = EXIT_BACKEND

    def __init__(self, message: str = "", *, handle: str = "", state: AppState | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.handle = handle
        self.state = state


class Waiter:
    """Waits for jobs, and tolerates temporary outages of their schedulers, such as a restart of the Docker engine."""

    def __init__(self) -> None:
        self._outages: dict[str, Outage] = {}  # by job
        self._gone: dict[str, float] = {}  # job to the time since which its scheduler does not know it
        self._unsubmitted: dict[str, float] = {}  # job to the time since which it is UNSUBMITTED; infinity: it is not

    def until_over(
        self,
        ask: Callable[[], AppStatus | None],
        scheduler: Scheduler[Any],
        app_id: str,
        *,
        interval_s: float,
        timeout_s: float | None,
        what: str,
        news: StatusFeed | None = None,
    ) -> AppStatus | None:
        """Poll until the status is terminal or None, or the scheduler no longer knows the job.

        Pauses grow up to ``interval_s``. If the scheduler reports the end of a job (it overrides ``wait_for_end``),
        that call replaces the pause, with a timeout of ``interval_s``, or of ``wait_hint`` if the scheduler is remote
        and that is longer. Errors are those of :meth:`Runner.wait`.

        Args:
            timeout_s: None: no limit; 0: poll once.
            what: the handle of the job.
            news: sleep on these instead.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        reports_end = reports_ends(scheduler)
        pause, longest = _pauses(scheduler, interval_s)
        early = False
        while True:
            status = _answer(ask, what)
            if status is None or status.is_terminal():
                self._outages.pop(what, None)
                self._unsubmitted.pop(what, None)
                return status
            nap = self.pause_s(what, status, near=is_near(scheduler))
            if nap is None:
                return status
            self._check_submitted(what, status.state)
            left = deadline - time.monotonic()
            if timeout_s is not None and left <= 0:
                raise timed_out(what, status.state, timeout_s)
            if nap:
                time.sleep(min(nap, left))
                continue
            if news is not None:
                news.wait([what], min(_LOOK_S, left))
                continue
            if early or not reports_end:
                time.sleep(min(pause, left))
                pause = min(pause * _GROWTH, longest)
            if reports_end:
                most = max(interval_s, _LEAST_SLEEP_S, 0.0 if is_near(scheduler) else scheduler.wait_hint)
                # It returned early: the job has ended, or the scheduler could not wait.
                early = _sleep_until_end(scheduler, app_id, min(most, left)) < _EARLY_S

    def pause_s(self, what: str, status: AppStatus, *, near: bool) -> float | None:
        """As :meth:`retry_pause_s`; None if the scheduler of the job has reported it as unknown for long enough."""
        if not status.gone:
            return self.retry_pause_s(what, status)
        since = self._gone.setdefault(what, time.monotonic())
        if near or time.monotonic() - since >= GONE_S:
            self._gone.pop(what, None)  # another thread that waits for the job may have removed it
            return None
        return _GONE_PAUSE_S

    def _check_submitted(self, what: str, state: AppState) -> None:
        """Raise BackendError for a job that was accepted, but has been UNSUBMITTED for too long."""
        now = time.monotonic()
        since = self._unsubmitted.setdefault(what, now)
        if state is not AppState.UNSUBMITTED:
            self._unsubmitted[what] = math.inf
        elif now - since > UNSUBMITTED_S:
            self._unsubmitted.pop(what, None)  # a caller that waits again gets the full time
            raise BackendError(
                f"`{what}` is still UNSUBMITTED {now - since:.0f} s after its scheduler accepted it",
                hint="there is nothing to wait for; `torchx status` shows whether that changes",
            )

    def retry_pause_s(self, what: str, status: AppStatus) -> float:
        """Return the seconds to sleep before a failed query is retried; 0 if the query succeeded.

        Consecutive failures for one job ``what`` belong to one outage. Raises the error if it is permanent, or the
        outage has lasted for ten minutes.
        """
        self._gone.pop(what, None)
        if status.error is None:
            self._outages.pop(what, None)
            return 0.0
        if what not in self._outages:
            self._outages[what] = Outage(f"`{what}`", warn, now=time.monotonic)
        return self._outages[what].retry_delay_s(status.error)


def _answer(ask: Callable[[], AppStatus | None], what: str) -> AppStatus | None:
    """Query; once more if a scheduler of another package fails with an error of its own, for it may be a race.

    Docker's package for Python raises ``NotFound`` if a container is removed, at its end, while containers are listed.
    """
    try:
        return ask()
    except TorchXError:
        raise
    except Exception as e:
        warn(f"the query of `{what}` is repeated, it failed: {type(e).__name__}: {e}")
    time.sleep(_AGAIN_S)
    return ask()


def timed_out(handle: str, state: AppState | None, timeout_s: float) -> WaitTimeoutError:
    """Return the error for a job that has not ended within ``timeout_s``."""
    return WaitTimeoutError(
        f"`{handle}` is {state} after {timeout_s:g} s of waiting",
        handle=handle,
        state=state,
        hint="the job keeps running; `torchx status` shows its state",
    )


def _sleep_until_end(scheduler: Scheduler[Any], app_id: str, most_s: float) -> float:
    """Sleeps until the scheduler reports the end of the job; returns the seconds slept, 0 on failure."""
    since = time.monotonic()
    try:
        scheduler.wait_for_end(app_id, most_s)
    except TransientError:
        return 0.0  # the next query handles an outage
    return time.monotonic() - since


def reports_ends(scheduler: Scheduler[Any]) -> bool:
    """Whether the scheduler reports the end of a job: it overrides ``wait_for_end``."""
    from torchx.schedulers.api import Scheduler

    return scheduler.wait_for_end != MethodType(Scheduler.wait_for_end, scheduler)


def is_polled(scheduler: Scheduler[Any]) -> bool:
    """Whether one process of this machine polls the scheduler for all others, which read the run registry."""
    from torchx.schedulers.api import Scheduler

    if not isinstance(scheduler, Scheduler) or not scheduler.capabilities.describe_many:
        return False
    return not is_near(scheduler) and not reports_ends(scheduler)


def _pauses(scheduler: Scheduler[Any], interval_s: float) -> tuple[float, float]:
    """Return the first and the longest pause between two polls, in seconds."""
    if is_near(scheduler):
        return min(_FIRST_S, interval_s), min(_MAX_NEAR_S, interval_s)
    return min(scheduler.wait_hint, interval_s), interval_s


def warn(message: str) -> None:
    logger("torchx.runner").warning(message)
