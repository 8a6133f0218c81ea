"""Slurm's records of a job and the job's own notes, as facts."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Sequence

from torchx.schedulers.batch.folders import JobFolder, folder_name
from torchx.schedulers.kit.commands import last_line
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures import SHELL, Evidence, signal_name
from torchx.schedulers.kit.verdict import fold
from torchx.schedulers.slurm.events import SLURM_LOG, STEP_LOG, JobEvents, ReplicaEvents
from torchx.schedulers.slurm.parse import JobRecord, name_of
from torchx.schedulers.slurm.reasons import ENDINGS, NEVER_STARTED, app_state, reason_sentence
from torchx.specs.api import AppState, RetryPolicy, Role, is_terminal
from torchx.specs.wishes.retries import Attempt
from torchx.supervisor.layout import HANG_FILE
from torchx.util.records import dataclass, field, replace

_SUSPECTS = 4  # number of steps whose logs are searched for the failed node
_FAR_S = 30 * 86400.0  # without time limits, Slurm predicts starts that are too late to be useful
_SIGKILL = 9
_MIB = 1 << 20

# Messages of slurmstepd in the log of a step: of jobacct_gather, then of cgroups.
_OVER_MEMORY = re.compile(r"exceeded (?:job )?memory limit(?: \((\d+) > (\d+)\))?", re.IGNORECASE)
_OOM_KILL = re.compile(r"oom[-_ ]?kill|OOM Killed|out[- ]of[- ]memory", re.IGNORECASE)
NODE_FAILURE = re.compile(r"Node failure on (\S+)")
_SAID = re.compile(
    r"^(?:(?:slurmstepd\S*|srun|sbatch|slurmd\S*|torchx): (?:error: |fatal: )?"
    r"|\S*(?:slurm_script|job\.sh): line \d+: )(.*)$",  # of bash, which could not start srun
    re.MULTILINE,
)
_NO_NEWS = re.compile(
    r"^Job step aborted|^\*\*\*|task \S+: (Exited with exit code|Killed|Terminated)|^got SIGCONT|^forcing job"
)


@dataclass(kw_only=True)
class Job:
    """All that is known of one job.

    Attributes:
        records: Slurm's, one per component; empty if Slurm no longer knows the job.
        steps: Slurm's records of its steps, if they were queried.
        events: the notes of its script.
        folder: None if it is unknown: torchx did not launch the job, or the folder was removed.
        texts: contents of the files from :func:`telling_files`, by name.
        attempts: the finished ones, of a job with a retry policy.
    """

    app_id: str
    records: Sequence[JobRecord]
    steps: Sequence[JobRecord] = ()
    events: JobEvents
    folder: JobFolder | None = None
    roles: Sequence[Role] = ()
    texts: dict[str, str] = field(default_factory=dict)
    attempts: Sequence[Attempt] = ()

    @property
    def state(self) -> AppState:
        """The state of the whole job: Slurm's, or that of the notes if Slurm no longer knows the job."""
        if self.records:
            return fold([app_state(record.state) for record in self.records])
        if self.events.exit_code is None:
            return AppState.UNKNOWN
        return AppState.FAILED if self.events.exit_code else AppState.SUCCEEDED

    @property
    def completing(self) -> bool:
        """Whether some of its processes are still ending."""
        return any(record.completing for record in self.records)

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it or a replica, which may mean that memory ran out."""
        killed = any(e.exit_code == SHELL + _SIGKILL for e in self.events.replicas.values())
        return killed or any(r.signal == _SIGKILL for r in self.records)

    @property
    def ending(self) -> str:
        """Slurm's state that explains the failure, or that of the last attempt; empty if none does."""
        states = [r.state for r in self.records if app_state(r.state) is AppState.FAILED]
        last, told = next(iter(self.attempts[-1:]), None), self.events.silent or self.events.unready
        late = last is not None and (last.kind, last.again) == ("timeout", False) and not told
        return next((s for s in states if s in ENDINGS), "TIMEOUT" if late and self.state is AppState.FAILED else "")


def bare(app_id: str, records: Sequence[JobRecord]) -> Job:
    """Return a job of which only Slurm's records are known."""
    return Job(app_id=app_id, records=records, events=JobEvents())


def facts_of(job: Job, *, now: float | None = None) -> JobFacts:
    """Facts about a job; ``now`` is the Unix time for estimates of its start."""
    state, events = job.state, job.events
    first = job.records[0] if job.records else None
    hang = job.texts.get(HANG_FILE, "").strip()
    kind = ENDINGS[job.ending][0] if job.ending else "timeout" if events.silent or events.unready else ""
    waits = first is not None and state is AppState.PENDING
    return JobFacts(
        app_id=job.app_id,
        roles=[_role(job, role, state, kind) for role in job.roles],
        state=state,
        native=first.state if first else "",
        reason=_reason(job, state, now),
        kind=kind,
        cancelled=state is AppState.CANCELLED,
        kill_in_s=_kill_in_s(job, time.time() if now is None else now),
        restarts=_restarts(job, state),
        attempts=job.attempts,
        hang=hang,
        started=None if waits else events.started or (first.started if first else None),
        ended=(first.ended if first else None) or events.ended or None,
        definition=job.roles,
    )


