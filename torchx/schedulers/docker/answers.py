"""Converts the engine's container list into the facts of a job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse
from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.containers import LABEL_APP_NAME, LABEL_SESSION, Container, Job
from torchx.schedulers.docker.evidence import History, Look, attempts_of, hang_of, history_of, late_of
from torchx.schedulers.docker.gangs import Step
from torchx.schedulers.kit import verdict
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures import SHELL, signal_name
from torchx.specs.api import AppState, Role, is_terminal, make_app_handle
from torchx.specs.wishes.retries import Attempt
from torchx.util.records import replace

_CUT_SHORT_S = 600.0
_CUT_SHORT = "the submission was cut short: not all replicas were started"
_NO_DECISION = "its retry policy could not be evaluated, and it was not started again"
_REMOVED = "its container was removed from the engine, how it ended is not known"


def facts_of(
    job: Job,
    history: History | None = None,
    *,
    definition: Sequence[Role] = (),
    attempts: Sequence[Attempt] = (),
    hang: str = "",
    why: str = "",
    now: float | None = None,
) -> JobFacts:
    """Return the facts of a job. If a replica's container was removed, the job fails as soon as no other replica runs.

    ``history`` has the ends of its containers, if it has ended or is being ended; ``attempts`` are the finished ones of
    a job with a retry policy; ``hang`` is the last finding of its watchdog; ``why`` says which role was not ready in
    time. ``now``: Unix time; the clock's if None.
    """
    step, now = gangs.next_step(job), time.time() if now is None else now
    cancelled = any(c.mark.cancelled for c in job.containers)
    unattended = not gangs.rules_of(job).place and not cancelled
    roles = _roles(job, step, history.ended if history else {}, now)
    members = [r for role in roles for r in role.replicas]
    removed = [r for r in members if r.reason == _REMOVED]
    over = all(is_terminal(c.state) for c in job.containers)
    late = not cancelled and any(c.mark.late for c in job.containers)
    return JobFacts(
        app_id=job.app_id,
        roles=roles,
        state=_state_of(job, step, late=late and over) if not unattended or late else None,
        reason=(why or _why_late(job, hang)) if late else "",
        kind="timeout" if late else "",
        cancelled=cancelled and not removed,  # otherwise the watcher stopped them because a container is missing
        kill_in_s=_kill_in_s(job, history, now),
        unattended=unattended,
        restarts=_restarts(job, history),
        attempts=attempts,
        hang=hang,
        started=min(c.created for c in job.containers),
        ended=history.ended_at if history and over else None,
        notes=_notes(members, removed, step.stop if unattended else ()),
        tell_hosts=False,  # a container's name already contains role and replica
        definition=definition,
    )


def _kill_in_s(job: Job, history: History | None, now: float) -> float | None:
    signalled = history.signalled if history else {}
    asked = [
        signalled[c.id] for c in job.containers if c.mark.cancelled and not is_terminal(c.state) and c.id in signalled
    ]
    return max(asked) + gangs.rules_of(job).grace_s - now if asked else None


def _why_late(job: Job, hang: str) -> str:
    rules = gangs.rules_of(job)
    if any(c.mark.silent for c in job.containers):
        if hang or not rules.watchdog:
            return hang or f"it was idle for longer than allowed (`{rules.idle}`)"
        return f"it was silent for longer than its watchdog allows (`{rules.watchdog}`)"
    return f"it reached its time limit{' of ' + rules.timeout if rules.timeout else ''}"


def _state_of(job: Job, step: Step, *, late: bool) -> AppState | None:
    """Return RUNNING while a failure is not final: replicas are being stopped, or another attempt may start."""
    again = {c.id for c in step.again}
    failed = any(c.state is AppState.FAILED and c.id not in again for c in job.containers)
    if step.stop or step.end or step.ask or (again and failed):
        return AppState.RUNNING
    return AppState.FAILED if late else None


def describe(job: Job, client: Any | None = None) -> DescribeAppResponse:
    """Return the answer of ``describe``.

    A ``client`` is queried for attempts, times and causes, beyond the container list.
    """
    attempts, hang = (attempts_of(client, job), hang_of(client, job)) if client else ([], "")
    asked = gangs.ends(job) or any(c.mark.cancelled for c in job.containers)
    past = history_of(client, job) if client and asked else None
    why = late_of(client, job) if client else ""
    facts = facts_of(job, past, definition=job.roles(), attempts=attempts, hang=hang, why=why)
    if past is None:
        return verdict.describe(facts)
    if any(c.mark.final and not c.mark.silent for c in job.containers) and len(attempts) <= gangs.waves(job):
        facts = replace(facts, notes=[*facts.notes, _NO_DECISION])
    # Evidence takes four calls per replica: examine a second one only if the first is not the cause.
    return verdict.describe(facts, Look(client, job, past, attempts), at_once=1)


def listed(job: Job) -> ListAppResponse:
    """Return the job's line in a list."""
    answer = ListAppResponse(job.app_id, verdict.state_of(facts_of(job)), name=job.labelled(LABEL_APP_NAME))
    if session := job.labelled(LABEL_SESSION):
        answer.app_handle = make_app_handle("local_docker", session, job.app_id)
    return answer


