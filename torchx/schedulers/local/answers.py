"""Translates the state file of a local job into facts, and reads what its failed replicas left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from torchx.errors import BackendError
from torchx.schedulers.api import NONE, ListAppResponse
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures import Evidence, signal_name
from torchx.specs.api import AppState
from torchx.specs.tasks import TaskTable
from torchx.supervisor.layout import RETRY_FACT, WATCHED, replica_folder
from torchx.supervisor.statefile import CANCELLED, LOST, SUCCEEDED, TASKS, TERMINAL, JobState, ReplicaLine


def facts_of(job: JobState, folder: str) -> JobFacts:
    """Return the facts in the state file of a job, whose logs are in ``folder`` unless that file names another
    folder.
    """
    here = os.uname().nodename
    host = job.facts.get("host", "")
    over = job.state in TERMINAL
    roles, index = [], 0
    for name, count in job.roles:
        lines = job.replicas[index : index + count]
        members = [replica_facts(name, k, line, "localhost" if host == here else host) for k, line in enumerate(lines)]
        # only the supervisor knows whether it will restart failed replicas or continue without them
        goes_on = not over and job.first < 0 and any(member.state is not AppState.SUCCEEDED for member in members)
        # a job that succeeded although some replicas failed must be elastic
        failed = sum(member.state is AppState.FAILED for member in members)
        enough = len(members) - failed if failed and job.state == SUCCEEDED else None
        state = AppState[job.state] if goes_on else None
        roles.append(RoleFacts(name=name, replicas=members, state=state, min_replicas=enough))
        index += count
    attempts, hang = [], ""
    if RETRY_FACT in job.facts:
        from torchx.schedulers.batch.attempts import attempts_in

        attempts = attempts_in(folder)
    if WATCHED in job.facts:
        from torchx.supervisor.watchdog import seen

        hang = seen(folder)
    away = [f"as last heard from host `{host}`, where it runs"] if not over and host != here else []
    return JobFacts(
        app_id=job.facts.get("app_id", os.path.basename(folder)),
        roles=roles,
        state=AppState[job.state],
        native=job.state,
        reason="" if hang and not over else job.msg,
        kind=job.kind or ("lost" if any(line.state == LOST for line in job.replicas) else ""),
        cancelled=bool(job.kill_at),
        kill_in_s=job.kill_at - time.time() if job.kill_at else None,
        restarts=job.restarts,
        attempts=attempts,
        started=job.created or None,
        ended=job.ended or None,
        notes=away,
        hang=hang,
        tell_hosts=False,
        ui_url=f"file://{url_path(job.facts.get('logs', folder))}",
    )


def listed(job: JobState, folder: str) -> ListAppResponse:
    """Return the job's entry in a list."""
    from torchx.schedulers.kit.verdict import state_of

    facts = job.facts
    state = state_of_sweep(job) if TASKS in facts else state_of(facts_of(job, folder))
    return ListAppResponse(
        app_id=facts.get("app_id", ""),
        state=state,
        app_handle=facts.get("handle", NONE),
        name=facts.get("name", ""),
    )


def table_of(job: JobState) -> TaskTable:
    """Return the states of a sweep's tasks."""
    lines = job.replicas
    states = AppState.__members__
    return TaskTable(
        states=[states[line.state] for line in lines],
        exit_codes=[line.exit for line in lines],
        ended=[line.ended for line in lines],
        max_parallel=int(job.facts[TASKS]),
    )


def state_of_sweep(job: JobState) -> AppState:
    """Return the state of a sweep: it follows from its tasks while it runs; at the end its supervisor records it."""
    return AppState[job.state] if job.state in TERMINAL else table_of(job).state()


def replica_facts(role: str, k: int, line: ReplicaLine, host: str) -> ReplicaFacts:
    """Return the facts in a replica's line of the state file."""
    code, name = line.exit, ""
    if code is not None and code < 0:
        name, code = signal_name(-code), None
    return ReplicaFacts(
        role=role,
        replica=k,
        state=AppState[line.state],
        native=line.state,
        exit_code=code,
        signal=name,
        host=host,
        started=line.started,
        ended=line.ended,
        ready=line.ready,
        stopped=line.state == CANCELLED,
        kind="lost" if line.state == LOST else "",
    )


def look(logs: str, replicas: Sequence[ReplicaFacts], begins: Mapping[str, int] | None = None) -> list[Evidence]:
    """Read what replicas left behind below ``logs``: torchelastic's error file, and the end of their output."""
    from torchx.schedulers.batch.folders import left_by
    from torchx.schedulers.kit.files import LocalFiles

    folders = [replica_folder(logs, r.role, r.replica) for r in replicas]
    try:
        return left_by(LocalFiles(), folders, begins={f"{logs}/{path}": at for path, at in (begins or {}).items()})
    except BackendError:  # not readable; the exit codes are still known
        return [Evidence() for _ in replicas]


def url_path(path: str) -> str:
    """Return the path as a part of a ``file:`` URL."""
    if path.isascii() and not any(c in path for c in " %?#"):
        return path
    from urllib.parse import quote

    return quote(os.fsencode(path))
