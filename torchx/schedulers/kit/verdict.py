"""The one verdict on a job: its state, the replica that failed first, the class of the cause, and the sentence.

Backends report :class:`~torchx.schedulers.kit.facts.JobFacts`; whoever asks (``status``, ``list``, ``wait``,
``--json``, notices, retries) hears what is said here. Four rules:

1. *Fold*: a gang is as its members are (:func:`fold`). What the scheduler or the owner of a role says of the whole goes
   before; but nothing has ended while a replica of it runs.
2. *Blame*: guilt goes before time. A replica that only lost its peer, or that was ended because of others, is never the
   cause as long as another has a reason of its own.
3. *Class*: the backend's own reason decides, else what it left behind (:mod:`torchx.schedulers.failures.classes`).
4. *Sentence*: ``trainer/0 rank 1 on n3: exit code 1: no data in /data``; then what is known beyond that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchx.schedulers.api import NONE, DescribeAppResponse
from torchx.specs.api import AppState, ReplicaStatus, RoleStatus, is_terminal
from torchx.util.records import dataclass, replace

if TYPE_CHECKING:
    from torchx.schedulers.failures.reader import Evidence
    from torchx.schedulers.kit.facts import JobFacts, Look, ReplicaFacts, RoleFacts
    from torchx.specs.failures import Failure

    _Position = tuple[str, int]

_AT_ONCE = 8
"""Failed replicas that are looked into together."""

_MOST = 32
"""The most that are looked into, round by round, as long as all of them had only lost their peer."""

_NAMED = 3
_SIGNALS = 128
_STARTED = frozenset((AppState.RUNNING, AppState.SUCCEEDED))
_LOST = frozenset((AppState.FAILED, AppState.CANCELLED))
_BY_WEIGHT = (AppState.RUNNING, AppState.UNKNOWN, AppState.PENDING, AppState.SUBMITTED, AppState.UNSUBMITTED)
"""What is found first in this order decides."""

_OF_THE_JOB = frozenset(("preempted", "node", "timeout", "quota", "image", "lost"))
"""Classes of reasons that explain the end of the whole job better than the replicas that it took down."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is to be said of a job.

    Attributes:
        state: of the whole job.
        states: of each replica, by role and number: those that were ended because of others are CANCELLED.
        failures: of the failed replicas that were looked into, by role and number.
        cause: why the job failed, its ``kind`` being the class; None when it did not.
        sentence: why it is in its state; empty when there is nothing to say.
    """

    state: AppState
    states: dict[_Position, AppState]
    failures: dict[_Position, Failure]
    cause: Failure | None
    sentence: str


# -- the fold ------------------------------------------------------------------------------------------


def fold(states: Iterable[AppState], *, min_replicas: int | None = None) -> AppState:
    """The state of a gang of replicas.

    One that failed makes the gang fail, one that was cancelled makes it cancelled; but an elastic gang goes on, and
    succeeds, while ``min_replicas`` of its members do. A gang of which some run and some wait, or some are done and
    some wait, runs. No replicas at all: ``UNKNOWN``.

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
    """The state of a job, without looking into anything: what ``list`` shows is what ``status`` says.

    >>> from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
    >>> two = [ReplicaFacts(role="w", replica=k, state=s) for k, s in enumerate((AppState.FAILED, AppState.RUNNING))]
    >>> state_of(JobFacts(app_id="a", roles=[RoleFacts(name="w", replicas=two)]))
    RUNNING (3)
    """
    state = _folded(facts)
    if not is_terminal(state) or facts.unattended:
        return state
    begun = any(r.state is AppState.RUNNING for r in facts.replicas())
    # it has failed, or is being cancelled, and ends
    return AppState.RUNNING if begun or (facts.state is None and any(map(_is_open, facts.roles))) else state


def _folded(facts: JobFacts) -> AppState:
    folded = fold(role_state(role) for role in facts.roles)
    if facts.state is AppState.FAILED and facts.kind not in _OF_THE_JOB and folded is AppState.SUCCEEDED:
        # as the owner of a role: it counts any loss, and an elastic job can do without some
        return folded if any(role.min_replicas is not None for role in facts.roles) else facts.state
    return folded if facts.state is None else facts.state


def _is_open(role: RoleFacts) -> bool:
    """Whether its owner has not ended yet."""
    return role.state is None and (role.restarts or role.ending)


