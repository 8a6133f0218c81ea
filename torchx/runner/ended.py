"""Statuses of jobs of this machine that have ended: each stays the same for as long as its job is there."""

from __future__ import annotations

from torchx.specs.api import AppStatus
from torchx.specs.copies import copy_data
from torchx.specs.status import STATUS_ROLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST = 1000


class EndedJobs:
    """The last statuses of jobs, by handle.

    Args:
        most: how many are kept; all others are asked for again.

    >>> from torchx.specs.api import AppState
    >>> jobs, there = EndedJobs(), ["job-1"]
    >>> jobs.keep("local_cwd://s/job-1", AppStatus(AppState.SUCCEEDED), lambda: "job-1" in there)
    >>> jobs.status("local_cwd://s/job-1").state
    SUCCEEDED (4)
    >>> there.clear()
    >>> jobs.status("local_cwd://s/job-1") is None
    True
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._kept: dict[str, tuple[dict[str, Any], Callable[[], bool]]] = {}

    def keep(self, handle: str, status: AppStatus, is_there: Callable[[], bool] | None) -> None:
        """Keeps the status, which remains the caller's own.

        Args:
            is_there: whether the job is still there, see :meth:`torchx.schedulers.api.Scheduler.still_there`; None:
                that is not known, and nothing is kept.
        """
        if is_there is None:
            return
        roles = STATUS_ROLES.lent(status)
        kept = AppStatus(status.state)
        vars(kept).update(vars(status))
        STATUS_ROLES.lend(kept, copy_data(status.roles) if roles is None else roles)
        for oldest in list(self._kept)[: max(len(self._kept) - self._most + 1, 0)]:
            self._kept.pop(oldest, None)  # which another thread may have done
        self._kept[handle] = (vars(kept), is_there)

    def status(self, handle: str) -> AppStatus | None:
        """A status of one's own; None when there is none, or the job was deleted."""
        kept = self._kept.get(handle)
        if kept is None:
            return None
        if not kept[1]():
            self._kept.pop(handle, None)
            return None
        # By hand: programs ask for the status of thousands of jobs again and again.
        status = AppStatus.__new__(AppStatus)
        status.__dict__ = kept[0].copy()
        return status

    def clear(self) -> None:
        """Forgets all of them."""
        self._kept.clear()
