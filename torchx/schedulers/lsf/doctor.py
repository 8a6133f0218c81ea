"""What keeps jobs from running on an LSF cluster, as far as it says so: ``bsub`` has no trial run."""

from __future__ import annotations

from torchx.schedulers.batch.folders import shared_folder
from torchx.schedulers.findings import BAD, GOOD, UNKNOWN, Check, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx.schedulers.kit.commands import Completed

    Run = Callable[[list[str]], Completed]


def checks(run: Run, queue: str, remote: str) -> list[Check]:
    """The questions about a cluster; ``run`` runs a command on the login node, once."""
    return [
        Check("LSF", lambda: Finding(GOOD, "LSF", run(["lsid"]).check().stdout.strip().partition("\n")[0])),
        Check("queue", lambda: _queue(run, queue)),
        Check("shared folder", lambda: shared_folder(run(["bhosts", "-o", "host_name", "-noheader"]), "lsf", remote)),
    ]


def _queue(run: Run, wanted: str) -> Finding:
    done = run(["bqueues", "-w"])
    rows = [words for line in done.stdout.splitlines()[1:] if len(words := line.split()) > 2]
    there = {row[0]: row[2] for row in rows}  # QUEUE_NAME PRIO STATUS ...
    if not there:
        done.check()
        return Finding(UNKNOWN, "queue", "`bqueues` shows none")
    if wanted and wanted not in there:
        from torchx.util.strings import nearest

        said = f"there is no `{wanted}`; there are: {', '.join(sorted(there))}"
        return Finding(BAD, "queue", said, f"`-cfg lsf_queue={nearest(wanted, there) or min(there)}`")
    if wanted and there[wanted].startswith("Closed"):
        return Finding(BAD, "queue", f"`{wanted}` is {there[wanted]}: it takes no jobs", "`bqueues` shows others")
    return Finding(
        GOOD, "queue", f"`{wanted}` is {there[wanted]}" if wanted else f"{len(there)} of them, one is the default"
    )
