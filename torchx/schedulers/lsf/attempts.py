"""Retries of an LSF job: the first replica that fails runs this, see ``batch/attempts.py``.

Each attempt is a new submission: ``submit.sh`` is rewritten, with more memory or without some hosts, because after
``brequeue`` nothing could ``bmod`` the job before it restarts. Names stay the same, and of several LSF jobs with one
name the newest counts.
"""

from __future__ import annotations

import json
import os
import sys
import time

from torchx.errors import TorchXError
from torchx.schedulers.batch import attempts
from torchx.schedulers.batch.attempts import attempts_in, ends_of, output_lines
from torchx.schedulers.batch.folders import JOB_FILE, JobFolder, folder_name
from torchx.schedulers.kit.attempts import BEGINS, begins_of, put_down
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.commands import LocalCommandRunner
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.verdict import judge
from torchx.schedulers.lsf.answers import Exit, facts_of
from torchx.schedulers.lsf.client import bjobs
from torchx.schedulers.lsf.options import Opts
from torchx.schedulers.lsf.parse import Row
from torchx.schedulers.lsf.reasons import ENDED
from torchx.schedulers.lsf.replicas import EXIT_FILE, SILENT_FILE, SUBMIT_FILE
from torchx.schedulers.lsf.request import RANK0_HOST, get_submit_script
from torchx.specs.api import AppDef, AppState
from torchx.specs.serialize import appdef_from_dict
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import Attempt, RetryRules
from torchx.supervisor.layout import private
from torchx.supervisor.watchdog import seen
from torchx.util.records import replace
from torchx.util.strings import parse_size

OPTIONS_FILE = "retry.json"
"""The options for later submissions, as a file for the hosts."""

_ENOUGH = 0.98  # `bjobs` rounds memory sizes
_GONE = ("unavail", "unreach")  # states of hosts in bhosts
_LOST = ("UNKWN", "ZOMBI")  # states of jobs
_REASONS = {
    "timeout": ENDED["TERM_RUNLIMIT"],
    "oom": ENDED["TERM_MEMLIMIT"],
    "node": "its host does not answer to LSF",
    "preempted": "LSF has put it back into the queue",
}


def policy(app: AppDef, opts: Opts, caps: Capabilities) -> RetryRules | None:
    """See :func:`torchx.schedulers.batch.attempts.policy`."""
    return attempts.policy(app, "LSF", caps, no_memory="`memory=none`" if opts.memory == "none" else "")


def main() -> None:
    """Print ``again`` after it has written the next submission script, ``end``, or ``stopped`` for a cancelled job.

    Arguments: how the attempt ended (``failed``, ``timeout``, ``killed`` or ``requeued``), the numbers of role and
    replica, and the replica's previous host.
    """
    folder = os.path.dirname(os.path.abspath(sys.argv[0]))
    how, role, k, *host = sys.argv[1:]
    attempt = attempt_ended(folder, how, (int(role), int(k)), host="".join(host))
    if attempt is not None and attempt.again:
        script = next_submission(folder, attempt)
        path = os.path.join(folder, SUBMIT_FILE)
        with open(path, "w", encoding="utf-8", errors="surrogateescape", opener=private) as f:
            f.write(script)
    sys.stdout.write("stopped\n" if attempt is None else "again\n" if attempt.again else "end\n")


def attempt_ended(folder: str, how: str, failed: tuple[int, int], *, host: str = "") -> Attempt | None:
    """Record the attempt that has just ended, and whether to start another one; None if the job was cancelled.
    ``failed`` are the numbers of the role and replica that failed, ``host`` is its previous one, if LSF requeued it.
    """
    kind = _kind(how, host)
    if kind == "cancelled":
        return None
    app_id, app = _job(folder)
    place = JobFolder(LocalFiles(), folder)
    earlier = attempts_in(folder)
    place.begins = begins_of(earlier)
    known = _known(place, app_id, app, failed)
    facts = _with_ends(known, failed, kind, host)
    verdict = judge(facts, lambda replicas: place.evidence([(r.role, r.replica) for r in replicas]))
    paths = [f"{folder_name(r.role)}/{r.replica}/{name}.log" for r in facts.replicas() for name in ("stdout", "stderr")]
    attempt = Attempt(
        started=_began(folder, len(earlier)),
        ended=time.time(),
        hosts=verdict.hosts(),
        more={BEGINS: ends_of(place, paths)},
    )
    rules = Wishes.of(app).retry or RetryRules(())
    return put_down(folder, verdict, rules, earlier, attempt, hosts=len(output_lines("bhosts")[1:]))


