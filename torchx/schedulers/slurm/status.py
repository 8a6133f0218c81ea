"""What became of a Slurm job, in sentences: from Slurm's records, the job's own notes, and its logs."""

from __future__ import annotations

import posixpath
import re
import time

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.folders import folder_name
from torchx.schedulers.kit.causes import is_aftermath
from torchx.schedulers.kit.verdict import fold
from torchx.schedulers.slurm.reasons import ENDINGS, app_state, reason_sentence
from torchx.schedulers.slurm.script import SLURM_LOG, STEP_LOG
from torchx.specs.api import NONE, AppState, ReplicaStatus, RoleStatus, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from dataclasses import dataclass

    from torchx.schedulers.batch.folders import JobFolder
    from torchx.schedulers.slurm.answers import JobRecord
    from torchx.schedulers.slurm.events import JobEvents, ReplicaEvents
    from torchx.specs.api import Role
    from torchx.specs.failures import Failure
else:
    from torchx.util.records import dataclass

_LOOKED_AT = 4
_TAIL_BYTES = 1 << 13
_FAR_S = 30 * 86400.0  # where nobody says how long jobs take, Slurm expects the worst
_LAST_WORDS_S = 40.0  # the longest that processes have, by default: KillWait, and some
_LAST_SIGNAL = 64
_MIB = 1 << 20

# What slurmstepd says in the log of a step; the first is of jobacct_gather, the others of cgroups.
_OVER_MEMORY = re.compile(r"exceeded (?:job )?memory limit(?: \((\d+) > (\d+)\))?", re.IGNORECASE)
_OOM_KILL = re.compile(r"oom[-_ ]?kill|OOM Killed|out[- ]of[- ]memory", re.IGNORECASE)
_NODE_FAILURE = re.compile(r"Node failure on (\S+)")
_SAID = re.compile(r"^(?:slurmstepd\S*|srun|sbatch|slurmd\S*|torchx): (?:error: |fatal: )?(.*)$", re.MULTILINE)
_NO_NEWS = re.compile(
    r"^Job step aborted|^\*\*\*|task \S+: (Exited with exit code|Killed|Terminated)|^got SIGCONT|^forcing job"
)


@dataclass(kw_only=True)
class Job:
    """All that is known of one job.

    Attributes:
        records: Slurm's, a component each; empty when it does not know the job any more.
        steps: Slurm's records of its steps, where they were asked for.
        events: its own notes.
        folder: None when it is not known: the job is not ours, or its folder was removed.
    """

    app_id: str
    records: Sequence[JobRecord]
    steps: Sequence[JobRecord] = ()
    events: JobEvents
    folder: JobFolder | None
    roles: list[Role]

    @property
    def state(self) -> AppState:
        """Of the whole job."""
        if self.records:
            return fold([app_state(record.state) for record in self.records])
        if self.events.exit_code is None:
            return AppState.UNKNOWN
        return AppState.FAILED if self.events.exit_code else AppState.SUCCEEDED


def describe(job: Job) -> DescribeAppResponse:
    """The job as the user sees it. Logs of a job that failed are read for its cause."""
    state, events = job.state, job.events
    first = job.records[0] if job.records else None
    answer = DescribeAppResponse(
        app_id=job.app_id,
        state=state,
        num_restarts=_restarts(job, state),
        roles=job.roles,
        roles_statuses=[_role_status(job, role, state) for role in job.roles],
        msg=NONE,
    )
    if first is None or state is not AppState.PENDING:
        answer.started_at = events.started or (first.started if first else None)
    if is_terminal(state):
        answer.ended_at = (first.ended if first else None) or events.ended or None
    if state is AppState.PENDING:
        answer.msg = pending_sentence(
            job.records, job.events, most_retries=max((r.max_retries for r in job.roles), default=0)
        )
    elif state is AppState.FAILED:
        _explain(job, answer)
    elif first is None:
        answer.msg = "Slurm no longer knows this job" + (
            ", and it did not get to say how it ended" if events.starts else ", and it never started"
        )
    elif state is AppState.UNKNOWN:
        answer.msg = f"Slurm says `{first.state}`, which this version of torchx does not know"
    return answer


def _restarts(job: Job, state: AppState) -> int:
    """How often the job, or a part of it, was started again. Slurm forgets to count while the job waits for it."""
    starts = job.events.starts + (1 if state is AppState.PENDING else 0)
    counted = max((record.restarts for record in job.records), default=0)
    return max(counted, starts - 1, 0) + job.events.again


