"""Builds the status of a job from its scheduler's answer, or from the run registry."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchx.errors import BackendError, NotFoundError
from torchx.specs.api import NONE, AppDef, AppState, AppStatus, is_terminal
from torchx.specs.copies import copy_data
from torchx.util.datetime import ago
from torchx.util.records import replace
from torchx.util.strings import did_you_mean

if TYPE_CHECKING:
    from torchx.runs import Run
    from torchx.schedulers.api import DescribeAppResponse
    from torchx.specs.api import ReplicaStatus

FRESH_S = 60.0
"""For this many seconds after a submission, a scheduler may not list the job yet."""

MAX_ENDED = 1000
"""How many statuses of jobs that have ended are cached: the latest."""


def message_of(found: DescribeAppResponse) -> str:
    """Return the scheduler's message about the job; empty if there is none."""
    return "" if found.msg == NONE else found.msg


def status_of(found: DescribeAppResponse, *, near: bool) -> AppStatus:
    """Build the status from a scheduler's answer; ``near``: it runs on this machine, where jobs start at once."""
    if found.state is AppState.FAILED or found.attempts:
        from torchx.runner.ground.secrets import learn_roles

        learn_roles(found.roles)  # the cause may contain a secret
    if found.state is AppState.FAILED:
        from torchx.schedulers.kit.verdict import on_answer

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


def with_cause(found: DescribeAppResponse, before: Callable[[], AppStatus | None]) -> DescribeAppResponse:
    """Return the answer about a failed job with the cause that an earlier one had, if the cluster has deleted the
    objects that showed it.

    Args:
        before: returns the status on record.
    """
    if found.state is not AppState.FAILED or _blames(found.structured_error_msg, or_class=True):
        return found
    from torchx.schedulers.kit.verdict import on_answer

    known = before()
    replicas = [replica for role in known.roles for replica in role.replicas] if known is not None else []
    ended = known is not None and _blames(known.structured_error_msg)
    if known is None or not (ended or any(_blames(r.structured_error_msg) for r in replicas)):
        return found
    now = {(r.role, r.id): r for role in found.roles_statuses for r in role.replicas}
    kept = copy_data(known.roles)
    for role in kept:
        role.replicas = [_last_seen(r, now.get((r.role, r.id), r)) for r in role.replicas]
    found = replace(found, num_restarts=max(found.num_restarts, known.num_restarts))
    if ended:
        return replace(found, msg=known.msg, structured_error_msg=known.structured_error_msg, roles_statuses=kept)
    return on_answer(replace(found, structured_error_msg=NONE, roles_statuses=kept))


def _last_seen(before: ReplicaStatus, now: ReplicaStatus) -> ReplicaStatus:
    """Return the status that shows the end of a replica: a restart may have been its last."""
    if is_terminal(before.state):
        return before
    return replace(before, state=AppState.FAILED) if _blames(before.structured_error_msg) else now


def _blames(structured_error_msg: str, *, or_class: bool = False) -> bool:
    """Whether the error names the replica that failed; with ``or_class`` also, why the job as a whole has."""
    from torchx.specs.failures import parse_failure

    failure = parse_failure(structured_error_msg)
    return failure is not None and bool(failure.role or (or_class and failure.kind not in ("", "unknown", "lost")))


def last_known(run: Run | None) -> AppStatus | None:
    """Return the recorded status of a job that its scheduler does not know; None if the job is not on record."""
    if run is None:
        return None
    if run.is_terminal():
        return AppStatus(run.state, msg=_with_note(run, f"as last seen; `{run.scheduler}` no longer knows this job"))
    if is_fresh(run):
        return AppStatus(AppState.SUBMITTED, msg=f"`{run.scheduler}` does not show the job yet")
    return AppStatus(AppState.UNKNOWN, msg=lost(run), as_of=run.updated_at, gone=True)


def as_recorded(run: Run | None, error: BackendError) -> AppStatus:
    """Return the last recorded status of a job whose scheduler cannot be queried;
    raises ``error`` if it is not on record.
    """
    if run is None:
        raise error
    note = f"last seen {run.state.name} {ago(run.updated_at)}; `{run.scheduler}` cannot be queried: {error}"
    ended_at = run.ended_at if run.is_terminal() else None
    return AppStatus(run.state, msg=_with_note(run, note), ended_at=ended_at, as_of=run.updated_at, error=error)


def _with_note(run: Run, note: str) -> str:
    return f"{run.msg} ({note})" if run.msg else note


def whole(handle: str) -> str:
    """Return the handle of a task's sweep; that of any other job is unchanged."""
    return handle.rpartition("/")[0] if handle.count("/") > 3 else handle


def is_fresh(run: Run) -> bool:
    """Whether the run was submitted so recently that its scheduler may not list it yet."""
    return run.state in (AppState.UNSUBMITTED, AppState.SUBMITTED) and time.time() - run.created_at < FRESH_S


def lost(run: Run) -> str:
    """Return the message for a run that its scheduler no longer knows."""
    return f"`{run.scheduler}` no longer knows this job; it was last seen {run.state.name}"


def definition(found: DescribeAppResponse | None, run: Run | None, app_id: str) -> AppDef | None:
    """Return the AppDef of a job: the scheduler's roles if it reports them, else the recorded ones,
    with secrets masked.
    """
    recorded = run.appdef() if run is not None else None
    if found is not None and found.roles:
        name, metadata = (recorded.name, recorded.metadata) if recorded is not None else (app_id, {})
        return AppDef(name, roles=found.roles, metadata=found.metadata or metadata)
    if recorded is None and found is not None:
        return AppDef(app_id, metadata=found.metadata)
    return recorded


def check_replica(replicas: Sequence[tuple[str, int]], handle: str, role_name: str, k: int) -> None:
    """Raise NotFoundError for a role or replica that is not in ``replicas``; if those are unknown, checks nothing."""
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
    """A list of jobs that a notebook renders as a table."""

    def _repr_html_(self) -> str:
        from torchx.render.html_pages import jobs_html

        return jobs_html(self)


class EndedJobs:
    """Caches the final statuses of local jobs by handle; an entry is valid as long as its job exists."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[AppStatus, Callable[[], bool]]] = {}

    def keep(self, handle: str, status: AppStatus, is_there: Callable[[], bool] | None) -> None:
        """Cache a copy of the status; ``is_there`` is that of :meth:`torchx.schedulers.api.Scheduler.still_there`."""
        if is_there is None:
            return
        for oldest in list(self._entries)[: max(len(self._entries) - MAX_ENDED + 1, 0)]:
            self._entries.pop(oldest, None)  # another thread may have removed it
        self._entries[handle] = (copy_data(status), is_there)

    def status(self, handle: str) -> AppStatus | None:
        """Return a copy of the cached status; None if there is none, or the job was deleted."""
        entry = self._entries.get(handle)
        if entry is None:
            return None
        status, is_there = entry
        if not is_there():
            self._entries.pop(handle, None)
            return None
        copy: AppStatus = copy_data(status)
        return copy

    def clear(self) -> None:
        self._entries.clear()
