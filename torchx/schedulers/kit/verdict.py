"""Computes the verdict on a job: its state, the replica that failed first, the class of the cause, and a sentence.

Backends report :class:`~torchx.schedulers.kit.facts.JobFacts`. All readers (``status``, ``list``, ``wait``, ``--json``,
notices, retries) use the verdict on them. Four rules:

1. *Fold*: the state of a gang follows from its members (:func:`fold`). The state that the scheduler or the owner of a
   role reports takes precedence, but nothing has ended while one of its replicas runs.
2. *Blame*: a replica that only lost its peer, or was ended because of others, is never the cause if another one has a
   reason of its own, even if that one ended later.
3. *Class*: the backend's own reason decides, else what the replica left behind
   (:mod:`torchx.schedulers.kit.failures.classes`).
4. *Sentence*: ``trainer/0 rank 1 on n3: exit code 1: no data in /data``, followed by further reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchx.schedulers.api import NONE, DescribeAppResponse
from torchx.specs.api import AppState, ReplicaStatus, RoleStatus, is_terminal
from torchx.specs.states import CANCELLING
from torchx.util.records import dataclass, replace

if TYPE_CHECKING:
    from torchx.schedulers.kit.facts import JobFacts, Look, ReplicaFacts, RoleFacts
    from torchx.schedulers.kit.failures.reader import Evidence
    from torchx.specs.failures import Failure

    _Position = tuple[str, int]

_AT_ONCE = 8
"""How many failed replicas are inspected in one round."""

_MAX = 32
"""How many are inspected in total, in further rounds while all of them had only lost their peer."""

_NAMED = 3
_SIGNALS = 128
_STARTED = frozenset((AppState.RUNNING, AppState.SUCCEEDED))
_LOST = frozenset((AppState.FAILED, AppState.CANCELLED))
_ENDED = frozenset((AppState.FAILED, AppState.SUCCEEDED))
_BY_WEIGHT = (AppState.RUNNING, AppState.UNKNOWN, AppState.PENDING, AppState.SUBMITTED, AppState.UNSUBMITTED)
"""The first of these states that occurs decides."""

_OF_THE_JOB = frozenset(("preempted", "node", "timeout", "quota", "image", "lost"))
"""Classes of a job's reason that explain its end better than the failures of its replicas do."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The conclusions about a job.

    Attributes:
        state: of the whole job.
        states: of each replica, by role and number. Replicas that were ended because of others are CANCELLED.
        failures: of the failed replicas that were inspected, by role and number.
        cause: why the job failed, with the class in ``kind``; None if it did not fail.
        sentence: the reason for the state; empty if there is none.
    """

    state: AppState
    states: dict[_Position, AppState]
    failures: dict[_Position, Failure]
    cause: Failure | None
    sentence: str

    def hosts(self) -> list[str]:
        """Return the hosts to blame: of all replicas that name their node as the cause, else of the cause."""
        at_fault = self.cause is not None and self.cause.kind == "node"
        found = [failure.host for failure in self.failures.values() if at_fault and failure.kind == "node"]
        return sorted({*found} - {""}) or list(filter(None, [self.cause.host if self.cause else ""]))


# -- the fold ------------------------------------------------------------------------------------------


def fold(states: Iterable[AppState], *, min_replicas: int | None = None) -> AppState:
    """Return the state of a gang of replicas.

    If a replica failed, the gang has failed; if one was cancelled, the gang is cancelled. But an elastic gang continues
    and succeeds while ``min_replicas`` of its members do. A gang with both waiting and running or finished members is
    RUNNING. Without replicas the state is UNKNOWN.

    >>> fold([AppState.RUNNING, AppState.PENDING]), fold([AppState.RUNNING, AppState.FAILED])
    (RUNNING (3), FAILED (5))
    >>> fold([AppState.FAILED, AppState.SUCCEEDED], min_replicas=1)
    SUCCEEDED (4)
    """
    members = list(states)
    if not members:
        return AppState.UNKNOWN
    lost = [s for s in members if s in _LOST]
    if lost and (min_replicas is None or len(members) - len(lost) < min_replicas):
        return AppState.FAILED if AppState.FAILED in lost else AppState.CANCELLED
    left = set(members) - set(lost)
    if left == {AppState.SUCCEEDED}:
        return AppState.SUCCEEDED
    if left & _STARTED and AppState.UNKNOWN not in left:
        return AppState.RUNNING
    return next(state for state in _BY_WEIGHT if state in left)


def state_of(facts: JobFacts) -> AppState:
    """Return the state of a job by its facts alone. ``list`` uses it, so that it agrees with ``status``.

    >>> from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
    >>> two = [ReplicaFacts(role="w", replica=k, state=s) for k, s in enumerate((AppState.FAILED, AppState.RUNNING))]
    >>> state_of(JobFacts(app_id="a", roles=[RoleFacts(name="w", replicas=two)]))
    RUNNING (3)
    """
    state = _folded(facts)
    if not is_terminal(state) or facts.unattended:
        return state
    begun = any(r.state is AppState.RUNNING for r in facts.replicas())
    # it has failed or is being cancelled, but has not ended yet
    return AppState.RUNNING if begun or (facts.state is None and any(map(_is_open, facts.roles))) else state


def _folded(facts: JobFacts) -> AppState:
    folded = _fold_roles(facts)
    if facts.state is AppState.FAILED and facts.kind not in _OF_THE_JOB and folded is AppState.SUCCEEDED:
        # the scheduler counts any lost replica as a failure, but an elastic job may have succeeded without it
        return folded if any(role.min_replicas is not None for role in facts.roles) else facts.state
    return folded if facts.state is None else facts.state


def _fold_roles(facts: JobFacts, *, at_its_end: bool = False) -> AppState:
    """Return the state of the roles together: that of a role which ends the job, once it has ended by itself."""
    ended = _decisive(facts, at_its_end=at_its_end).values()
    return next(iter(ended), None) or fold(role_state(role, at_its_end=at_its_end) for role in facts.roles)


def _decisive(facts: JobFacts, *, at_its_end: bool = False) -> dict[str, AppState]:
    """Return the roles that have ended by themselves and end the job, with their states."""
    states = ((role.name, role_state(role, at_its_end=at_its_end)) for role in facts.roles if role.ends_job)
    return {name: state for name, state in states if state in _ENDED}


def _is_open(role: RoleFacts) -> bool:
    """Whether its owner has not ended yet."""
    return role.state is None and (role.restarts or role.ending)


def role_state(role: RoleFacts, *, at_its_end: bool = False) -> AppState:
    """Return the state of a role, as reported by its owner or its replicas; ``at_its_end``:
    its state when all have ended.
    """
    members = fold((r.state for r in role.replicas), min_replicas=role.min_replicas)
    if role.state is not None:
        # the owner counts any lost replica as a failure, but an elastic role may have succeeded without it
        elastic = role.min_replicas is not None and role.state in _LOST and is_terminal(members)
        return members if elastic else role.state
    goes_on = role.restarts or (role.ending and not at_its_end)
    return AppState.RUNNING if is_terminal(members) and goes_on else members


# -- who is to blame ------------------------------------------------------------------------------------


def judge(facts: JobFacts, look: Look | None = None, *, at_once: int = _AT_ONCE) -> Verdict:
    """Return the verdict on a job.

    Args:
        look: reads what failed replicas left behind; None: only the facts are used.
        at_once: how many replicas to inspect in the first round; the number doubles each round, up to 8.
    """
    state = state_of(facts)
    final = state  # the state when the last replica will have ended
    if state is AppState.RUNNING:
        final = _fold_roles(facts, at_its_end=True)
        left = any(not is_terminal(replica.state) for replica in facts.replicas())
        if left and final is AppState.CANCELLED and facts.kind in _OF_THE_JOB and not facts.cancelled:
            final = AppState.FAILED  # what ends the job ended its replicas, too
    suspects = _suspects(facts, final)
    failures: dict[_Position, Failure] = {}
    culprit = None
    if suspects and state in (AppState.FAILED, AppState.RUNNING) and final is not AppState.SUCCEEDED:
        failures = _inspect(suspects, look, at_once)
        stopped = {(r.role, r.replica) for r in suspects if r.stopped}
        culprit = min(failures, key=lambda position: _guilt(failures[position], position in stopped))
        if facts.reason and culprit in stopped and _has_no_message(failures[culprit], facts):
            culprit = None  # no evidence against this replica
    blamed = failures[culprit] if culprit else None
    first = next((r for r in suspects if (r.role, r.replica) == culprit), None)
    states = {(r.role, r.replica): _replica_state(r, facts, state, first) for r in facts.replicas()}
    cause = _cause(facts, blamed) if state is AppState.FAILED else None
    return Verdict(
        state=state,
        states=states,
        failures=failures,
        cause=cause,
        sentence=_sentence(facts, state, final, blamed),
    )


def _suspects(facts: JobFacts, state: AppState) -> list[ReplicaFacts]:
    """Return the replicas that may have failed first, in the order in which they ended.

    Those that were stopped come last. One of them may still be the cause: it failed by itself just before it was
    stopped, and the replica that seemed to fail first had only lost it as a peer.
    """
    if state is AppState.CANCELLED:
        return []
    failed = [r for r in facts.replicas() if r.state is AppState.FAILED]
    own = [r for r in failed if not r.stopped]
    stopped = [r for r in facts.replicas() if r.stopped and _ended_by_itself(r)]
    if not own and facts.kind not in _OF_THE_JOB:
        stopped = [*stopped, *(r for r in failed if r not in stopped)]
    return [*sorted(own, key=_when), *sorted(stopped, key=_when)]


def _when(replica: ReplicaFacts) -> tuple[float, bool]:
    return replica.ended or float("inf"), bool(replica.signal)


def _ended_by_itself(replica: ReplicaFacts) -> bool:
    """Whether a replica that was stopped has an exit code of its own, not that of a signal."""
    return replica.state in _LOST and 0 < (replica.exit_code or 0) < _SIGNALS


def _inspect(suspects: Sequence[ReplicaFacts], look: Look | None, at_once: int) -> dict[_Position, Failure]:
    """Why the first few failed; inspects more as long as all of these are only victims."""
    from torchx.schedulers.kit.failures.classes import is_aftermath

    found: dict[_Position, Failure] = {}
    # a replica that SIGTERM ended is a victim, whatever it left behind
    left = [r for r in suspects if r.signal != "SIGTERM"] or list(suspects[:at_once])
    left = left[:_MAX]
    while left and all(is_aftermath(failure) or not failure.summary() for failure in found.values()):
        some, left = left[:at_once], left[at_once:]
        at_once = max(at_once, min(2 * at_once, _AT_ONCE))
        evidence = look(some) if look is not None else [None] * len(some)
        for replica, its in zip(some, evidence, strict=True):
            found[replica.role, replica.replica] = _failure(replica, its)
    return found


def _failure(replica: ReplicaFacts, evidence: Evidence | None) -> Failure:
    """Why one replica failed: the backend's reason, which takes precedence, and what the replica left behind."""
    from torchx.schedulers.kit.failures.classes import classify
    from torchx.schedulers.kit.failures.reader import Evidence, read_failure

    left = evidence or Evidence()
    read = read_failure(left, exit_code=replica.exit_code, signal=replica.signal, ended=replica.ended)
    failure = replace(read, role=replica.role, replica=replica.replica, host=replica.host)
    # the reason why it was stopped is not the reason why it failed by itself
    own_reason = "" if replica.stopped and read.message else replica.reason
    reason, kind = left.reason or own_reason, replica.kind or left.kind
    if reason:
        # its last output is that of a program being killed, unless it ended by itself
        own = failure.message if left.reason and not failure.signal else ""
        failure = replace(failure, message=f"{reason}: {own}" if own else reason)
    kind, line = (kind, reason) if kind else classify(failure, left.said)
    return replace(failure, kind=kind, evidence=line)