def pending_sentence(
    records: Sequence[JobRecord], events: JobEvents, *, most_retries: int = 0, now: float | None = None
) -> str:
    """Why a job waits, and when Slurm expects to start it.

    Args:
        most_retries: how often it may be started again.
        now: Unix time.
    """
    now = time.time() if now is None else now
    reasons = [r.reason for r in records if r.reason not in ("", "None")]
    code = reasons[0] if reasons else ""
    sentence = reason_sentence(code)
    parts = []
    if events.retrying:
        of = f" of {most_retries}" if most_retries else ""
        parts.append(f"starts again after a failure, retry {events.retries}{of}")
    if sentence and not (parts and code == "BeginTime"):
        parts.append(f"{sentence} ({code})" if f"`{code}`" not in sentence else sentence)
    elif not parts:
        parts.append("Slurm has not looked at it yet")
    expected = max((r.started or 0 for r in records), default=0)
    if now < expected < now + _FAR_S:
        parts.append(f"expected to start in about {_duration(expected - now)}, at {_clock(expected, now)}")
    return "; ".join(parts)


def is_quiet(job: Job, now: float) -> bool:
    """Whether a job that is over has also stopped writing: Slurm calls it cancelled while its processes still end."""
    writing = any(e.up and e.exit_code is None for e in job.events.replicas.values())
    ended = max((r.ended or 0 for r in job.records), default=0)
    return not writing or job.folder is None or now - ended > _LAST_WORDS_S


# -- replicas ----------------------------------------------------------------------------------------


def _role_status(job: Job, role: Role, state: AppState) -> RoleStatus:
    name = folder_name(role.name)
    first_failure = _first_failure(job.events)
    cancelled_at = max((record.ended or 0 for record in job.records), default=0) - 1
    replicas = []
    for k in range(role.num_replicas):
        known = job.events.replicas.get(f"{name}/{k}")
        replica_state = _replica_state(known, state, first_failure)
        if state is AppState.CANCELLED and known is not None and known.ended >= cancelled_at:
            replica_state = AppState.CANCELLED
        replicas.append(ReplicaStatus(k, replica_state, role.name, known.host if known else ""))
    return RoleStatus(role.name, replicas)


def _replica_state(known: ReplicaEvents | None, state: AppState, first_failure: float) -> AppState:
    if state in (AppState.PENDING, AppState.UNKNOWN):
        return state
    if known is None or known.absent:
        if not is_terminal(state):
            return AppState.PENDING if known is not None else state
        return state if known is None and state is not AppState.SUCCEEDED else AppState.CANCELLED
    if known.exit_code is None:
        return state
    if known.exit_code == 0:
        return AppState.SUCCEEDED
    # Those that were stopped because another had failed, or with the whole job, did not fail themselves.
    if known.exit_code > 128 and (state is AppState.CANCELLED or known.ended > first_failure):
        return AppState.CANCELLED
    return AppState.FAILED


def _first_failure(events: JobEvents) -> float:
    return min((e.ended for e in events.replicas.values() if e.exit_code), default=0.0)


# -- failures ----------------------------------------------------------------------------------------


def _explain(job: Job, answer: DescribeAppResponse) -> None:
    """Puts the cause of a failure into the answer."""
    states = [r.state for r in job.records if app_state(r.state) is AppState.FAILED]
    ending = next((s for s in states if s in ENDINGS), "")
    found = [] if ending in ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED") else _failures(job, answer)
    parts = []
    if ending:
        parts.append(ENDINGS[ending] + (_where(job) if ending in ("NODE_FAIL", "BOOT_FAIL") else ""))
    if found:
        replica, failure = min(found, key=_by_guilt)
        failure = _with_memory(job, replica, failure)
        answer.structured_error_msg = replica.structured_error_msg = failure.to_structured_msg()
        if ending not in ("TIMEOUT", "DEADLINE") or not failure.signal:
            several = sum(len(role.replicas) for role in answer.roles_statuses) > 1
            where = f" on {replica.hostname}" if replica.hostname else ""
            first = " first" if several else ""
            told = f"{replica.role}/{replica.id}{where} failed{first}: {failure.summary()}"
            if ending in ("TIMEOUT", "DEADLINE"):
                parts.append(told)
            else:
                parts = [told] if "memory" in told or ending != "OUT_OF_MEMORY" else [told, *parts]
    elif not ending:
        parts.append(_batch_failure(job))
    if job.events.retries:
        parts.append(f"after {job.events.retries} retr{'ies' if job.events.retries > 1 else 'y'}")
    answer.msg = "; ".join(part for part in parts if part)


def _by_guilt(pair: tuple[ReplicaStatus, Failure]) -> tuple[bool, float]:
    """The cause comes before what followed from it, and the earlier before the later."""
    return is_aftermath(pair[1]), pair[1].timestamp or float("inf")


def _where(job: Job) -> str:
    """The node that failed, as the steps of replicas tell it; else the nodes of the job."""
    suspects = [path for path, e in job.events.replicas.items() if e.up and e.exit_code != 0]
    if job.folder is not None:
        for path in suspects[:_LOOKED_AT]:
            found = _NODE_FAILURE.search(_tail(job.folder, posixpath.join(path, STEP_LOG)))
            if found is not None:
                return f": {found[1]}"
    nodes = ",".join(record.nodes for record in job.records if record.nodes)
    return f"; its nodes: {nodes}" if nodes else ""