def _roles(job: Job, step: Step, ended: Mapping[str, float], now: float) -> list[RoleFacts]:
    containers = {(c.role, c.k): c for c in job.containers}
    again, orders = {c.id for c in step.again}, gangs.orders_of(job)
    submitting = any(c.state is AppState.SUBMITTED for c in job.containers)
    cut_short = submitting and now - max(c.created for c in job.containers) > _CUT_SHORT_S
    alive = any(not is_terminal(c.state) for c in job.containers)

    def replica(role: str, k: int) -> ReplicaFacts:
        container = containers.get((role, k))
        if cut_short and (container is None or container.state is AppState.SUBMITTED):
            host = container.name if container else ""
            return ReplicaFacts(role=role, replica=k, state=AppState.FAILED, reason=_CUT_SHORT, kind="lost", host=host)
        if container is not None:
            return _of_container(container, again=container.id in again, ended=ended.get(container.id, 0.0))
        if submitting:
            return ReplicaFacts(role=role, replica=k, state=AppState.SUBMITTED)
        state = AppState.UNKNOWN if alive else AppState.FAILED
        return ReplicaFacts(role=role, replica=k, state=state, reason=_REMOVED, kind="lost")

    return [
        RoleFacts(
            name=name,
            min_replicas=least,
            replicas=[replica(name, k) for k in range(count)],
            ends_job=orders.get(name, {}).get("ends_job", False),
        )
        for name, count, least in job.sizes()
    ]


def _of_container(container: Container, *, again: bool, ended: float) -> ReplicaFacts:
    code = container.exit_code
    signal = signal_name(code) if code is not None and code > SHELL else ""
    lost = container.state is AppState.FAILED and code is None
    return ReplicaFacts(
        role=container.role,
        replica=container.k,
        state=AppState.PENDING if again and is_terminal(container.state) else container.state,
        native=container.raw,
        exit_code=None if signal else code,
        signal=signal,
        host=container.name,
        address=container.address or None,
        ready=float(container.mark.ready),
        ended=ended if is_terminal(container.state) else 0.0,  # a running container: the end of its previous run
        reason="the engine lost it" if lost else "",
        kind="lost" if lost else "",
        stopped=container.mark.cancelled or container.mark.ended or container.mark.late,
    )


def _notes(members: Sequence[ReplicaFacts], removed: Sequence[ReplicaFacts], running: Sequence[Container]) -> list[str]:
    """Return what a user should know besides the cause: removed containers,
    and ``running`` ones that no watcher will stop.
    """
    notes = [f"{r.role}/{r.replica}: {_REMOVED}" for r in removed]
    if running and any(r.state is AppState.FAILED for r in members):
        them = "1 replica is" if len(running) == 1 else f"{len(running)} replicas are"
        notes.append(f"{them} still running: see `torchx cancel`")
    return notes


def _restarts(job: Job, history: History | None) -> int:
    """Return the number of restarts in a job; -1 if only the engine's events would show it."""
    together = gangs.waves(job)
    if history is not None:
        return together + history.restarts
    by_engine = any(policy == gangs.REPLICA and most > 0 for most, policy in gangs.rules_of(job).retries.values())
    return together if together or not by_engine else -1