def _has_no_message(failure: Failure, facts: JobFacts) -> bool:
    from torchx.schedulers.kit.failures.classes import is_aftermath

    return not failure.summary() or (facts.kind in _OF_THE_JOB and is_aftermath(failure))


def _guilt(failure: Failure, stopped: bool) -> tuple[bool, bool, bool, float]:
    """Sort key: causes before their aftermath, earlier before later, stopped replicas without any message last."""
    from torchx.schedulers.kit.failures.classes import is_aftermath

    return stopped and not failure.summary(), is_aftermath(failure), stopped, failure.timestamp or float("inf")


def _replica_state(replica: ReplicaFacts, facts: JobFacts, state: AppState, culprit: ReplicaFacts | None) -> AppState:
    """Return the state of one replica as shown to users, which never contradicts the state of the job."""
    own = replica.state
    if state in (AppState.PENDING, AppState.UNKNOWN) and facts.state is state:
        return state if own is not AppState.SUCCEEDED else own
    if replica is culprit:
        return AppState.FAILED
    if own is AppState.FAILED:
        # the same signal may have ended both: then this replica is not a victim of the culprit
        victim = replica.stopped or (culprit is not None and replica.signal not in ("", culprit.signal))
        if victim or state is AppState.CANCELLED:
            return AppState.CANCELLED
    if is_terminal(own) or not is_terminal(state) or (facts.unattended and own is AppState.RUNNING):
        return own
    if replica.kind == "lost":
        return AppState.UNKNOWN
    its_own = replica.role in (_decisive(facts) or (replica.role,))  # else its role was ended with the job
    return AppState.SUCCEEDED if state is AppState.SUCCEEDED and its_own else AppState.CANCELLED