def next_submission(folder: str, attempt: Attempt) -> str:
    """Return the script that submits what follows this attempt."""
    app_id, app = _job(folder)
    with open(os.path.join(folder, OPTIONS_FILE), encoding="utf-8") as f:
        opts = Opts(**json.load(f))
    for role in app.roles:
        if role.resource.memMB > 0:
            role.resource = replace(role.resource, memMB=round(role.resource.memMB * attempt.memory))
    if attempt.avoid:
        without = " && ".join(f"hname!='{host}'" for host in attempt.avoid)
        opts.bsub_args = f'{opts.bsub_args or ""} -R "select[{without}]"'
    return get_submit_script(app_id, ["/bin/bash"], app, opts, RANK0_HOST)


def _job(folder: str) -> tuple[str, AppDef]:
    with open(os.path.join(folder, JOB_FILE), encoding="utf-8") as f:
        job = json.load(f)
    return job["name"], appdef_from_dict(job["app"])


def _began(folder: str, number: int) -> float:
    """When the first replica of an attempt started: each makes a file then."""
    with os.scandir(folder) as entries:
        return min((e.stat().st_mtime for e in entries if e.name.startswith(f"run.{number}.")), default=0.0)


def _kind(how: str, host: str) -> str:
    """Return the class of an end caused by LSF; empty: the program failed."""
    if how == "requeued":
        state = [line.split() for line in output_lines("bhosts", "-w", host)[1:]]
        return "node" if any(len(row) > 1 and row[1].startswith(_GONE) for row in state) else "preempted"
    if how == "killed":
        asked = ["bjobs", "-noheader", "-o", "max_mem memlimit delimiter='|'", os.environ.get("LSB_JOBID", "0")]
        used, _, limit = "".join(output_lines(*asked)[:1]).partition("|")
        return "oom" if 0 < parse_size(limit) * _ENOUGH <= parse_size(used) else "cancelled"
    return how if how == "timeout" else ""


def _known(place: JobFolder, app_id: str, app: AppDef, failed: tuple[int, int]) -> JobFacts:
    """Facts about the job. The calling replica has ended, although LSF still reports it as running."""
    try:
        known = {(row.role, row.k): row for row in bjobs(LocalCommandRunner().run, [app_id])}
    except TorchXError:
        known = {}
    rows, exits = [], {}
    for index, role in enumerate(app.roles):
        for k in range(role.num_replicas):
            row = known.get((index, k)) or Row("", "RUN" if (index, k) == failed else "PEND", app_id, index, k)
            left = Exit.parse((place.files.read(f"{place.replica(role.name, k)}/{EXIT_FILE}") or b"").decode())
            if row.stat == "RUN" and left is not None:
                exits[index, k] = left
                row = replace(row, stat="EXIT" if left.code else "DONE", exit_code=str(left.code))
            rows.append(row)
    silent = os.path.exists(os.path.join(place.path, SILENT_FILE))
    return facts_of(app_id, rows, roles=app.roles, exits=exits, hang=seen(place.path), silent=silent)


def _with_ends(facts: JobFacts, failed: tuple[int, int], kind: str, host: str) -> JobFacts:
    """Mark the replicas that LSF has ended or lost."""
    for index, of in enumerate(facts.roles):
        for one in list(of.replicas):
            end = kind if (index, one.replica) == failed else "node" if one.native in _LOST else ""
            if end:
                of.replicas[one.replica] = _ended(one, end, host)  # type: ignore[index]  # it is a list
    return replace(facts, state=AppState.FAILED, unattended=True)  # though others may run on


def _ended(one: ReplicaFacts, kind: str, host: str) -> ReplicaFacts:
    return replace(
        one,
        state=AppState.FAILED,
        kind=kind,
        reason=_REASONS[kind],
        exit_code=None,
        signal="",
        host=host if kind in ("node", "preempted") and host else one.host,
        ended=one.ended or time.time(),
        stopped=False,
    )
