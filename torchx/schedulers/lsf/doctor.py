"""What keeps jobs from running on an LSF cluster, as far as queries show: ``bsub`` has no trial run."""

from __future__ import annotations

from torchx.schedulers.batch.folders import shared_folder
from torchx.schedulers.batch.inherit import shown
from torchx.schedulers.batch.sites import Run
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.findings import Check, Finding, bad, doubt, no_such
from torchx.schedulers.lsf.client import NOTHING
from torchx.schedulers.lsf.parse import FORMAT, cells


def checks(run: Run, queue: str, remote: str) -> list[Check]:
    """Check of a cluster; ``run`` runs a command on the login node, once."""
    return [
        Check("LSF", lambda: run(["lsid"]).check().stdout.strip().partition("\n")[0], vital=True),
        *([] if remote else [Check("environment", lambda: shown("lsf", "LSF", ("LSB_", "LSF_", "BSUB_")))]),
        Check("jobs", lambda: _jobs(run)),
        Check("bsub", lambda: _first_line(run(["bsub", "-V"]).check())),
        Check("queue", lambda: _queue(run, queue)),
        Check("shared folder", lambda: shared_folder(run(["bhosts", "-o", "host_name", "-noheader"]), "lsf", remote)),
    ]


def _first_line(done: Completed) -> str:
    return (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]


def _jobs(run: Run) -> str | Finding:
    """Try the query by which every verb learns of jobs."""
    done = run(["bjobs", "-a", "-o", FORMAT])
    found = cells(done.stdout)
    if not found and (done.returncode == 0 or not NOTHING.search(done.stderr)):
        done.check()
        return bad("`bjobs -o` gives an answer that torchx cannot read", "torchx requires LSF 10.1")
    return f"`bjobs` knows {len(found)} of yours"


def _queue(run: Run, wanted: str) -> str | Finding:
    done = run(["bqueues", "-w"])
    rows = [words for line in done.stdout.splitlines()[1:] if len(words := line.split()) > 2]
    there = {row[0]: row[2] for row in rows}  # QUEUE_NAME PRIO STATUS ...
    if not there:
        done.check()
        return doubt("`bqueues` shows no queue")
    if not wanted:
        return f"{len(there)} queues, one is the default"
    if wanted not in there:
        return no_such(wanted, there, "lsf_queue")
    if there[wanted].startswith("Closed"):
        return bad(f"`{wanted}` is {there[wanted]}: it takes no jobs", "`bqueues` shows others")
    return f"`{wanted}` is {there[wanted]}"