def _kill_in_s(job: Job, now: float) -> float | None:
    return max((record.kill_at - now for record in job.records if record.kill_at), default=None)


def _restarts(job: Job, state: AppState) -> int:
    """How often the job, or a part of it, was restarted. Slurm's counter lags while a requeued job is pending."""
    starts = job.events.starts + (1 if state is AppState.PENDING else 0)
    counted = max((record.restarts for record in job.records), default=0)
    return max(counted, starts - 1, 0) + job.events.again


# -- replicas ----------------------------------------------------------------------------------------


def _role(job: Job, role: Role, state: AppState, kind: str) -> RoleFacts:
    members = [_replica(job, role, k, state, kind) for k in range(role.num_replicas)]
    again = state is AppState.RUNNING and _starts_again(job.events, role)
    return RoleFacts(name=role.name, replicas=members, min_replicas=role.min_replicas, restarts=again)


def _starts_again(events: JobEvents, role: Role) -> bool:
    """Whether the job's script restarts failed replicas of the role."""
    folder = folder_name(role.name)
    tries = [events.tries.get(f"{folder}/{k}", 0) for k in range(role.num_replicas)]
    if role.retry_policy is RetryPolicy.REPLICA:
        return max(tries, default=0) < role.max_retries
    if role.retry_policy is RetryPolicy.ROLE:
        return sum(tries) < role.max_retries
    return events.retries < role.max_retries and role.min_replicas is None


def _replica(job: Job, role: Role, k: int, state: AppState, kind: str) -> ReplicaFacts:
    path = f"{folder_name(role.name)}/{k}"
    known = job.events.replicas.get(path)
    if known is None:
        over = is_terminal(state)
        own = AppState.CANCELLED if over else AppState.PENDING if role.after else state
        return ReplicaFacts(role=role.name, replica=k, state=own, stopped=over)
    code = known.exit_code
    signal = signal_name(code) if code is not None and code > SHELL else ""
    stopped = known.stopped or (bool(code) and _was_stopped(job, known, state, kind, by_signal=bool(signal)))
    own = _replica_state(job, known, state, stopped=stopped)
    return ReplicaFacts(
        role=role.name,
        replica=k,
        state=own,
        exit_code=None if signal or (stopped and not known.stopped) else code,  # what ended the job chose it
        signal=signal,
        host=known.host,
        ended=known.ended,
        ready=known.ready,
        reason=_memory_sentence(job, role) if signal == "SIGKILL" and not stopped else "",
        stopped=stopped or (code is None and own is AppState.CANCELLED),
    )


def _replica_state(job: Job, known: ReplicaEvents, state: AppState, *, stopped: bool) -> AppState:
    if state in (AppState.PENDING, AppState.UNKNOWN):
        return state
    if known.absent:
        return AppState.CANCELLED if is_terminal(state) else AppState.PENDING
    if known.exit_code is None:
        going = not is_terminal(state) or job.completing
        return AppState.RUNNING if going else state if state is AppState.SUCCEEDED else AppState.CANCELLED
    if state is AppState.CANCELLED and known.ended >= max(record.ended or 0 for record in job.records) - 1:
        return AppState.CANCELLED
    if known.exit_code == 0:
        return AppState.CANCELLED if known.stopped else AppState.SUCCEEDED
    cancelled = stopped and (state is AppState.CANCELLED or (job.completing and state is AppState.RUNNING))
    return AppState.CANCELLED if cancelled else AppState.FAILED


def _was_stopped(job: Job, known: ReplicaEvents, state: AppState, kind: str, *, by_signal: bool) -> bool:
    """Whether it was ended because another replica failed, or together with the whole job."""
    if kind in ("node", "preempted", "lost") or job.events.silent or known.stopped:
        return True
    first_failure = min((e.ended for e in job.events.replicas.values() if e.exit_code), default=0.0)
    with_the_job = state is AppState.CANCELLED or kind == "timeout" or (job.completing and state is AppState.RUNNING)
    return by_signal and (with_the_job or known.ended > first_failure)


# -- why ---------------------------------------------------------------------------------------------


def _reason(job: Job, state: AppState, now: float | None) -> str:
    """Why the job is in its state."""
    first = job.records[0] if job.records else None
    if first is not None and state is AppState.PENDING:
        most = max((role.max_retries for role in job.roles), default=0)
        return pending_sentence(job.records, job.events, most_retries=most, now=now)
    if state is AppState.FAILED and job.ending:
        return ENDINGS[job.ending][1] + (_where(job) if job.ending in ("NODE_FAIL", "BOOT_FAIL") else "")
    if state is AppState.FAILED and job.events.silent:
        return job.texts.get(HANG_FILE, "").strip() or "it was silent for longer than its watchdog allows"
    if job.events.unready and state in (AppState.FAILED, AppState.RUNNING):
        return _unready(job, *job.events.unready)
    if state is AppState.FAILED:
        return "" if _somebody_failed(job) else _batch_failure(job)
    if state is AppState.CANCELLED and first is not None:
        return _cancelled(first)
    if state is not AppState.UNKNOWN:
        return ""
    if first is None:
        how = "it did not record how it ended" if job.events.starts else "it never started"
        return f"Slurm no longer knows this job, and {how}"
    return f"Slurm says `{first.state}`, which this version of torchx does not know"


