"""What Grid Engine answers, and what that means. Values in, values out."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from xml.etree import ElementTree

from torchx.errors import BackendError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.verdict import fold
from torchx.specs import AppState, ReplicaStatus, RoleStatus, is_terminal
from torchx.specs.failures import Failure

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


def became(member: Member) -> tuple[AppState, str | int]:
    """Its state, and why: a sentence, or the exit code of its program; empty when there is nothing to say."""
    if member.exit:
        code = int(member.exit[0])
        return (AppState.FAILED, code) if code else (AppState.SUCCEEDED, "")
    if member.row is not None:
        return app_state(member.row.state), HELD if member.row.state.startswith("E") else ""
    failed, code = member.account or (KILLED, 0)
    number, _, sentence = failed.partition(":")
    if number.strip() == KILLED:  # and not for a limit; or it never ran
        return AppState.CANCELLED, "deleted with qdel, or killed on its host"
    if number.strip() == "0":
        return (AppState.FAILED, code) if code else (AppState.SUCCEEDED, "")
    return AppState.FAILED, f"Grid Engine: {sentence.strip() or failed}"


def describe(app_id: str, folder: JobFolder, members: list[Member]) -> DescribeAppResponse:
    """The job, out of its replicas; what a failed one wrote last is read from the folder."""
    roles = folder.roles()
    statuses = {role.name: RoleStatus(role.name, []) for role in roles}
    answer = DescribeAppResponse(app_id, roles=roles, roles_statuses=list(statuses.values()))
    for member in members:
        state, why = became(member)
        status = ReplicaStatus(member.k, state, member.role, member.started[1] if member.started else "")
        statuses[member.role].replicas.append(status)
        failure = _failure(folder, member, why) if isinstance(why, int) else Failure(why)
        if state is AppState.FAILED:
            status.structured_error_msg = failure.to_structured_msg()
        first_to_fail = state is AppState.FAILED and answer.state is not AppState.FAILED
        if failure.summary() and (first_to_fail or answer.msg == "<NONE>"):
            answer.msg = f"{member.role}/{member.k}: {failure.summary()}"
            answer.structured_error_msg = status.structured_error_msg
        answer.state = state if state is AppState.FAILED else answer.state
    answer.state = fold(r.state for status in statuses.values() for r in status.replicas)
    if any(m.row is not None and not m.exit and app_state(m.row.state) is AppState.RUNNING for m in members):
        answer.state = AppState.RUNNING  # also when one has failed: the others are about to be ended
    answer.num_restarts = sum(int(m.exit[1]) - 1 for m in members if m.exit)
    answer.started_at = min((float(m.started[0]) for m in members if m.started), default=None)
    if is_terminal(answer.state):
        answer.ended_at = max((float(m.exit[2]) for m in members if m.exit), default=None)
    return answer


def _failure(folder: JobFolder, member: Member, code: int) -> Failure:
    by = signal.Signals(code - 128).name if code - 128 in set(signal.Signals) else ""
    ended = float(member.exit[2]) if member.exit else 0
    return folder.failure(member.role, member.k, exit_code=code, signal_name=by, ended=ended)