def role_state(role: RoleFacts, *, at_its_end: bool = False) -> AppState:
    """What its owner says of a role, else what its replicas say; ``at_its_end``: what an owner that ends will say."""
    members = fold((r.state for r in role.replicas), min_replicas=role.min_replicas)
    if role.state is not None:
        # the owner counts any loss as the end of it; an elastic role can do without some
        elastic = role.min_replicas is not None and role.state in _LOST and is_terminal(members)
        return members if elastic else role.state
    goes_on = role.restarts or (role.ending and not at_its_end)
    return AppState.RUNNING if is_terminal(members) and goes_on else members


# -- who is to blame ------------------------------------------------------------------------------------


def judge(facts: JobFacts, look: Look | None = None, *, at_once: int = _AT_ONCE) -> Verdict:
    """The verdict on a job.

    Args:
        look: reads what failed replicas left behind; without it, only the facts speak.
        at_once: into how many replicas it looks in the first round; each round after it takes twice as many, up to 8.
    """
    state = state_of(facts)
    going = state  # what it will be when the last replica has ended
    if state is AppState.RUNNING:
        going = fold(role_state(role, at_its_end=True) for role in facts.roles)
    suspects = _suspects(facts, going)
    failures: dict[_Position, Failure] = {}
    culprit = None
    if suspects and state in (AppState.FAILED, AppState.RUNNING) and going is not AppState.SUCCEEDED:
        failures = _looked_into(suspects, look, at_once)
        stopped = {(r.role, r.replica) for r in suspects if r.stopped}
        culprit = min(failures, key=lambda position: _guilt(failures[position], position in stopped))
        if facts.reason and culprit in stopped and _says_nothing(failures[culprit], facts):
            culprit = None  # nothing shows that it was this one
    told = failures[culprit] if culprit else None
    first = next((r for r in suspects if (r.role, r.replica) == culprit), None)
    states = {(r.role, r.replica): _shown(r, facts, state, first) for r in facts.replicas()}
    cause = _cause(facts, told) if state is AppState.FAILED else None
    return Verdict(
        state=state,
        states=states,
        failures=failures,
        cause=cause,
        sentence=_sentence(facts, state, going, told),
    )


def _suspects(facts: JobFacts, state: AppState) -> list[ReplicaFacts]:
    """The replicas that may have failed first, in the order of their ends.

    Those that were told to end come last: one of them may have failed by itself just then, while what was taken for the
    first failure had only lost it as a peer.
    """
    if state is AppState.CANCELLED:
        return []
    failed = [r for r in facts.replicas() if r.state is AppState.FAILED]
    own = [r for r in failed if not r.stopped]
    told_to_end = [r for r in facts.replicas() if r.stopped and _ended_by_itself(r)]
    if not own and facts.kind not in _OF_THE_JOB:
        told_to_end = [*told_to_end, *(r for r in failed if r not in told_to_end)]
    return [*sorted(own, key=_when), *sorted(told_to_end, key=_when)]


def _when(replica: ReplicaFacts) -> tuple[float, bool]:
    return replica.ended or float("inf"), bool(replica.signal)


def _ended_by_itself(replica: ReplicaFacts) -> bool:
    """Whether a replica that was told to end has an exit code of its own, not that of the signal."""
    return replica.state in _LOST and 0 < (replica.exit_code or 0) < _SIGNALS


def _looked_into(suspects: Sequence[ReplicaFacts], look: Look | None, at_once: int) -> dict[_Position, Failure]:
    """Why they failed: of the first few, and of more where all of these are only victims."""
    from torchx.schedulers.failures.classes import is_aftermath

    found: dict[_Position, Failure] = {}
    # one that was told to end is a victim, whatever it left behind
    left = [r for r in suspects if r.signal != "SIGTERM"] or list(suspects[:at_once])
    left = left[:_MOST]
    while left and all(is_aftermath(failure) or not failure.summary() for failure in found.values()):
        some, left = left[:at_once], left[at_once:]
        at_once = max(at_once, min(2 * at_once, _AT_ONCE))
        evidence = look(some) if look is not None else [None] * len(some)
        for replica, its in zip(some, evidence, strict=True):
            found[replica.role, replica.replica] = _failure(replica, its)
    return found