def _failures(job: Job, answer: DescribeAppResponse) -> list[tuple[ReplicaStatus, Failure]]:
    """The replicas that failed first, each with its cause."""
    if job.folder is None:
        return []
    failed = []
    for role in answer.roles_statuses:
        for replica in role.replicas:
            known = job.events.replicas.get(f"{folder_name(role.role)}/{replica.id}")
            if replica.state is AppState.FAILED and known is not None and known.exit_code:
                failed.append((known.ended, replica, known.exit_code))
    failed.sort(key=lambda row: row[0])
    found = []
    for ended, replica, code in failed[:_LOOKED_AT]:
        name = _signal_name(code - 128) if 128 < code <= 128 + _LAST_SIGNAL else ""
        failure = job.folder.failure(
            replica.role, replica.id, exit_code=None if name else code, signal_name=name, ended=ended
        )
        if not failure.message and not failure.traceback:
            failure = _said_by_slurm(job.folder, replica, failure)
        found.append((replica, failure))
    return found


def _said_by_slurm(folder: JobFolder, replica: ReplicaStatus, failure: Failure) -> Failure:
    """Where the program said nothing: what Slurm said of its step."""
    from torchx.specs.failures import Failure

    said = [line for line in _SAID.findall(_step_log(folder, replica)) if not _NO_NEWS.search(line)]
    return Failure(said[0] if said else "", failure.exit_code, failure.signal, "\n".join(said[:8]), failure.timestamp)


def _with_memory(job: Job, replica: ReplicaStatus, failure: Failure) -> Failure:
    """Says so when it was memory that ran out: by the log of the step, else by Slurm's record of it."""
    from torchx.specs.failures import Failure

    if failure.signal == "SIGKILL":
        sentence = _memory_sentence(job, replica)
    else:  # with cgroups `srun` may end with 1, and the program may have lost a child only
        sentence = "out of memory" if _OOM_KILL.search(_step_log_of(job, replica)) else ""
        said = failure.message if sentence and not _OOM_KILL.search(failure.message) else ""
        sentence += f": {said}" if said else ""
    if not sentence:
        return failure
    return Failure(sentence, failure.exit_code, failure.signal, failure.traceback, failure.timestamp)


def _memory_sentence(job: Job, replica: ReplicaStatus) -> str:
    log = _step_log_of(job, replica)
    if _OVER_MEMORY.search(log) or _OOM_KILL.search(log):
        figures = next((m for m in _OVER_MEMORY.finditer(log) if m[1]), None)
        used = f": it used {int(figures[1]) // _MIB} MiB and may use {int(figures[2]) // _MIB} MiB" if figures else ""
        return f"out of memory{used}"
    worst = max((step.max_rss for step in job.steps), default=0)
    if any(step.state == "OUT_OF_MEMORY" for step in (*job.records, *job.steps)):
        return "out of memory" + (f": a step used {worst // _MIB} MiB" if worst else "")
    asked = next((role.resource.memMB for role in job.roles if role.name == replica.role), 0)
    if asked > 0 and worst > asked * _MIB * 0.95:
        return f"probably out of memory: a step used {worst // _MIB} MiB, and {asked} MiB were asked for"
    return ""


def _batch_failure(job: Job) -> str:
    """Why a job failed of which no replica did."""
    record = job.records[0] if job.records else None
    how = ""
    if record is not None and record.signal:
        how = f"killed by {_signal_name(record.signal)}"
    elif record is not None and record.exit_code:
        how = f"exit code {record.exit_code}"
    reason = reason_sentence(record.reason) if record is not None and record.reason != "NonZeroExitCode" else ""
    said = ""
    if job.folder is not None:
        lines = _tail(job.folder, SLURM_LOG).strip().splitlines()
        said = lines[-1] if lines else ""
    return ": ".join(part for part in ("the batch script failed", how, reason, said) if part)


def _step_log(folder: JobFolder, replica: ReplicaStatus) -> str:
    return _tail(folder, posixpath.join(folder_name(replica.role), str(replica.id), STEP_LOG))


def _step_log_of(job: Job, replica: ReplicaStatus) -> str:
    return _step_log(job.folder, replica) if job.folder is not None else ""


def _tail(folder: JobFolder, name: str) -> str:
    path = posixpath.join(folder.path, name)
    size = folder.files.sizes([path])[path] or 0
    data = folder.files.read(path, max(0, size - _TAIL_BYTES), _TAIL_BYTES) or b""
    return data.decode("utf-8", "replace")


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- times -------------------------------------------------------------------------------------------


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} days"


def _clock(moment: float, now: float) -> str:
    then, today = time.localtime(moment), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)
