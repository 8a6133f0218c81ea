"""What became of an LSF job, out of the states of its replicas and of what they left in its folder."""

from __future__ import annotations

import functools
import posixpath
import time

from torchx.schedulers.api import NONE, DescribeAppResponse, ListAppResponse
from torchx.schedulers.batch.folders import JOB_FILE, roles_of
from torchx.schedulers.kit.verdict import fold
from torchx.schedulers.lsf.reasons import BY_OWNER, term, why_ended, why_pending
from torchx.schedulers.lsf.rows import Row, report_end
from torchx.schedulers.lsf.script import (
    ENDED_FILE,
    EXIT_FILE,
    FAILURE_FILE,
    REPORTS,
    RESTARTS_FILE,
    STARTED_FILE,
    SUBMITTED_FILE,
)
from torchx.specs.api import AppState, ReplicaStatus, RoleStatus, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from dataclasses import dataclass

    from torchx.schedulers.batch.folders import JobFolder
    from torchx.schedulers.kit.files import Files
    from torchx.specs.api import Role
    from torchx.specs.failures import Failure
else:
    from torchx.util.records import dataclass

# https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=execution-about-job-states
STATES: dict[str, AppState] = {
    "PEND": AppState.PENDING,
    "PROV": AppState.PENDING,
    "PSUSP": AppState.PENDING,
    "WAIT": AppState.PENDING,
    "RUN": AppState.RUNNING,
    "SSUSP": AppState.PENDING,
    "USUSP": AppState.PENDING,
    "DONE": AppState.SUCCEEDED,
    "EXIT": AppState.FAILED,
    "UNKWN": AppState.UNKNOWN,
    "ZOMBI": AppState.UNKNOWN,
}

# Of states that say nothing more themselves.
_TOLD = {
    "PROV": "its host is being made ready",
    "SSUSP": "LSF has suspended it, for its host is too busy or a job of higher priority came",
    "USUSP": "its owner or an administrator has suspended it; `bresume` lets it go on",
    "WAIT": "it waits for the jobs before it in a chunk",
    "UNKWN": "its host does not answer to LSF",
    "ZOMBI": "it was killed while its host did not answer to LSF",
}
_DEPENDS = "Job dependency condition not satisfied"
_NOT_FOUND = "exit code 127: its host does not see the job's folder, or has no bash; `jobdir` is on shared storage"
_EXPLAINED = 4  # failed replicas whose files are read for their causes
_KNOWN_AFTER_S = 120.0


@dataclass(frozen=True)
class FirstFailure:
    """The replica that failed first, as its script wrote it down.

    Attributes:
        killed: it was ended from outside.
    """

    role: int
    k: int
    exit_code: str
    killed: bool
    at: float

    @staticmethod
    def parse(text: str) -> FirstFailure | None:
        """Out of the file ``failure``; None when there is nothing in it.

        >>> FirstFailure.parse("0 3 1 0 1700000000")
        FirstFailure(role=0, k=3, exit_code='1', killed=False, at=1700000000.0)
        """
        try:
            role, k, code, killed, at = text.split()
            return FirstFailure(int(role), int(k), str(int(code)), killed != "0", float(at))
        except ValueError:
            return None


def state_of(row: Row) -> AppState:
    """The state of one replica. What its owner ended is cancelled."""
    state = STATES.get(row.stat, AppState.UNKNOWN)
    if state is not AppState.FAILED:
        return state
    word = term(row.exit_reason)
    by_owner = word in BY_OWNER or (not word and row.exit_code in ("", "130"))
    return AppState.CANCELLED if by_owner else AppState.FAILED


def left_row(app_id: str, role: int, k: int, *, exit_text: str, report: str) -> Row | None:
    """A replica that LSF knows no more, out of its exit file and LSF's report; None when there is neither."""
    words = exit_text.split()
    told = report_end(report)
    code = words[0] if words and words[0].isdecimal() else told[0] if told else None
    if code is None:
        return None
    try:
        ended = float(words[2])
    except (IndexError, ValueError):
        ended = None
    return Row(
        jobid="",
        stat="DONE" if code == "0" else "EXIT",
        app_id=app_id,
        role=role,
        k=k,
        exit_code="" if code == "0" else code,
        exit_reason=told[1] if told else "",
        ended=ended,
    )


def list_rows(found: Sequence[Row]) -> list[ListAppResponse]:
    """The jobs that these replicas belong to."""
    apps: dict[str, list[Row]] = {}
    for row in found:
        apps.setdefault(row.app_id, []).append(row)
    listed = []
    for app_id, members in apps.items():
        states = [state_of(row) for row in members]
        name = app_id.rpartition("-")[0] or app_id
        listed.append(ListAppResponse(app_id=app_id, state=_until_all_ended(fold(states), states), name=name))
    return listed


