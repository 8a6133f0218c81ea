"""The engine's list of a job's containers as facts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse
from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.containers import LABEL_APP_NAME, LABEL_SESSION, Container, Job
from torchx.schedulers.docker.evidence import History, Look, attempts_of, hang_of, history_of
from torchx.schedulers.docker.gangs import Step
from torchx.schedulers.failures import SHELL, signal_name
from torchx.schedulers.kit import verdict
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.specs.api import AppState, Role, is_terminal, make_app_handle
from torchx.specs.retries import Attempt
from torchx.util.records import replace

_CUT_SHORT_S = 600.0
_CUT_SHORT = "the submission was cut short: not all replicas were started"
_UNASKED = "its retry policy could not be asked, and it was not started again"
_REMOVED = "its container was removed from the engine, how it ended is not known"


def facts_of(
    job: Job,
    history: History | None = None,
    *,
    definition: Sequence[Role] = (),
    attempts: Sequence[Attempt] = (),
    hang: str = "",
    now: float | None = None,
) -> JobFacts:
    """What is known of a job.

    A replica whose container was removed counts as lost: its job can only fail, once nothing of it runs any more.

    Args:
        history: of a job that has ended, or is being ended.
        definition: the roles as they were submitted, where somebody asks for them.
        attempts: those that have ended, of a job with a retry policy.
        hang: what its watchdog saw, where somebody asks for it.
        now: Unix time.
    """
    step = gangs.next_step(job)
    cancelled = any(c.mark.cancelled for c in job.containers)
    unattended = not gangs.rules_of(job).place and not cancelled
    replicas = _Replicas(job, step, history.ended if history else {}, time.time() if now is None else now)
    roles = [
        RoleFacts(name=name, min_replicas=least, replicas=[replicas.get(name, k) for k in range(count)])
        for name, count, least in job.sizes()
    ]
    members = [r for role in roles for r in role.replicas]
    removed = [r for r in members if r.reason == _REMOVED]
    over = all(is_terminal(c.state) for c in job.containers)
    late = not cancelled and any(c.mark.late for c in job.containers)
    return JobFacts(
        app_id=job.app_id,
        roles=roles,
        state=_state_of(job, step, late=late and over) if not unattended or late else None,
        reason=_why_late(job, hang) if late else "",
        kind="timeout" if late else "",
        cancelled=cancelled and not removed,  # else they are ended for the lack of it
        unattended=unattended,
        restarts=_restarts(job, history),
        attempts=attempts,
        hang=hang,
        started=min(c.created for c in job.containers),
        ended=history.ended_at if history and over else None,
        notes=_notes(members, removed, step.stop if unattended else ()),
        tell_hosts=False,  # a container's name has that of its replica in it
        definition=definition,
    )


def _why_late(job: Job, hang: str) -> str:
    rules = gangs.rules_of(job)
    if any(c.mark.silent for c in job.containers):
        return hang or f"it was silent for longer than its watchdog allows (`{rules.watchdog}`)"
    return f"it reached its time limit{' of ' + rules.timeout if rules.timeout else ''}"


def _state_of(job: Job, step: Step, *, late: bool) -> AppState | None:
    """RUNNING while failures do not decide: some have to end, or there may be another attempt, or it is being begun."""
    again = {c.id for c in step.again}
    failed = any(c.state is AppState.FAILED and c.id not in again for c in job.containers)
    if step.stop or step.end or step.ask or (again and failed):
        return AppState.RUNNING
    return AppState.FAILED if late else None


def describe(job: Job, client: Any | None = None) -> DescribeAppResponse:
    """The answer on a job.

    Args:
        client: of the engine, which is asked about a job that has ended or is being ended; None: it is not asked.
    """
    attempts, hang = (attempts_of(client, job), hang_of(client, job)) if client else ([], "")
    past = history_of(client, job) if client and gangs.ends(job) else None
    facts = facts_of(job, past, definition=job.roles(), attempts=attempts, hang=hang)
    if past is None:
        return verdict.describe(facts)
    if any(c.mark.final for c in job.containers) and len(attempts) <= gangs.waves(job):
        facts = replace(facts, notes=[*facts.notes, _UNASKED])
    # A look takes four calls: more than one replica is looked into only where the first is a victim.
    return verdict.describe(facts, Look(client, job, past, attempts), at_once=1)


def listed(job: Job) -> ListAppResponse:
    """The job's line in a list."""
    answer = ListAppResponse(job.app_id, verdict.state_of(facts_of(job)), name=job.labelled(LABEL_APP_NAME))
    if session := job.labelled(LABEL_SESSION):
        answer.app_handle = make_app_handle("local_docker", session, job.app_id)
    return answer


