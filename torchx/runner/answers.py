"""What the Runner says of a job, from what its scheduler and the record say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchx.errors import BackendError, NotFoundError
from torchx.specs.api import NONE, AppDef, AppState, AppStatus
from torchx.specs.copies import copy_data
from torchx.util.datetime import ago
from torchx.util.strings import did_you_mean

if TYPE_CHECKING:
    from torchx.runs import Run
    from torchx.schedulers.api import DescribeAppResponse

FRESH_S = 60.0
"""For this many seconds after a submission, a scheduler may not show the job yet."""

MOST_ENDED = 1000
"""Of so many jobs that have ended the status is kept."""


def message_of(found: DescribeAppResponse) -> str:
    """What the scheduler says of the job; empty when nothing."""
    return "" if found.msg == NONE else found.msg


def status_of(found: DescribeAppResponse, *, near: bool) -> AppStatus:
    """The status of a job that its scheduler knows.

    Args:
        near: the scheduler is on this machine, where a job starts when it is submitted.
    """
    if found.state is AppState.FAILED:
        from torchx.runner.secrets import learn_roles
        from torchx.schedulers.kit.verdict import on_answer

        learn_roles(found.roles)  # the cause may show one
        found = on_answer(found)
    return AppStatus(
        found.state,
        num_restarts=found.num_restarts,
        msg=message_of(found),
        structured_error_msg=found.structured_error_msg,
        ui_url=found.ui_url,
        roles=found.roles_statuses,
        started_at=found.started_at,
        ended_at=found.ended_at,
        created_at=found.started_at if near else None,
        attempts=found.attempts,
        hang=found.hang,
        tasks=found.tasks,
    )


def last_known(run: Run | None) -> AppStatus | None:
    """The status of a job that its scheduler does not know, from the record; None when there is none."""
    if run is None:
        return None
    if run.is_terminal():
        note = f"as last seen; `{run.scheduler}` no longer knows this job"
        return AppStatus(run.state, msg=f"{run.msg} ({note})" if run.msg else note)
    if is_fresh(run):
        return AppStatus(AppState.SUBMITTED, msg=f"`{run.scheduler}` does not show the job yet")
    return AppStatus(AppState.UNKNOWN, msg=lost(run), as_of=run.updated_at, gone=True)


def as_recorded(run: Run | None, error: BackendError) -> AppStatus:
    """The last state on record of a job whose scheduler cannot be queried.

    Raises:
        BackendError: there is no record of it.
    """
    if run is None:
        raise error
    note = f"last seen {run.state.name} {ago(run.updated_at)}; `{run.scheduler}` cannot be queried: {error}"
    msg = f"{run.msg} ({note})" if run.msg else note
    over = run.is_terminal()
    ended = run.ended_at if over else None
    return AppStatus(run.state, msg=msg, ended_at=ended, as_of=run.updated_at, error=error)


def is_fresh(run: Run) -> bool:
    """Whether the run was submitted so recently that its scheduler, which never showed it, may not do so yet."""
    return run.state in (AppState.UNSUBMITTED, AppState.SUBMITTED) and time.time() - run.created_at < FRESH_S


def lost(run: Run) -> str:
    """What to say of a run that its scheduler no longer knows."""
    return f"`{run.scheduler}` no longer knows this job; it was last seen {run.state.name}"


def definition(found: DescribeAppResponse | None, run: Run | None, app_id: str) -> AppDef | None:
    """The AppDef of a job: the scheduler's roles if it has them, else the record's, whose secrets are masked."""
    recorded = run.appdef() if run is not None else None
    if found is not None and found.roles:
        name, metadata = (recorded.name, recorded.metadata) if recorded is not None else (app_id, {})
        return AppDef(name, roles=found.roles, metadata=found.metadata or metadata)
    if recorded is None and found is not None:
        return AppDef(app_id, metadata=found.metadata)
    return recorded


def check_replica(replicas: Sequence[tuple[str, int]], handle: str, role_name: str, k: int) -> None:
    """Refuses a role or replica that the job does not have.

    Args:
        replicas: all that it has; none: the scheduler does not say.

    Raises:
        NotFoundError: the hint says what there is.
    """
    if not replicas or (role_name, k) in replicas:
        return
    of_role = [number for role, number in replicas if role == role_name]
    if not of_role:
        roles = list(dict.fromkeys(role for role, _ in replicas))
        raise NotFoundError(
            f"`{handle}` has no role `{role_name}`",
            hint=did_you_mean(role_name, roles) or f"its roles: {', '.join(roles)}",
        )
    last = max(of_role)
    there_is = f"there are 0 to {last}" if last else "there is only replica 0"
    raise NotFoundError(f"role `{role_name}` of `{handle}` has no replica `{k}`", hint=there_is)


class Jobs(list):  # type: ignore[type-arg]  # a base with an argument would import typing's machinery
    """A list of jobs that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from torchx.specs.html_pages import jobs_html

        return jobs_html(self)


class EndedJobs:
    """The last statuses of jobs of this machine that have ended, by handle: they stay so while their jobs are there.

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

    def __init__(self, most: int = MOST_ENDED) -> None:
        self._most = most
        self._kept: dict[str, tuple[AppStatus, Callable[[], bool]]] = {}

    def keep(self, handle: str, status: AppStatus, is_there: Callable[[], bool] | None) -> None:
        """Keeps the status, which remains the caller's own.

        Args:
            is_there: whether the job is still there, see :meth:`torchx.schedulers.api.Scheduler.still_there`; None:
                that is not known, and nothing is kept.
        """
        if is_there is None:
            return
        for oldest in list(self._kept)[: max(len(self._kept) - self._most + 1, 0)]:
            self._kept.pop(oldest, None)  # which another thread may have done
        self._kept[handle] = (copy_data(status), is_there)

    def status(self, handle: str) -> AppStatus | None:
        """A status of one's own; None when there is none, or the job was deleted."""
        kept = self._kept.get(handle)
        if kept is None:
            return None
        status, is_there = kept
        if not is_there():
            self._kept.pop(handle, None)
            return None
        copy: AppStatus = copy_data(status)
        return copy

    def clear(self) -> None:
        """Forgets all of them."""
        self._kept.clear()
