"""LSF's commands, and hints for their errors."""

from __future__ import annotations

import re

from torchx.errors import BackendError, CommandError
from torchx.schedulers.batch.sites import Run
from torchx.schedulers.kit.commands import Completed, LocalCommandRunner, telling
from torchx.schedulers.lsf.parse import FORMAT, Row, group_of, rows, whole
from torchx.specs.api import Role
from torchx.util.records import replace

NO_LSF = 127
"""Exit code of the submission script if ``bsub`` is missing."""

_USAGE = re.compile(r"^\s*usage\b", re.IGNORECASE | re.MULTILINE)

# Part of bsub's message -> hint.
HINTS = {
    "No such queue": "`bqueues` shows the queues: `-cfg lsf_queue=NAME`",
    "Queue has been closed": "`bqueues` shows the queues: `-cfg lsf_queue=NAME`",
    "No such application profile": "`bapp` shows them: `-cfg app=NAME`",
    "Bad resource requirement": "see the run options `resreq` and `gpu_options`",
    "project": "name a project of yours: `-cfg project=NAME`",
    "Bad host name": "`bhosts` shows the hosts: `-cfg hosts=NAME`",
    "llegal option": "this `bsub` does not have an option of `-cfg bsub_args`, or of torchx: see `bsub -h`",
    "Request aborted by esub": "the site's own check (esub) rejected it; `-cfg bsub_args=...` sets what it requires",
}

NOTHING = re.compile(r"(?i)no (unfinished |matching )?job|not found|no such job|already finished")
"""Matches LSF's messages about unknown or finished jobs."""

_TAKEN = re.compile(rf"{NOTHING.pattern}|operation is in progress|termination request issued")


def accept_kill(done: Completed) -> None:
    """Raise CommandError if ``bkill`` failed and a job runs on. LSF also fails for jobs that are already ending, for
    arrays, and for lost hosts, although it has accepted the request.
    """
    others = [line for line in done.stderr.splitlines() if line.strip() and not _TAKEN.search(line)]
    if others or not done.stderr.strip():
        replace(done, stderr="\n".join(others)).check()


def bjobs(run: Run, app_ids: list[str]) -> list[Row]:
    """Return the replicas of one job, or of all jobs, by one command. Raises CommandError if LSF rejects the query."""
    only = ["-g", group_of(app_ids[0])] if len(app_ids) == 1 else []
    done = run(["bjobs", "-a", "-o", FORMAT, *only])
    found = [row for row in rows(done.stdout) if not only or row.app_id == app_ids[0]]
    if not found and done.returncode and not NOTHING.search(done.stderr):
        done.check()
    return found


def find_rank0_host(role: Role) -> str:
    """Return a host with free slots for a replica of this role, from ``bhosts``.

    Raises BackendError if there is none.
    """
    return find_rank0_host_from_bhosts_stdout(LocalCommandRunner().run(["bhosts"]).check().stdout, role)


def find_rank0_host_from_bhosts_stdout(msg: str, role: Role) -> str:
    """Return a host with free slots for a replica of this role, from the output of ``bhosts``."""
    slots = max(1, role.resource.cpu)
    for words in map(str.split, msg.splitlines()):
        if len(words) > 4 and words[1] == "ok":
            most, jobs = words[3], words[4]
            if most == "-" or (most.isdecimal() and jobs.isdecimal() and whole(most) - whole(jobs) >= slots):
                return words[0]
    raise BackendError(f"no host has {slots} free slots", hint="`bhosts` shows the hosts")


def refusal(done: Completed) -> CommandError:
    """Return the error for a rejected submission, with LSF's message."""
    text = _USAGE.split(done.stderr)[0]
    said = telling(text, f"its submission ended with exit code {done.returncode}")
    return CommandError(
        f"LSF did not take the job: {said}",
        argv=done.argv,
        returncode=done.returncode,
        stderr=done.stderr,
        hint=next((hint for words, hint in HINTS.items() if words in text), ""),
    )