class _Replicas:
    """The replicas of a job: those whose containers are there, and the others."""

    def __init__(self, job: Job, step: Step, ended: Mapping[str, float], now: float) -> None:
        self._present = {(c.role, c.k): c for c in job.containers}
        self._again = {c.id for c in step.again}
        self._ended = ended
        self._waiting = any(c.state is AppState.SUBMITTED for c in job.containers)
        self._cut = self._waiting and now - max(c.created for c in job.containers) > _CUT_SHORT_S
        self._alive = any(not is_terminal(c.state) for c in job.containers)

    def get(self, role: str, k: int) -> ReplicaFacts:
        """The facts of one of them."""
        seen = self._present.get((role, k))
        if self._cut and (seen is None or seen.state is AppState.SUBMITTED):
            host = seen.name if seen else ""
            return ReplicaFacts(role=role, replica=k, state=AppState.FAILED, reason=_CUT_SHORT, kind="lost", host=host)
        if seen is not None:
            return _of_container(seen, again=seen.id in self._again, ended=self._ended.get(seen.id, 0.0))
        if self._waiting:
            return ReplicaFacts(role=role, replica=k, state=AppState.SUBMITTED)
        state = AppState.UNKNOWN if self._alive else AppState.FAILED
        return ReplicaFacts(role=role, replica=k, state=state, reason=_REMOVED, kind="lost")


def _of_container(seen: Container, *, again: bool, ended: float) -> ReplicaFacts:
    code, signal = seen.exit_code, ""
    if code is not None and code > SHELL:
        signal = signal_name(code)
    lost = seen.state is AppState.FAILED and code is None
    return ReplicaFacts(
        role=seen.role,
        replica=seen.k,
        state=AppState.PENDING if again and is_terminal(seen.state) else seen.state,
        native=seen.raw,
        exit_code=None if signal else code,
        signal=signal,
        host=seen.name,
        address=seen.address or None,
        ended=ended if is_terminal(seen.state) else 0.0,  # else it is that of an attempt before
        reason="the engine lost it" if lost else "",
        kind="lost" if lost else "",
        stopped=seen.mark.cancelled or seen.mark.ended or seen.mark.late,
    )


def _notes(members: Sequence[ReplicaFacts], removed: Sequence[ReplicaFacts], running: Sequence[Container]) -> list[str]:
    """What is out of the ordinary beside the cause.

    Args:
        running: those that nobody ends.
    """
    notes = [f"{r.role}/{r.replica}: {_REMOVED}" for r in removed]
    if running and any(r.state is AppState.FAILED for r in members):
        them = "1 replica is" if len(running) == 1 else f"{len(running)} replicas are"
        notes.append(f"{them} still running: see `torchx cancel`")
    return notes


def _restarts(job: Job, history: History | None) -> int:
    """How often anything was started again, as far as that is known."""
    together = gangs.waves(job)
    if history is not None:
        return together + history.restarts
    by_engine = any(policy == gangs.REPLICA and most > 0 for most, policy in gangs.rules_of(job).retries.values())
    return together if together or not by_engine else -1
