"""Retries of a Slurm job: its batch script runs this after each attempt, see ``batch/attempts.py``."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.batch import attempts
from torchx.schedulers.batch.attempts import ends_of, output_lines
from torchx.schedulers.batch.folders import TAIL_BYTES, JobFolder
from torchx.schedulers.kit.attempts import ATTEMPTS_FILE, BEGINS, put_down
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.verdict import Verdict, judge
from torchx.schedulers.slurm.answers import NODE_FAILURE, Job, explained, facts_of
from torchx.schedulers.slurm.events import STEP_LOG
from torchx.schedulers.slurm.folders import files_of
from torchx.schedulers.slurm.parse import JobRecord
from torchx.schedulers.slurm.reasons import base_state
from torchx.specs.api import AppDef
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import Attempt, RetryRules, to_line
from torchx.supervisor.layout import STDERR_LOG, STDOUT_LOG, private

_DOWN = ("down", "drain", "fail", "unk", "not_resp", "no_resp")
_STATES = {"failed": "FAILED", "timeout": "TIMEOUT"}


def policy(app: AppDef, caps: Capabilities, requeue: str = "auto") -> RetryRules | None:
    """See :func:`torchx.schedulers.batch.attempts.policy`. SpecError for a chain that Slurm may not requeue."""
    rules = Wishes.of(app).retry
    if requeue == "no" and rules is not None and rules.total:
        raise SpecError(
            f"`--total {rules.total}` needs `requeue`: a piece is the same job, which Slurm puts back into its queue",
            hint="omit `requeue=no`",
        )
    # Each component of a heterogeneous job requests memory of its own.
    differ = len({(r.resource.cpu, r.resource.memMB, r.resource.gpu) for r in app.roles}) > 1
    return attempts.policy(app, "Slurm", caps, no_memory="roles that differ" if differ else "")


def main() -> None:
    """Print ``again HOSTS MEMORY`` (hosts to avoid, or ``-``; memory in thousandths of the request), or ``end``."""
    if sys.argv[1] == "refused":
        not_requeued(os.getcwd())
        return
    attempt = attempt_ended(os.getcwd(), sys.argv[1])
    answer = f"again {','.join(attempt.avoid) or '-'} {round(attempt.memory * 1000)}" if attempt.again else "end"
    sys.stdout.write(answer + "\n")


def attempt_ended(folder: str, how: str) -> Attempt:
    """Record the attempt that has just ended, and whether to start another one.

    Args:
        how: ``failed``: a replica failed; ``timeout``: the time limit is near; ``requeued``: Slurm ended the attempt
            and has already restarted the job.

    Returns:
        The attempt; if the job requeued itself, the one that it recorded before.
    """
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as f:
        rules = Wishes.read(json.load(f)["app"]["metadata"]).retry or RetryRules(())
    job, place = seen_from_inside(folder, _STATES.get(how) or _last_state(), ended=time.time())
    attempts = list(job.attempts)
    if how == "requeued" and job.events.retrying:
        return attempts[-1]
    if len(attempts) >= job.events.starts > 0:
        return attempts[-1]  # by this program, which was killed after it had recorded it
    verdict = judge(facts_of(job), functools.partial(left_in, place))
    paths = [f"{path}/{name}" for path in job.events.replicas for name in (STDOUT_LOG, STDERR_LOG)]
    attempt = Attempt(
        started=job.events.started,
        ended=time.time(),
        hosts=_hosts(job, verdict),
        more={BEGINS: ends_of(place, paths)},
    )
    return put_down(folder, verdict, rules, attempts, attempt, hosts=_number_of_hosts())


def not_requeued(folder: str) -> None:
    """Record that no attempt follows the last one, because Slurm does not requeue the job."""
    *earlier, last = attempts.attempts_in(folder)
    last.again, last.why = False, f"{last.kind}: Slurm refuses to requeue the job"
    with open(os.path.join(folder, ATTEMPTS_FILE), "w", encoding="utf-8", opener=private) as f:
        f.writelines(map(to_line, (*earlier, last)))


def seen_from_inside(folder: str, state: str, **known: Any) -> tuple[Job, JobFolder]:
    """Return the job whose script runs this, with what is ``known`` instead of Slurm's record; and its folder."""
    job_id, files = os.environ.get("SLURM_JOB_ID", "0"), LocalFiles()
    job = files_of(files, {job_id: [JobRecord(job_id=job_id, state=state, folder=folder, **known)]}, {})[job_id]
    return job, job.folder or JobFolder(files, folder)


def left_in(folder: JobFolder, replicas: Sequence[ReplicaFacts]) -> list[Evidence]:
    """Return what failed replicas left behind in a job's folder."""
    left = folder.evidence([(r.role, r.replica) for r in replicas], said=STEP_LOG)
    return [explained(found, signal=r.signal) for found, r in zip(left, replicas, strict=True)]


def _last_state() -> str:
    """Return the final state of a requeued job's last run in Slurm's accounting, or ``NODE_FAIL``."""
    job_id = os.environ.get("SLURM_JOB_ID", "0")
    states = [base_state(line) for line in output_lines("sacct", "-D", "-X", "-n", "-P", "-j", job_id, "-o", "State")]
    before = [state for state in states if state not in ("RUNNING", "PENDING")]
    if not before:
        return "NODE_FAIL"
    # requeued by an administrator or a site policy: another job gets its nodes
    return "PREEMPTED" if before[-1] in ("REQUEUED", "COMPLETED") else before[-1]


def _hosts(job: Job, verdict: Verdict) -> list[str]:
    """Return the failed hosts, or the host of the replica that failed first."""
    found = [failure.kind for failure in verdict.failures.values()]
    if verdict.cause is None or verdict.cause.kind != "node" or "node" in found:
        return verdict.hosts()
    known = sorted({e.host for e in job.events.replicas.values() if e.host})
    named = _named(job).intersection(known)
    if named or not known:
        return sorted(named)
    rows = [line.split() for line in output_lines("sinfo", "-h", "-N", "-n", ",".join(known), "-o", "%N %t")]
    down = sorted({row[0] for row in rows if len(row) == 2 and row[1].lower().startswith(_DOWN)})
    return down or (known if len(known) == 1 else [])


def _named(job: Job) -> set[str]:
    """Return the hosts that step logs name as failed. Slurm ends replicas on healthy hosts for the same reason."""
    if job.folder is None:
        return set()
    paths = [os.path.join(job.folder.path, path, STEP_LOG) for path in job.events.replicas]
    logs = job.folder.files.grown(dict.fromkeys(paths, -TAIL_BYTES)).values()
    return {host for log in logs for host in NODE_FAILURE.findall(log.decode("utf-8", "replace"))}


def _number_of_hosts() -> int:
    """Return the number of nodes in the job's partition; 0 if Slurm does not report it."""
    partition = os.environ.get("SLURM_JOB_PARTITION", "")
    rows = output_lines("sinfo", "-h", *(["-p", partition] if partition else []), "-o", "%D")
    return sum(int(row) for row in rows if row.strip().isdigit())
