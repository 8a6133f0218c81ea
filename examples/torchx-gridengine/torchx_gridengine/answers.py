"""The answers of Grid Engine as facts. Values in, values out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from torchx.errors import BackendError
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures.reader import signal_name
from torchx.specs import AppState, Role

# https://manpages.debian.org/bookworm/gridengine-client/qstat.1.en.html, "Job State Codes"
STATES: dict[str, AppState] = {
    **dict.fromkeys(("qw", "hqw", "Rq", "hRq", "hRqw", "Rqw", "Eqw", "Ehqw", "EhRqw"), AppState.PENDING),
    **dict.fromkeys(("r", "t", "Rr", "Rt", "hr", "ht"), AppState.RUNNING),
    **dict.fromkeys(("s", "ts", "S", "tS", "T", "tT", "Rs", "Rts", "RS", "RtS", "RT", "RtT"), AppState.PENDING),
    **dict.fromkeys(("dr", "dt", "dRr", "dRt", "ds", "dS", "dT", "dRs", "dRS", "dRT"), AppState.RUNNING),
}
HELD = "Grid Engine could not start it and holds it; `qstat -j` says why, `qmod -cj` lets it try again"
KILLED = "100"  # https://manpages.debian.org/bookworm/gridengine-common/accounting.5.en.html, "failed"


@dataclass(frozen=True)
class Row:
    """A replica that `qstat` shows."""

    name: str
    task: int
    state: str


@dataclass(eq=False)
class Member:
    """All that is known of one replica.

    Attributes:
        started: words of its file: time, host.
        exit: words of its file: exit code, starts, time.
        account: ``failed`` and ``exit_status`` of ``qacct``.
    """

    role: str
    k: int
    row: Row | None = None
    started: list[str] = field(default_factory=list)
    exit: list[str] = field(default_factory=list)
    account: tuple[str, int] | None = None


def app_state(raw: str) -> AppState:
    """Grid Engine's state of a task as ours; what nobody knows is UNKNOWN.

    >>> app_state("qw"), app_state("dr"), app_state("?")
    (PENDING (2), RUNNING (3), UNKNOWN (7))
    """
    return STATES.get(raw, AppState.UNKNOWN)


def parse_qstat(text: str) -> list[Row]:
    """The tasks in the answer of ``qstat -xml -g d``. Raises BackendError when it is none."""
    try:
        jobs = ElementTree.fromstring(text).iter("job_list")
    except ElementTree.ParseError as e:
        raise BackendError(f"`qstat` answered what cannot be understood: {e}: {text[:200]!r}") from e
    rows = []
    for job in jobs:
        task = job.findtext("tasks") or "1"
        if task.isdecimal():
            rows.append(Row(job.findtext("JB_name") or "", int(task), job.findtext("state") or ""))
    return rows


def parse_qacct(text: str) -> dict[int, tuple[str, int]]:
    """Task to ``failed`` and ``exit_status``, out of the answer of ``qacct -j``."""
    found = {}
    for record in re.split(r"^=+$", text, flags=re.MULTILINE):
        values = dict(re.findall(r"^(\w+) +(.*?) *$", record, flags=re.MULTILINE))
        if values.get("taskid", "").isdecimal() and values.get("exit_status", "").split():
            found[int(values["taskid"])] = (values.get("failed", ""), int(values["exit_status"].split()[0]))
    return found


def facts_of(app_id: str, roles: list[Role], members: list[Member]) -> JobFacts:
    """What is known of a job: facts alone. torchx says what follows from them, in the same words for all backends.

    Args:
        roles: as they were submitted.
        members: all replicas, role by role.
    """
    goes_on = any(m.row is not None and not m.exit for m in members)
    return JobFacts(
        app_id=app_id,
        roles=[
            RoleFacts(
                name=role.name,
                replicas=[replica_facts(m) for m in members if m.role == role.name],
                ending=goes_on,  # once a replica has failed for good, those that wait or run are ended
            )
            for role in roles
        ],
        restarts=sum(int(m.exit[1]) - 1 for m in members if m.exit),
        started=min((float(m.started[0]) for m in members if m.started), default=None),
        ended=max((float(m.exit[2]) for m in members if m.exit), default=None),
        definition=roles,
    )


def replica_facts(member: Member) -> ReplicaFacts:
    """What is known of one replica: out of its own notes, else out of `qstat`, else out of `qacct`."""
    state, code, reason, stuck, stopped = AppState.RUNNING, None, "", False, False
    if member.exit:
        code = int(member.exit[0])
        state = AppState.FAILED if code else AppState.SUCCEEDED
    elif member.row is not None:
        state = app_state(member.row.state)
        stuck = member.row.state.startswith("E")
        reason = HELD if stuck else ""
    else:
        state, code, reason = _accounted(member.account or (KILLED, 0))
        stopped = state is AppState.CANCELLED
    by = signal_name(code) if code is not None and code > 128 else ""
    return ReplicaFacts(
        role=member.role,
        replica=member.k,
        state=state,
        native=member.row.state if member.row else "",
        exit_code=None if by else code,
        signal=by,
        host=member.started[1] if member.started else "",
        ended=float(member.exit[2]) if member.exit else 0.0,
        reason=reason,
        stuck=stuck,
        stopped=stopped,
    )


def _accounted(account: tuple[str, int]) -> tuple[AppState, int | None, str]:
    """State, exit code and reason of a replica that left no word, out of what ``qacct`` says."""
    failed, code = account
    number, _, sentence = failed.partition(":")
    if number.strip() == KILLED:  # and not for a limit; or it never ran
        return AppState.CANCELLED, None, "deleted with qdel, or killed on its host"
    if number.strip() == "0":
        return (AppState.FAILED if code else AppState.SUCCEEDED), code, ""
    return AppState.FAILED, None, f"Grid Engine: {sentence.strip() or failed}"