def _unready(job: Job, path: str, how: str, seen: str, said: str) -> str:
    """Return why a job ended of which a role was not ready."""
    from torchx.schedulers.kit.order import unready

    folder = posixpath.dirname(path)
    name = next((role.name for role in job.roles if folder_name(role.name) == folder), folder)
    return unready(job.roles, name, early=how == "early", seen=seen, said=said)


def _cancelled(record: JobRecord) -> str:
    """Return who cancelled a job, unless its owner did, or what it waited for in vain."""
    if record.reason.startswith("Dependency") and not record.started:
        return NEVER_STARTED
    name = name_of(record.cancelled_by)
    return f"it was cancelled by {name}" if name not in ("", record.user) else ""


def _somebody_failed(job: Job) -> bool:
    return any(replica.exit_code for replica in job.events.replicas.values())


def pending_sentence(
    records: Sequence[JobRecord], events: JobEvents, *, most_retries: int = 0, now: float | None = None
) -> str:
    """Why a job, restarted up to ``most_retries`` times, is pending, and when Slurm expects to start it."""
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
    if not re.search("hold|held", code, re.IGNORECASE) and now < expected < now + _FAR_S:
        parts.append(f"expected to start in about {_duration(expected - now)}, at {_clock(expected, now)}")
    return "; ".join(parts)


def telling_files(job: Job) -> list[str]:
    """Names of files in the job's folder with the watchdog's findings, or with the reason of an unexplained failure."""
    seen = [HANG_FILE] if job.events.hung else []
    if job.state is not AppState.FAILED or job.events.silent:
        return seen
    if job.ending in ("NODE_FAIL", "BOOT_FAIL"):
        suspects = [path for path, e in job.events.replicas.items() if e.up and e.exit_code != 0]
        return [*seen, *(posixpath.join(path, STEP_LOG) for path in suspects[:_SUSPECTS])]
    return seen if job.ending or _somebody_failed(job) else [*seen, SLURM_LOG]


def _where(job: Job) -> str:
    """Return the node that failed, from the logs of steps; else the nodes of the job."""
    named = [found[1] for text in job.texts.values() if (found := NODE_FAILURE.search(text))]
    if named:
        return f": {named[0]}"
    nodes = ",".join(record.nodes for record in job.records if record.nodes)
    return f"; its nodes: {nodes}" if nodes else ""


def _batch_failure(job: Job) -> str:
    """Why a job failed although none of its replicas did."""
    record = job.records[0] if job.records else None
    how = ""
    if record is not None and record.signal:
        how = f"killed by {signal_name(record.signal) or record.signal}"
    elif record is not None and record.exit_code:
        how = f"exit code {record.exit_code}"
    reason = reason_sentence(record.reason) if record is not None and record.reason != "NonZeroExitCode" else ""
    said = last_line(job.texts.get(SLURM_LOG, ""), "")
    return ": ".join(part for part in ("the batch script failed", how, reason, said) if part)


def _memory_sentence(job: Job, role: Role) -> str:
    """Return a sentence if Slurm's records of the job and its steps show that memory ran out; else empty."""
    worst = max((step.max_rss for step in job.steps), default=0)
    if any(step.state == "OUT_OF_MEMORY" for step in (*job.records, *job.steps)):
        return "out of memory" + (f": a step used {worst // _MIB} MiB" if worst else "")
    asked = 0 if role.resource.is_unset else role.resource.memMB
    if asked > 0 and worst > asked * _MIB * 0.95:
        return f"probably out of memory: a step used {worst // _MIB} MiB, and {asked} MiB were asked for"
    return ""


def explained(left: Evidence, *, signal: str) -> Evidence:
    """Return the evidence of a replica that ``signal`` ended (empty: none), with a reason from Slurm's messages."""
    oom = _OOM_KILL.search(left.said)
    if signal == "SIGKILL" and (oom or _OVER_MEMORY.search(left.said)):
        figures = next((m for m in _OVER_MEMORY.finditer(left.said) if m[1]), None)
        used = f": it used {int(figures[1]) // _MIB} MiB and may use {int(figures[2]) // _MIB} MiB" if figures else ""
        return replace(left, reason=f"out of memory{used}")
    if oom:  # with cgroups srun may exit with 1; or only a child of the program was killed
        return replace(left, reason="out of memory")
    if left.error_file or left.stderr.strip() or left.stdout.strip():
        return left
    said = [line for line in _SAID.findall(left.said) if not _NO_NEWS.search(line)]
    return replace(left, reason=said[0]) if said else left


# -- times -------------------------------------------------------------------------------------------


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} days"


def _clock(moment: float, now: float) -> str:
    then, today = time.localtime(moment), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)