def _until_all_ended(state: AppState, replicas: Iterable[AppState]) -> AppState:
    """A job that has failed goes on, and can be cancelled, while replicas of it do."""
    going_on = state in (AppState.FAILED, AppState.CANCELLED) and {AppState.PENDING, AppState.RUNNING} & set(replicas)
    return AppState.RUNNING if going_on else state


def describe_jobs(
    files: Files, found: Mapping[str, list[Row]], folders: Mapping[str, JobFolder]
) -> dict[str, DescribeAppResponse]:
    """Many jobs, with what is in their folders; jobs of which there is nothing are left out.

    Args:
        found: app id to what LSF knows of it.
        folders: of those jobs that have one.
    """
    small = (JOB_FILE, RESTARTS_FILE, FAILURE_FILE, SUBMITTED_FILE, STARTED_FILE, ENDED_FILE)
    texts = files.grown({posixpath.join(f.path, name): 0 for f in folders.values() for name in small})
    roles = {app_id: roles_of(texts.get(posixpath.join(f.path, JOB_FILE))) for app_id, f in folders.items()}
    missing = {app_id: sorted(_everybody(roles[app_id]) - {(r.role, r.k) for r in found[app_id]}) for app_id in folders}
    left = _left_rows(files, folders, roles, missing)
    answers = {}
    for app_id, members in found.items():
        folder = folders.get(app_id)
        if folder is None:
            if members:
                answers[app_id] = describe_rows(app_id, members)
            continue

        def text(name: str, folder: JobFolder = folder) -> str:
            return texts.get(posixpath.join(folder.path, name), b"").decode("utf-8", "replace")

        young = time.time() - _number(text(SUBMITTED_FILE)) < _KNOWN_AFTER_S
        rest = [left.get((app_id, *who)) or _nothing_left(app_id, *who, young=young) for who in missing[app_id]]
        if members or rest:
            answers[app_id] = describe_rows(
                app_id,
                [*members, *rest],
                roles=roles[app_id],
                first=FirstFailure.parse(text(FAILURE_FILE)),
                restarts=text(RESTARTS_FILE).count("\n"),
                times=(_number(text(STARTED_FILE)), _number(text(ENDED_FILE))),
                explain=functools.partial(_cause_in, folder),
            )
    return answers


def _cause_in(folder: JobFolder, row: Row, role: str) -> Failure:
    return folder.failure(role, row.k, exit_code=exit_number(row), signal_name=signal_name(row), ended=row.ended or 0)


def _everybody(roles: Sequence[Role]) -> set[tuple[int, int]]:
    return {(index, k) for index, role in enumerate(roles) for k in range(role.num_replicas)}


def _left_rows(
    files: Files,
    folders: Mapping[str, JobFolder],
    roles: Mapping[str, Sequence[Role]],
    missing: Mapping[str, Sequence[tuple[int, int]]],
) -> dict[tuple[str, int, int], Row]:
    """Replicas that LSF knows no more (it forgets them, usually after an hour), out of what they left."""
    paths = {}
    for app_id, members in missing.items():
        folder = folders[app_id]
        for index, k in members:
            result = posixpath.join(folder.replica(roles[app_id][index].name, k), EXIT_FILE)
            paths[app_id, index, k] = (result, posixpath.join(folder.path, REPORTS, f"{index}.{k}"))
    texts = files.grown({path: 0 for pair in paths.values() for path in pair}) if paths else {}
    found = {}
    for (app_id, index, k), pair in paths.items():
        exit_text, report = (texts.get(path, b"").decode("utf-8", "replace") for path in pair)
        row = left_row(app_id, index, k, exit_text=exit_text, report=report)
        if row is not None:
            found[app_id, index, k] = row
    return found


