"""Parts of the JSON documents that several commands and the web page share; see ``docs/cli-json.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import EXIT_GONE, EXIT_JOB_FAILED, EXIT_NOT_ENDED, EXIT_OK
from torchx.specs import AppStatus, RoleStatus
from torchx.specs.api import parse_app_handle
from torchx.specs.failures import Failure, parse_failure
from torchx.util.term import iso

if TYPE_CHECKING:
    from torchx.runner.sweeps.sweeps import FailureGroup, SweepResults
    from torchx.runs import Run
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.specs.pace import JobPace
    from torchx.specs.tasks import TaskTable
    from torchx.specs.wishes.retries import Attempt


def handle_fields(handle: str) -> dict[str, Any]:
    """Return the parts of a handle, as in the JSON documents of all commands."""
    scheduler, session, app_id = parse_app_handle(handle)
    return {"handle": handle, "scheduler": scheduler, "session": session, "app_id": app_id}


def status_fields(status: AppStatus, *, roles: Sequence[str] | None = None) -> dict[str, Any]:
    """State, message, restarts, cause of failure, replicas; with ``roles`` only those."""
    return {
        "state": str(status.state),
        "msg": status.msg or None,
        "num_restarts": max(status.num_restarts, 0),
        "ui_url": status.ui_url,
        "cause": _cause(status),
        "hang": status.hang or None,
        "progress": _pace(status.pace),
        "attempts": [_attempt(attempt) for attempt in status.attempts],
        "usage": _usage(status) if status.usage else [],
        "tasks": None if status.tasks is None else _tasks(status.tasks),
        "roles": [_role(role) for role in status.roles if roles is None or role.role in roles],
    }


def metrics_fields(found: Sequence[ReplicaMetrics]) -> list[dict[str, Any]]:
    """Return the usage of replicas: limits, samples, and a summary of each attempt."""
    return [
        {
            "role": one.role,
            "replica": one.replica,
            "cpus": one.cpus,
            "memory_limit": one.memory_limit,
            "memory_peak": one.memory_peak(),
            "attempts": [vars(attempt) for attempt in one.summary()],
            "samples": [
                {**vars(sample), "at": iso(sample.at), "gpus": [vars(gpu) for gpu in sample.gpus]}
                for sample in one.samples
            ],
        }
        for one in found
    ]


def failures_fields(groups: Sequence[FailureGroup]) -> list[dict[str, Any]]:
    """Return the failed tasks of a sweep by cause, most frequent cause first."""
    return [{"class": group.kind, "cause": group.cause, "tasks": group.tasks} for group in groups]


def results_fields(results: SweepResults) -> list[dict[str, Any]]:
    """Return the results of each task of a sweep, with its values."""
    tasks = enumerate(zip(results.points, results.metadata, strict=True))
    return [
        {"task": k, "values": dict(zip(results.names, point, strict=True)), "metadata": dict(wrote)}
        for k, (point, wrote) in tasks
    ]


def exit_code_of(status: AppStatus) -> int:
    """Return the exit code by which a command reports the state of a job."""
    if status.gone:
        return EXIT_GONE
    if not status.is_terminal():
        return EXIT_NOT_ENDED
    return EXIT_OK if str(status.state) == "SUCCEEDED" else EXIT_JOB_FAILED


def run_fields(run: Run) -> dict[str, Any]:
    """Return the recorded fields of a run, without its AppDef."""
    return {
        "handle": run.handle,
        "scheduler": run.scheduler,
        "session": run.session,
        "app_id": run.app_id,
        "name": run.name,
        "state": str(run.state),
        "msg": run.msg or None,
        "note": run.note or None,
        "created_at": iso(run.created_at),
        "updated_at": iso(run.updated_at),
        "ended_at": iso(run.ended_at),
        "user": run.user or None,
        "host": run.host or None,
        "cwd": run.cwd or None,
        "image": run.image or None,
        "workspace": run.workspace or None,
        "git_commit": run.git_commit or None,
        "git_dirty": run.git_dirty,
        "parent_run_id": run.parent_run_id or None,
    }


def failure_fields(failure: Failure | None) -> dict[str, Any] | None:
    """Return the failure of a replica; None if nothing is known about it."""
    if failure is None:
        return None
    return {
        "summary": failure.summary(),
        "message": failure.message,
        "exit_code": failure.exit_code,
        "signal": failure.signal or None,
        "rank": failure.rank,
        "traceback": failure.traceback or None,
        "time": iso(failure.timestamp or None),
    }


def _cause(status: AppStatus) -> dict[str, Any] | None:
    """Return the verdict: the replica that failed first, and the class of the cause;
    None for a job that has not failed.
    """
    failure = None if str(status.state) == "SUCCEEDED" else parse_failure(status.structured_error_msg)
    if failure is None:
        return None
    return {
        "class": failure.kind or "unknown",
        "evidence": failure.evidence or None,
        "role": failure.role or None,
        "replica": failure.replica,
        "rank": failure.rank,
        "host": failure.host or None,
        "error": failure_fields(failure),
    }


def _pace(pace: JobPace | None) -> dict[str, Any] | None:
    """Return how far a job is, and its slowest rank."""
    if pace is None:
        return None
    slow = None if pace.slow is None else {**vars(pace.slow), "since": iso(pace.slow.since)}
    return {**vars(pace), "at": iso(pace.at), "slow": slow}


def _usage(status: AppStatus) -> list[dict[str, Any]]:
    from torchx.specs.fit import enough_of

    return [{**vars(one), "enough": enough_of(status, one)} for one in status.usage]


def _tasks(table: TaskTable) -> dict[str, Any]:
    """Return the tasks of a sweep: how many are in each state, and the numbers of failed tasks."""
    return {
        "total": len(table.states),
        "max_parallel": table.max_parallel or None,
        "counts": {state.name: n for state, n in table.counts().items()},
        "failed": table.failed(),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """One attempt of a job with a retry policy, and the changes for the next attempt."""
    return {
        "started_at": iso(attempt.started or None),
        "ended_at": iso(attempt.ended or None),
        "class": attempt.kind,
        "cause": attempt.cause or None,
        "hosts": attempt.hosts,
        "progress": attempt.progress,
        "retried": attempt.again,
        "reason": attempt.why,
        "used_s": attempt.used or None,
        "total_s": attempt.total or None,
        "next": {"avoid": attempt.avoid, "memory": attempt.memory},
    }


def _role(role: RoleStatus) -> dict[str, Any]:
    return {
        "role": role.role,
        "after": role.after,
        "ready": {"count": len(role.ready()), "needed": role.needs} if role.needs else None,
        "ends_job": role.ends_job,
        "replicas": [
            {
                "id": r.id,
                "state": str(r.state),
                "hostname": r.hostname or None,
                "hostaddr": r.hostaddr,
                "started_at": iso(r.started_at),
                "ended_at": iso(r.ended_at),
                "ready_at": iso(r.ready_at),
                "memory_peak": r.memory_peak,
                "memory_limit": r.memory_limit,
                "error": failure_fields(parse_failure(r.structured_error_msg)),
            }
            for r in role.replicas
        ],
    }
