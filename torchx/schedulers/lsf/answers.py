"""The replicas of an LSF job as facts, from bjobs and from what their scripts recorded."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence

from torchx.errors import NotFoundError
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Stream
from torchx.schedulers.batch.folders import folder_name
from torchx.schedulers.batch.queries import Known
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures import SHELL, signal_name
from torchx.schedulers.kit.verdict import describe, state_of
from torchx.schedulers.lsf.order import Marks
from torchx.schedulers.lsf.parse import Row, job_name, report_end, rows, whole
from torchx.schedulers.lsf.reasons import BY_OWNER, KINDS, SUSPENDED, app_state, term, why_ended, why_pending
from torchx.specs.api import AppState, Role
from torchx.specs.wishes.retries import Attempt
from torchx.supervisor.layout import STDERR_LOG, STDOUT_LOG
from torchx.util.records import dataclass, replace

_DEPENDS = "Job dependency condition not satisfied"
_NOT_FOUND = "its host does not see the job's folder, or has no bash; `jobdir` must be on shared storage"
NO_PROGRAM = "127"
"""LSF's exit code of a job whose program or script is missing."""


@dataclass(frozen=True)
class Exit:
    """How a replica ended, as its script recorded it: exit code, whether it was killed, and the Unix time; ``late``: it
    had exceeded its time limit.
    """

    code: int
    killed: bool
    at: float
    late: bool = False

    @property
    def failed(self) -> bool:
        """Whether the program failed by itself."""
        return self.code != 0 and not self.killed

    @staticmethod
    def parse(text: str) -> Exit | None:
        """Parse the file ``exit``; None if it is empty or damaged.

        >>> Exit.parse("3 0 1700000000")
        Exit(code=3, killed=False, at=1700000000.0, late=False)
        """
        words = text.split()
        try:
            return Exit(int(words[0]), words[1] != "0", float(words[2]), late=words[1] == "2")
        except (IndexError, ValueError):
            return None


def left_row(app_id: str, role: int, k: int, *, left: Exit | None, report: str) -> Row | None:
    """Return a replica that LSF no longer knows, from its exit file and LSF's report; None if there is neither."""
    ended = report_end(report)
    code = str(left.code) if left is not None else ended[0] if ended else None
    if code is None:
        return None
    return Row(
        jobid="",
        stat="DONE" if code == "0" else "EXIT",
        app_id=app_id,
        role=role,
        k=k,
        exit_code="" if code == "0" else code,
        exit_reason=ended[1] if ended else "",
        ended=left.at if left is not None else None,
    )


def nothing_left(app_id: str, role: int, k: int, *, young: bool) -> Row:
    """Return a replica without traces: pending while ``young``, since LSF's answers lag;
    later it counts as cancelled.
    """
    if young:
        return Row("", "PEND", app_id, role, k, pend_reason="New job is waiting for scheduling")
    return Row("", "EXIT", app_id, role, k, exit_reason="")


def facts_of(
    app_id: str,
    found: Sequence[Row],
    *,
    roles: Sequence[Role] = (),
    exits: Mapping[tuple[int, int], Exit] | None = None,
    restarts: int = -1,
    attempts: Sequence[Attempt] = (),
    times: tuple[float, float] = (0, 0),
    hang: str = "",
    silent: bool = False,
    marks: Marks | None = None,
) -> JobFacts:
    """Facts about one job.

    Args:
        roles: as submitted; without them, roles are named by their numbers.
        exits: the recorded ends of replicas, by the numbers of role and replica.
        times: Unix times of the first start and the last end of a replica, or 0; LSF itself reports minutes only.
        silent: the watchdog ended the job.
        marks: what the replicas of a job with an order have recorded.
    """
    members = sorted(found, key=lambda row: (row.role, row.k))
    numbers = sorted({row.role for row in members} | set(range(len(roles))))
    names = {index: roles[index].name if index < len(roles) else str(index) for index in numbers}
    facts = _members(members, names, exits or {})
    if silent:
        facts = [replace(one, stopped=True) for one in facts]
    if marks is not None:
        facts = [marks.on(f, (r.role, r.k), bool(roles[r.role].after)) for r, f in zip(members, facts, strict=True)]
    why = marks.late if marks is not None and marks.late else hang if silent else ""
    by_role = {index: [f for row, f in zip(members, facts, strict=True) if row.role == index] for index in numbers}
    started = [times[0]] if times[0] else [r.started for r in members if r.started is not None]
    ended = [r.ended for r in members if r.ended is not None] + ([times[1]] if times[1] else [])
    states = {r.state for r in facts}
    over = silent or (marks is not None and marks.is_over)
    return JobFacts(
        app_id=app_id,
        roles=[
            RoleFacts(
                name=name,
                replicas=by_role[index],
                min_replicas=roles[index].min_replicas if index < len(roles) else None,
                ending=any(r.state is AppState.PENDING for r in by_role[index]),  # a failure ends pending replicas
                ends_job=index < len(roles) and roles[index].ends_job,
            )
            for index, name in names.items()
        ],
        state=AppState.FAILED if why or silent else None,
        reason=why,
        kind="timeout" if why or silent else "",
        hang=hang,
        cancelled=AppState.CANCELLED in states and AppState.FAILED not in states and not over,
        restarts=restarts,
        attempts=attempts,
        started=min(started, default=None),
        ended=max(ended, default=None),
        definition=roles,
    )