def _nothing_left(app_id: str, index: int, k: int, *, young: bool) -> Row:
    """LSF's answers may be a few seconds old; later, a replica without traces is one that was ended before it ran."""
    if young:
        return Row("", "PEND", app_id, index, k, pend_reason="New job is waiting for scheduling")
    return Row("", "EXIT", app_id, index, k, exit_reason="")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def describe_rows(
    app_id: str,
    found: Sequence[Row],
    *,
    roles: Sequence[Role] = (),
    first: FirstFailure | None = None,
    restarts: int = -1,
    times: tuple[float, float] = (0, 0),
    explain: Callable[[Row, str], Failure] | None = None,
) -> DescribeAppResponse:
    """What is known of one job.

    Args:
        found: its replicas.
        roles: as they were submitted; without them they are called by their numbers.
        first: the replica that failed first, where its script could say so.
        times: when the first replica started, and when one ended last, Unix times, which LSF knows to the minute; or 0.
        explain: reads the cause of a failure out of the files of a replica; called with its role's name, too.
    """
    members = sorted(found, key=lambda row: (row.role, row.k))
    states = {(r.role, r.k): state_of(r) for r in members}
    if first is not None and not first.killed and states.get((first.role, first.k)) is AppState.CANCELLED:
        states[first.role, first.k] = AppState.FAILED  # it failed by itself while others were being ended
    failed = _in_order([r for r in members if states[r.role, r.k] is AppState.FAILED], first)
    causes = _causes(failed, roles, first, explain)
    statuses = []
    for index in sorted({r.role for r in members} | set(range(len(roles)))):
        name = _role_name(roles, index)
        replicas = [
            ReplicaStatus(r.k, states[r.role, r.k], name, ":".join(r.hosts), causes.get((r.role, r.k), ("", NONE))[1])
            for r in members
            if r.role == index
        ]
        statuses.append(RoleStatus(name, replicas))
    folded = fold(
        fold((r.state for r in status.replicas), min_replicas=_fewest(roles, i)) for i, status in enumerate(statuses)
    )
    state = _until_all_ended(folded, states.values())
    over = is_terminal(state)
    starts = [times[0]] if times[0] else [r.started for r in members if r.started is not None]
    ends = [r.ended for r in members if r.ended is not None] + ([times[1]] if times[1] else [])
    cause = causes.get((failed[0].role, failed[0].k)) if failed else None
    return DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=restarts,
        msg=_message(state, members, states, roles, cause[0] if cause and folded is AppState.FAILED else ""),
        structured_error_msg=cause[1] if cause and folded is AppState.FAILED else NONE,
        roles_statuses=statuses,
        roles=list(roles),
        started_at=min(starts) if starts else None,
        ended_at=max(ends) if ends and over else None,
    )


def _fewest(roles: Sequence[Role], index: int) -> int | None:
    return roles[index].min_replicas if index < len(roles) else None


def _role_name(roles: Sequence[Role], index: int) -> str:
    return roles[index].name if index < len(roles) else str(index)


def _in_order(failed: list[Row], first: FirstFailure | None) -> list[Row]:
    """The one that failed first, first."""
    chosen = (first.role, first.k) if first is not None else None
    return sorted(failed, key=lambda r: ((r.role, r.k) != chosen, r.ended or float("inf")))


def _causes(
    failed: list[Row],
    roles: Sequence[Role],
    first: FirstFailure | None,
    explain: Callable[[Row, str], Failure] | None,
) -> dict[tuple[int, int], tuple[str, str]]:
    """Of the replicas that failed first: a sentence, and the structured message."""
    from torchx.specs.failures import Failure

    found = {}
    several = len(failed) > 1 or first is not None
    for i, row in enumerate(failed[:_EXPLAINED]):
        name = _role_name(roles, row.role)
        failure = explain(row, name) if explain else Failure(exit_code=exit_number(row))
        reason = why_ended(row.exit_reason) or (_NOT_FOUND if row.exit_code == "127" and not failure.message else "")
        if reason:
            # Its last words are those of a program that is being killed: the reason says more.
            failure = Failure(reason, failure.exit_code, failure.signal, failure.traceback, failure.timestamp)
        word = "failed first" if several and i == 0 and row.k + row.role + len(failed) > 1 else "failed"
        told = reason or failure.summary() or "it did not say why"
        found[row.role, row.k] = (f"{name}/{row.k} {word}: {told}", failure.to_structured_msg())
    return found


def exit_number(row: Row) -> int | None:
    """The exit code; None where a signal ended the replica (LSF adds 128 to its number), or LSF does not say."""
    code = int(row.exit_code) if row.exit_code.isdecimal() else None
    return None if code is None or signal_name(row) else code


def signal_name(row: Row) -> str:
    """The signal that ended a replica; empty when none did."""
    import signal

    try:
        return signal.Signals(int(row.exit_code) - 128).name
    except ValueError:
        return ""


def _message(
    state: AppState, members: Sequence[Row], states: dict[tuple[int, int], AppState], roles: Sequence[Role], cause: str
) -> str:
    """Why the job is in its state."""
    if cause:
        return cause if is_terminal(state) else f"{cause}; the others are being ended"
    waiting = [r for r in members if states[r.role, r.k] in (AppState.PENDING, AppState.UNKNOWN)]
    if not waiting or is_terminal(state):
        reasons = {why_ended(r.exit_reason) for r in members if states[r.role, r.k] is AppState.CANCELLED} - {""}
        return "; ".join(sorted(reasons)) or NONE
    # Most wait for replica 0; what that one waits for is the reason.
    told = next((r for r in waiting if not r.pend_reason.startswith(_DEPENDS)), waiting[0])
    reason = _TOLD.get(told.stat) or (why_pending(told.pend_reason) if told.pend_reason else NONE)
    if reason == NONE or len(members) == 1:
        return reason
    count = "all replicas wait" if len(waiting) == len(members) else f"{len(waiting)} of {len(members)} replicas wait"
    return f"{count}; {_role_name(roles, told.role)}/{told.k}: {reason}"