def _failure(replica: ReplicaFacts, evidence: Evidence | None) -> Failure:
    """Why one replica failed: what it left behind, and the backend's reason, which goes before."""
    from torchx.schedulers.failures.classes import classify
    from torchx.schedulers.failures.reader import Evidence, read_failure

    left = evidence or Evidence()
    read = read_failure(left, exit_code=replica.exit_code, signal=replica.signal, ended=replica.ended)
    failure = replace(read, role=replica.role, replica=replica.replica, host=replica.host)
    # why it was told to end is not why it failed by itself
    own_reason = "" if replica.stopped and read.message else replica.reason
    reason, kind = left.reason or own_reason, replica.kind or left.kind
    if reason:
        # its last words are those of a program that is being killed, unless it ended by itself
        own = failure.message if left.reason and not failure.signal else ""
        failure = replace(failure, message=f"{reason}: {own}" if own else reason)
    kind, line = (kind, reason) if kind else classify(failure, left.said)
    return replace(failure, kind=kind, evidence=line)


def _says_nothing(failure: Failure, facts: JobFacts) -> bool:
    from torchx.schedulers.failures.classes import is_aftermath

    return not failure.summary() or (facts.kind in _OF_THE_JOB and is_aftermath(failure))


def _guilt(failure: Failure, stopped: bool) -> tuple[bool, bool, bool, float]:
    """The cause comes before what followed from it, the earlier before the later; what ended in silence is last."""
    from torchx.schedulers.failures.classes import is_aftermath

    return stopped and not failure.summary(), is_aftermath(failure), stopped, failure.timestamp or float("inf")


def _shown(replica: ReplicaFacts, facts: JobFacts, state: AppState, culprit: ReplicaFacts | None) -> AppState:
    """The state of one replica as the page shows it: it never contradicts the job's."""
    own = replica.state
    if state in (AppState.PENDING, AppState.UNKNOWN) and facts.state is state:
        return state if own is not AppState.SUCCEEDED else own
    if replica is culprit:
        return AppState.FAILED
    if own is AppState.FAILED:
        # what ended the culprit may have ended this one, too: then it is no victim of the culprit's
        victim = replica.stopped or (culprit is not None and replica.signal not in ("", culprit.signal))
        if victim or state is AppState.CANCELLED:
            return AppState.CANCELLED
    if is_terminal(own) or not is_terminal(state) or (facts.unattended and own is AppState.RUNNING):
        return own
    if replica.kind == "lost":
        return AppState.UNKNOWN
    return AppState.SUCCEEDED if state is AppState.SUCCEEDED else AppState.CANCELLED


def _cause(facts: JobFacts, failure: Failure | None) -> Failure:
    """Why the job failed: the culprit's failure, with the class of the job's own reason where that explains more."""
    from torchx.specs.failures import Failure

    if failure is None:
        message = facts.reason or _nobody_failed(facts)
        return Failure(message, timestamp=facts.ended or 0, kind=facts.kind or "unknown", evidence=facts.reason)
    if (facts.kind in _OF_THE_JOB and failure.signal) or not failure.summary():
        failure = replace(failure, message=facts.reason)  # it was killed by what ended the job
    if facts.kind and (facts.kind in _OF_THE_JOB or failure.kind in ("unknown", "error", "lost")):
        failure = replace(failure, kind=facts.kind, evidence=facts.reason)
    return failure


# -- what is said of it ------------------------------------------------------------------------------------


def _sentence(facts: JobFacts, state: AppState, going: AppState, failure: Failure | None) -> str:
    if state is AppState.FAILED:
        parts = [*_why_failed(facts, failure), _again(facts), _not_again(facts)]
    elif state is AppState.RUNNING and going is AppState.FAILED:
        open_ones = [r for r in facts.roles if failure is not None and r.name != failure.role and r.restarts]
        run_on = facts.unattended or any(map(_is_open, open_ones))
        parts = [*_why_failed(facts, failure), "the others run on" if run_on else "the others are being ended"]
    elif state is AppState.RUNNING and (facts.cancelled or going is AppState.CANCELLED):
        parts = ["it is being cancelled"]
    elif is_terminal(state):
        lost = _losses(facts) if state is AppState.SUCCEEDED else ""
        parts = [facts.reason, *(role.reason for role in facts.roles), lost]
        if state is AppState.CANCELLED and not any(parts):
            parts = sorted({r.reason for r in facts.replicas() if r.state is AppState.CANCELLED})
    else:
        parts = [_waits(facts, state, failure) or facts.reason, _losses(facts)]
    return "; ".join(dict.fromkeys(part for part in (*parts, *facts.notes) if part))