def _members(
    members: Sequence[Row], names: Mapping[int, str], exits: Mapping[tuple[int, int], Exit]
) -> list[ReplicaFacts]:
    """Return the facts about the replicas, which have ended as ``exits`` say."""
    # most replicas depend on replica 0, so its reason is the one to show
    rank0_waits = any(_waits(row) and not row.pend_reason.startswith(_DEPENDS) for row in members)
    return [
        replica_facts(names[row.role], row, exits.get((row.role, row.k)), rank0_waits=rank0_waits) for row in members
    ]


def _waits(row: Row) -> bool:
    return app_state(row.stat) in (AppState.PENDING, AppState.UNKNOWN)


def replica_facts(role: str, row: Row, left: Exit | None = None, *, rank0_waits: bool = False) -> ReplicaFacts:
    """Facts about one replica. With ``rank0_waits`` the reason of replica 0 is shown, not the dependency on it."""
    if left is not None and left.late and row.stat == "EXIT" and not row.exit_reason:
        row = replace(row, exit_reason="TERM_RUNLIMIT")
    state = replica_state(row, left)
    word = term(row.exit_reason) if state is AppState.FAILED else ""
    code = whole(row.exit_code) if row.exit_code.isdecimal() and word not in KINDS else None
    signal = signal_name(code) if code is not None and code > SHELL else ""  # LSF reports 128 plus the signal
    return ReplicaFacts(
        role=role,
        replica=row.k,
        state=state,
        native=row.stat,
        exit_code=None if signal else code,
        signal=signal,
        host=":".join(row.hosts),
        started=row.started or 0.0,
        ended=left.at if left is not None else row.ended or 0.0,
        reason=_why(row, left, rank0_waits=rank0_waits),
        kind=KINDS.get(word, ""),
        stopped=state is AppState.CANCELLED or (left is not None and left.killed and not word),
    )


def replica_state(row: Row, left: Exit | None = None) -> AppState:
    """Return the state of one replica. If its owner killed it, it is cancelled, unless it had failed before."""
    state = app_state(row.stat)
    if state is not AppState.FAILED or (left is not None and left.failed):
        return state
    word = term(row.exit_reason)
    killed = row.exit_code in ("", "130") or (left is not None and left.killed)
    by_owner = word in BY_OWNER or (not row.exit_reason and killed)
    return AppState.CANCELLED if by_owner else AppState.FAILED


def _why(row: Row, left: Exit | None, *, rank0_waits: bool) -> str:
    """Why it is pending, or how LSF ended it."""
    if _waits(row):
        has_reason = row.pend_reason and not (rank0_waits and row.pend_reason.startswith(_DEPENDS))
        return SUSPENDED.get(row.stat) or (why_pending(row.pend_reason) if has_reason else "")
    if app_state(row.stat) is not AppState.FAILED or (left is not None and left.failed):
        return ""
    unseen = row.exit_code == NO_PROGRAM and left is None and bool(row.app_id) and not row.exit_reason
    return _NOT_FOUND if unseen else why_ended(row.exit_reason)


# -- public parsers of bjobs ---------------------------------------------------------------------------


def get_job_state(state_str: str, exit_code: str) -> AppState:
    """LSF's state as torchx's. ``EXIT`` by SIGINT (130), which ``bkill`` sends first, is a cancelled job.

    >>> get_job_state("RUN", "-"), get_job_state("EXIT", "1"), get_job_state("EXIT", "130")
    (RUNNING (3), FAILED (5), CANCELLED (6))
    """
    state = app_state(state_str)
    return AppState.CANCELLED if state is AppState.FAILED and exit_code == "130" else state


def bjobs_msg_to_describe(app_id: str, msg: str) -> DescribeAppResponse | None:
    """One job in the output of ``bjobs -a -o FORMAT``; None if it is missing."""
    found = [row for row in rows(msg) if row.app_id == app_id]
    return describe(facts_of(app_id, found)) if found else None


def bjobs_msg_to_list(msg: str) -> list[ListAppResponse]:
    """All jobs in the output of ``bjobs -a -o FORMAT``."""
    return [line_of(Known(facts_of(app_id, found))) for app_id, found in by_app(rows(msg)).items()]


def by_app(found: Iterable[Row]) -> dict[str, list[Row]]:
    """Replicas by the id of their job."""
    apps: dict[str, list[Row]] = {}
    for row in found:
        apps.setdefault(row.app_id, []).append(row)
    return apps


def line_of(job: Known) -> ListAppResponse:
    """Return a job as an entry of a list."""
    app_id, state = job.facts.app_id, state_of(job.facts) if job.answer is None else job.answer.state
    return ListAppResponse(app_id=app_id, state=state, name=app_id.rpartition("-")[0] or app_id)


def bjobs_msg_to_log_file(app_id: str, role_name: str, k: int = 0, streams: Stream | None = None, msg: str = "") -> str:
    """Path of a replica's log (default: stdout) from ``bjobs -a -o FORMAT``. Raises NotFoundError if it is missing."""
    for row in rows(msg):
        if row.name == job_name(app_id, row.role, role_name, k) and row.output_file:
            name = STDERR_LOG if streams is Stream.STDERR else STDOUT_LOG
            return posixpath.join(row.folder, folder_name(role_name), str(k), name)
    raise NotFoundError(f"job `{app_id}` has no replica `{role_name}/{k}`", hint="`torchx status` shows its replicas")