def _cause(facts: JobFacts, failure: Failure | None) -> Failure:
    """Why the job failed: the culprit's failure, with the class of the job's own reason if that explains more."""
    from torchx.specs.failures import Failure

    if failure is None:
        message = facts.reason or _nobody_failed(facts)
        return Failure(message, timestamp=facts.ended or 0, kind=facts.kind or "unknown", evidence=facts.reason)
    if (facts.kind in _OF_THE_JOB and failure.signal) or not failure.summary():
        failure = replace(failure, message=facts.reason)  # what ended the job also killed this replica
    if facts.kind and (facts.kind in _OF_THE_JOB or failure.kind in ("unknown", "error", "lost")):
        failure = replace(failure, kind=facts.kind, evidence=facts.reason)
    return failure


# -- the sentence ------------------------------------------------------------------------------------------


def _sentence(facts: JobFacts, state: AppState, final: AppState, failure: Failure | None) -> str:
    if state is AppState.FAILED:
        parts = [*_why_failed(facts, failure), _restarts(facts), _not_retried(facts)]
    elif state is AppState.RUNNING and final is AppState.FAILED:
        open_ones = [r for r in facts.roles if failure is not None and r.name != failure.role and r.restarts]
        others = "still running" if facts.unattended or any(map(_is_open, open_ones)) else "being ended"
        parts = [*_why_failed(facts, failure), f"the others are {others}"]
    elif state is AppState.RUNNING and (facts.cancelled or (final is AppState.CANCELLED and not _between(facts))):
        killed = f", SIGKILL in {facts.kill_in_s:.0f} s" if (facts.kill_in_s or 0) > 0 else ""
        parts = [f"{CANCELLING}{killed}"]
    elif state is AppState.RUNNING and (over := _decisive(facts)):
        parts = [f"{' and '.join(over)} ended; the others are being ended", _losses(facts)]
    elif is_terminal(state):
        lost = _losses(facts) if state is AppState.SUCCEEDED else ""
        parts = [facts.reason, *(role.reason for role in facts.roles), lost]
        if state is AppState.CANCELLED and not any(parts):
            parts = sorted({r.reason for r in facts.replicas() if r.state is AppState.CANCELLED})
    else:
        parts = [_waits(facts, state, failure) or facts.reason, _losses(facts)]
    return "; ".join(dict.fromkeys(part for part in (*parts, *facts.notes) if part))


