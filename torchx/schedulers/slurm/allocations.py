"""A job in an allocation that the user holds, such as that of ``salloc``: its script runs as a step.

Its app id is that of the step, ``7.3``: https://slurm.schedmd.com/srun.html#OPT_overlap, of Slurm 20.11 and later. The
allocation stays as it is when the job ends or is cancelled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.errors import ConfigError
from torchx.schedulers.batch.base import BatchScheduler, Known, Site, Submission
from torchx.schedulers.batch.folders import SECRETS_FILE, JobFolder, read_whole
from torchx.schedulers.kit import allocations
from torchx.schedulers.kit.allocations import check_wishes, say_unused
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.simulations import cannot
from torchx.schedulers.kit.views import View
from torchx.schedulers.slurm.answers import facts_of
from torchx.schedulers.slurm.events import EVENTS_FILE, JobEvents, parse_events
from torchx.schedulers.slurm.folders import files_of
from torchx.schedulers.slurm.options import NODE_OPTIONS
from torchx.schedulers.slurm.parse import JobRecord
from torchx.schedulers.slurm.reasons import app_state
from torchx.specs.api import AppState, is_terminal
from torchx.util.notices import logger
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.batch.sites import Run
    from torchx.schedulers.kit.simulations import Simulation
    from torchx.schedulers.slurm.client import SlurmQueries
    from torchx.schedulers.slurm.options import SlurmOpts
    from torchx.schedulers.slurm.request import SlurmBatchRequest
    from torchx.specs.wishes import Wishes

STEP_ID = re.compile(r"\d+\.\d+")
CURRENT = "current"
STEP_FILE = "step.sh"
STOP_FILE = "stop"
_UNUSED = (*NODE_OPTIONS, "exclusive", "comment", "extra", "licenses", "mail_type", "mail_user", "signal")


def suggest(remote: bool) -> None:
    """Say that the user is within an allocation, in which a job need not wait."""
    if not remote and (job_id := os.environ.get("SLURM_JOB_ID", "")).isdigit():
        logger("torchx").warning(
            "this shell is in the allocation %s: `-cfg in=current` runs a job in it, without the queue", job_id
        )


def move_in(request: SlurmBatchRequest, opts: SlurmOpts, wishes: Wishes, run: Run) -> None:
    """Make a request one for a step in the allocation that ``opts`` names.

    Raises:
        ConfigError: there is no such allocation, or it has too few nodes.
        NotSupportedError: the job needs what only a job of its own has.
    """
    check_wishes(wishes, "an allocation")
    job_id, nodes, count = _allocation(str(opts.in_), run)
    request.inside = (job_id, nodes)
    say_unused(opts, _UNUSED)
    together = opts.replicas_per_node
    for replica in request.replicas.values():
        replica.sbatch_opts = {"ntasks-per-node": str(together)}
        replica.srun_opts["mem"] = "0"  # all that the allocation has: the tries share it
    needed = -(-len(request.replicas) // together)
    if needed > count:
        raise ConfigError(
            f"the job needs {needed} nodes, and the allocation {job_id} has {count}",
            hint="start fewer replicas, or several on a node: `-cfg replicas_per_node=N`",
        )
    request.cmd = ["bash"]


def _allocation(given: str, run: Run) -> tuple[str, str, int]:
    """Return the id of a running allocation, its nodes, and their number."""
    job_id = os.environ.get("SLURM_JOB_ID", "") if given == CURRENT else given.rpartition("/")[2]
    if given == CURRENT and not job_id:
        raise ConfigError(
            "run option `in` is `current`, but this shell is not in an allocation of Slurm",
            hint="`salloc` makes one; `squeue --me` shows those that you hold",
        )
    job_id = job_id.partition(".")[0]
    if not job_id.isdigit():
        raise ConfigError(
            f"run option `in` is `{given}`", hint="it is the id or the handle of a running job, or `current`"
        )
    done = run(["squeue", "--noheader", f"--jobs={job_id}", "--format=%T %D %N"])
    state, count, nodes, *_ = [*done.stdout.partition("\n")[0].split(), "", "", ""]
    if done.returncode or state != "RUNNING":
        said = f"it is {state}" if state else "Slurm does not know it"
        raise ConfigError(
            f"there is no running allocation {job_id}: {said}", hint="`squeue --me` shows those that you hold"
        )
    return job_id, nodes, int(count) if count.isdigit() else 1


def submission(made: Submission, request: SlurmBatchRequest) -> Submission:
    """Return the submission of the step instead of the job."""
    argv = ["bash", f"{made.folder}/{STEP_FILE}", request.inside[0], made.folder]
    return replace(made, argv=argv, files={**made.files, STEP_FILE: "#!/bin/bash\n" + read_script(__file__, STEP_FILE)})


def known(slurm: SlurmQueries, site: Site, run: Run, folders: Mapping[str, JobFolder]) -> dict[str, Known]:
    """Return the facts about jobs in allocations, by their folders."""
    texts = read_whole(site.files, [folder.file(EVENTS_FILE) for folder in folders.values()])
    events = {
        i: parse_events(texts.get(folder.file(EVENTS_FILE), b"").decode("utf-8", "replace"))
        for i, folder in folders.items()
    }
    going = [i for i, noted in events.items() if not noted.over]
    alive = _alive(run, going)
    ended = dict.fromkeys(i.partition(".")[0] for i in going if i not in alive or events[i].exit_code is not None)
    held = slurm.jobs([*ended]) if ended else {}
    records = {i: [_record(i, noted, i in alive, held)] for i, noted in events.items()}
    found = {}
    for i, job in files_of(site.files, records, folders).items():
        facts = facts_of(job)
        if facts.state is AppState.CANCELLED and (reason := records[i][0].reason):
            facts = replace(facts, reason=reason)
        found[i] = Known(facts, job.folder)
    return found


def _alive(run: Run, app_ids: list[str]) -> set[str]:
    """Return those of these jobs whose script runs."""
    if not app_ids:
        return set()
    ids = ",".join(dict.fromkeys(i.partition(".")[0] for i in app_ids))
    done = run(["squeue", "--steps", "--noheader", f"--jobs={ids}", "--format=%i"])
    return {*done.stdout.split()} & {*app_ids}


class AllocatedJobs(View, BatchScheduler):
    """The view of a scheduler on a job that runs in an allocation."""

    def _cancel_existing(self, app_id: str) -> None:
        """Let the job's script end its replicas; the second time, kill its steps."""
        found = self.describe(app_id)
        folder = self._folder(app_id)
        if found is None or folder is None or is_terminal(found.state):
            return
        if folder.files.read(folder.file(STOP_FILE)) is not None:
            site, (allocation, _, step) = self._site(app_id), app_id.partition(".")
            argv = ["squeue", "--steps", "--noheader", f"--jobs={allocation}", "--format=%i %j"]
            rows = [row.split() for row in self.run_command(site, argv).check().stdout.splitlines()]
            ids = [row[0] for row in rows if row[0] == app_id or row[-1].endswith(f"@{step}")]
            self._accept_cancel(self.run_command(site, ["scancel", "--ctld", "--signal=KILL", *ids]))
        folder.files.write(folder.file(STOP_FILE), b"\n")
        folder.files.remove(folder.file(SECRETS_FILE))
        self._queries.forget(app_id)

    def _place_of(self, site: Site, app_id: str, role: str, k: int) -> tuple[str, str, str, int | None]:  # noqa: ARG002  # the scheduler's
        from torchx.schedulers.batch.inside import sign_of
        from torchx.schedulers.slurm.inside import host_of

        folder = self._folder(app_id)
        host = host_of(folder, role, k) if folder is not None else ""
        return app_id.partition(".")[0], host, sign_of(folder.replica(role, k)) if folder is not None else "", None

    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:  # noqa: ARG002  # the ability's
        raise cannot("slurm", fault, "the job runs in an allocation that is not its own")


def _record(app_id: str, events: JobEvents, alive: bool, held: Mapping[str, list[JobRecord]]) -> JobRecord:
    """Return the state of a job as Slurm's record of a job of its own would have it."""
    record = JobRecord(job_id=app_id, started=events.started or None, ended=events.ended or None)
    if events.over:
        return replace(record, state="FAILED" if events.exit_code else "COMPLETED", exit_code=events.exit_code)
    if alive and events.exit_code is None:
        return replace(record, state="RUNNING")
    allocation = app_id.partition(".")[0]
    end = next(iter(held.get(allocation, ())), None)
    record.ended = record.ended or (end.ended if end else None)
    if end is None or not (end.completing or is_terminal(app_state(end.state))):
        return replace(record, state="CANCELLED")
    failed = app_state(end.state) is AppState.FAILED and end.state != "FAILED"
    return replace(record, state=end.state if failed else "CANCELLED", reason=f"its allocation {allocation} has ended")


def refuse_export(request: SlurmBatchRequest) -> None:
    """Raise NotSupportedError if the job is a step of an allocation."""
    if request.inside[0]:
        allocations.refuse_export("an allocation")