def _why_failed(facts: JobFacts, failure: Failure | None) -> list[str]:
    whole = list(dict.fromkeys(text for text in (facts.reason, *(role.reason for role in facts.roles)) if text))
    if failure is None:
        return whole or [_nobody_failed(facts)]
    told = phrase(failure, tell_host=facts.tell_hosts)
    said = failure.summary()
    if whole and not said:
        return whole
    whole = [text for text in whole if said not in text]
    if facts.kind in _OF_THE_JOB:
        return [*whole, "" if failure.signal else told]  # who was killed by it is not news
    return [told, *(text for text in whole if facts.kind != failure.kind or not facts.kind)]


def phrase(failure: Failure, *, tell_host: bool = True) -> str:
    """Who failed, and why, in one sentence.

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
    return f"the scheduler says `{facts.native}`" if facts.native else "nobody knows how it ended"


def _again(facts: JobFacts) -> str:
    many = facts.restarts
    return f"after {many} restart{'s' if many > 1 else ''}" if many > 0 else ""


def _not_again(facts: JobFacts) -> str:
    last = facts.attempts[-1] if facts.attempts else None
    return f"not retried ({last.why})" if last and not last.again else ""


def _waits(facts: JobFacts, state: AppState, failure: Failure | None) -> str:
    """What replicas wait for: the first that is stuck, else the first; and how many others wait for the same."""
    waiting = [r for r in facts.replicas() if r.reason and not is_terminal(r.state)]
    if not waiting:
        return _starts_again(facts, failure) if state is AppState.RUNNING else ""
    first = next((r for r in waiting if r.stuck), waiting[0])
    same = sum(r.reason == first.reason for r in waiting) - 1
    more = f" (and {same} more)" if same else ""
    before_it = f"; started again, since it failed: {first.before}" if first.before else ""
    one = len(facts.replicas()) == 1 and not before_it
    return first.reason if one else f"{first.role}/{first.replica}{more}: {first.reason}{before_it}"


def _starts_again(facts: JobFacts, failure: Failure | None) -> str:
    """Which replica failed and is started again by its owner, and why it failed."""
    begun = [r for role in facts.roles if role.restarts for r in role.replicas]
    failed = [r for r in begun if r.state is AppState.FAILED]
    if failure is not None and failed:
        return f"{failure.role}/{failure.replica} failed, and is started again: {failure.summary()}"
    before = next((r for r in begun if r.before), None)
    return f"{before.role}/{before.replica} failed, and is started again: {before.before}" if before else ""


def _losses(facts: JobFacts) -> str:
    """Replicas without which an elastic job goes on, or went on."""
    lost = [
        r for role in facts.roles if role.min_replicas is not None for r in role.replicas if r.state is AppState.FAILED
    ]
    if not lost:
        return ""
    names = ", ".join(f"{r.role}/{r.replica}" for r in lost[:_NAMED]) + (", ..." if len(lost) > _NAMED else "")
    return f"{len(lost)} of {len(facts.replicas())} replicas lost ({names}); the job went on with the others"


# -- the answer -----------------------------------------------------------------------------------------------


def describe(facts: JobFacts, look: Look | None = None, *, at_once: int = _AT_ONCE) -> DescribeAppResponse:
    """The answer of ``Scheduler.describe``: the facts, and the verdict on them; arguments as of :func:`judge`."""
    verdict = judge(facts, look, at_once=at_once)
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
        started_at=facts.started,
        ended_at=facts.ended if is_terminal(verdict.state) else None,
    )


def on_answer(answer: DescribeAppResponse) -> DescribeAppResponse:
    """The verdict on the answer of a backend that reports no facts: who failed first, in the words used for all.

    The answer itself is returned where the verdict has been given, or where no replica failed.
    """
    import copy

    from torchx.schedulers.failures.reader import Evidence
    from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
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
        error = failure.to_structured_msg() if failure else NONE
        times = (r.started or None, r.ended or None)
        replicas.append(ReplicaStatus(r.replica, verdict.states[position], r.role, r.host, error, r.address, *times))
    return RoleStatus(role.name, replicas)