def _between(facts: JobFacts) -> bool:
    """Whether the replicas were ended with an attempt, so that another one may follow."""
    last = facts.attempts[-1] if facts.attempts else None
    since = last.ended if last is not None and last.again else 0.0
    return bool(facts.kind) or (since > 0 and all((r.started or 0.0) <= since for r in facts.replicas()))


def _why_failed(facts: JobFacts, failure: Failure | None) -> list[str]:
    whole = list(dict.fromkeys(text for text in (facts.reason, *(role.reason for role in facts.roles)) if text))
    if failure is None:
        return whole or [_nobody_failed(facts)]
    sentence = phrase(failure, tell_host=facts.tell_hosts)
    said = failure.summary()
    if whole and not said:
        return whole
    whole = [text for text in whole if said not in text]
    if facts.kind in _OF_THE_JOB:
        return [*whole, "" if failure.signal else sentence]  # do not name a replica that was killed for this reason
    return [sentence, *(text for text in whole if facts.kind != failure.kind or not facts.kind)]


def phrase(failure: Failure, *, tell_host: bool = True) -> str:
    """One sentence that names the replica that failed and the reason.

    >>> from torchx.specs.failures import Failure
    >>> phrase(Failure("no data in /data", 1, role="d1", replica=0, rank=1, host="n3"))
    'd1/0 rank 1 on n3: exit code 1: no data in /data'
    """
    who = f"{failure.role}/{failure.replica}" if failure.role else ""
    rank = f"rank {failure.rank}" if failure.rank is not None else ""
    where = f"on {failure.host}" if tell_host and failure.host not in ("", "localhost") else ""
    subject = " ".join(word for word in (who, rank, where) if word)
    what = failure.summary() or "it did not say why: see its log"
    return f"{subject}: {what}" if subject else what


def _nobody_failed(facts: JobFacts) -> str:
    return f"the scheduler says `{facts.native}`" if facts.native else "it is not known how it ended"


def _restarts(facts: JobFacts) -> str:
    many = facts.restarts
    return f"after {many} restart{'s' if many > 1 else ''}" if many > 0 else ""


def _not_retried(facts: JobFacts) -> str:
    last = facts.attempts[-1] if facts.attempts else None
    return f"not retried ({last.why})" if last and not last.again else ""


def _waits(facts: JobFacts, state: AppState, failure: Failure | None) -> str:
    """Return what the first stuck replica waits for, else the first waiting one,
    and how many others wait for the same.
    """
    waiting = [r for r in facts.replicas() if r.reason and not is_terminal(r.state)]
    if not waiting:
        return _restarting(facts, failure) if state is AppState.RUNNING else ""
    first = next((r for r in waiting if r.stuck), waiting[0])
    same = sum(r.reason == first.reason for r in waiting) - 1
    more = f" (and {same} more)" if same else ""
    before_it = f"; restarted because it failed: {first.before}" if first.before else ""
    one = len(facts.replicas()) == 1 and not before_it
    return first.reason if one else f"{first.role}/{first.replica}{more}: {first.reason}{before_it}"


def _restarting(facts: JobFacts, failure: Failure | None) -> str:
    """Which failed replica is being restarted by its owner, and why it failed."""
    begun = [r for role in facts.roles if role.restarts for r in role.replicas]
    failed = [r for r in begun if r.state is AppState.FAILED]
    if failure is not None and failed:
        return f"{failure.role}/{failure.replica} failed and is being restarted: {failure.summary()}"
    before = next((r for r in begun if r.before), None)
    return f"{before.role}/{before.replica} failed and is being restarted: {before.before}" if before else ""


def _losses(facts: JobFacts) -> str:
    """Return the replicas that an elastic job lost without failing."""
    lost = [
        r for role in facts.roles if role.min_replicas is not None for r in role.replicas if r.state is AppState.FAILED
    ]
    if not lost:
        return ""
    names = ", ".join(f"{r.role}/{r.replica}" for r in lost[:_NAMED]) + (", ..." if len(lost) > _NAMED else "")
    return f"{len(lost)} of {len(facts.replicas())} replicas lost ({names}); the job went on with the others"


# -- the response ---------------------------------------------------------------------------------------------


def describe(facts: JobFacts, look: Look | None = None, *, at_once: int = _AT_ONCE) -> DescribeAppResponse:
    """Return the response of ``Scheduler.describe``: the facts and the verdict on them.

    Arguments: see :func:`judge`.
    """
    if any(role.after or role.ready or role.ends_job for role in facts.definition):
        from torchx.schedulers.kit.order import with_order

        facts = with_order(facts)
    verdict = judge(facts, look, at_once=at_once)
    starts = [facts.started, *(attempt.started for attempt in facts.attempts)] if facts.started else []
    return DescribeAppResponse(
        app_id=facts.app_id,
        state=verdict.state,
        num_restarts=facts.restarts,
        attempts=list(facts.attempts),
        hang=facts.hang,
        msg=verdict.sentence or NONE,
        structured_error_msg=verdict.cause.to_structured_msg() if verdict.cause else NONE,
        ui_url=facts.ui_url,
        metadata=dict(facts.metadata),
        roles_statuses=[_role_status(role, verdict) for role in facts.roles],
        roles=list(facts.definition),
        started_at=min(filter(None, starts), default=facts.started),
        ended_at=facts.ended if is_terminal(verdict.state) else None,
    )


def on_answer(answer: DescribeAppResponse) -> DescribeAppResponse:
    """Add the verdict to the response of a backend that reports no facts: which replica failed first, and why.

    Returns the response unchanged if it already has a verdict or no replica failed.
    """
    import copy

    from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
    from torchx.schedulers.kit.failures.reader import Evidence
    from torchx.specs.failures import parse_failure

    given = parse_failure(answer.structured_error_msg)
    if answer.state is not AppState.FAILED or (given is not None and given.kind):
        return answer
    if not any(r.state is AppState.FAILED for role in answer.roles_statuses for r in role.replicas):
        return answer
    roles, said = [], {}
    for role in answer.roles_statuses:
        members = []
        for r in role.replicas:
            own = parse_failure(r.structured_error_msg)
            if own is None and r.state is AppState.FAILED:
                own = given
            code, signal, at = (own.exit_code, own.signal, own.timestamp) if own else (None, "", 0.0)
            said[r.role, r.id] = Evidence(error_file=own.to_structured_msg() if own else None)
            members.append(
                ReplicaFacts(
                    role=r.role, replica=r.id, state=r.state, exit_code=code, signal=signal, ended=at, host=r.hostname
                )
            )
        roles.append(RoleFacts(name=role.role, replicas=members))
    reason = "" if answer.msg == NONE else answer.msg
    facts = JobFacts(app_id=answer.app_id, roles=roles, state=answer.state, reason=reason)
    verdict = judge(facts, lambda replicas: [said[r.role, r.replica] for r in replicas])
    answer = copy.copy(answer)
    answer.msg = verdict.sentence or NONE
    answer.structured_error_msg = verdict.cause.to_structured_msg() if verdict.cause else NONE
    return answer


def _role_status(role: RoleFacts, verdict: Verdict) -> RoleStatus:
    replicas = []
    for r in role.replicas:
        position = (r.role, r.replica)
        failure = verdict.failures.get(position)
        if failure is None and r.earlier is not None:
            failure = replace(r.earlier, role=r.role, replica=r.replica, host=r.host)
        error = failure.to_structured_msg() if failure else NONE
        times, state = (r.started or None, r.ended or None), verdict.states[position]
        one = ReplicaStatus(r.replica, state, r.role, r.host, error, r.address, *times, ready_at=r.ready or None)
        replicas.append(one)
    return RoleStatus(role.name, replicas, list(role.after), role.needs, role.ends_job)
