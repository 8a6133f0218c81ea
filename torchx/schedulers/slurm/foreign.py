"""Slurm jobs that torchx did not launch, as facts.

A job is one replica, ``job/0``, because its script runs once. An array has its tasks, such as ``task/3``; a
heterogeneous job has its components, such as ``component/1``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.batch.foreign import ForeignAtSites, task_facts
from torchx.schedulers.batch.queries import Known
from torchx.schedulers.batch.sites import Site
from torchx.schedulers.failures import Evidence, signal_name
from torchx.schedulers.foreign import Named
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.slurm.answers import bare, explained, facts_of, pending_sentence
from torchx.schedulers.slurm.client import SlurmQueries
from torchx.schedulers.slurm.events import JobEvents
from torchx.schedulers.slurm.outputs import COMPONENT, JOB, TASK, SlurmOutputs
from torchx.schedulers.slurm.reasons import ENDINGS, app_state
from torchx.schedulers.slurm.records import JobRecord
from torchx.specs.api import AppState, is_terminal
from torchx.util.records import replace

_NO_OUTPUT = 53  # slurmstepd reports it as a signal when it cannot open the output files
_REFERENCE = re.compile(r"(\d+)(_\d+)?(?:\+\d+)?(?:\.\w+)?")


class ForeignSlurmJobs(ForeignAtSites):
    """The view of :class:`torchx.schedulers.slurm_scheduler.SlurmScheduler` on jobs of others."""

    if TYPE_CHECKING:  # methods of the scheduler

        def _slurm(self, site: Site) -> SlurmQueries: ...

    # -- which job it is -------------------------------------------------------------------------

    def find(self, reference: str) -> Named | None:
        found = _REFERENCE.fullmatch(reference.strip())
        if found is None:
            return None
        app_id = found[1] + (found[2] or "")
        site = self._site_of(self._defaults())
        records = self._slurm(site).jobs([app_id])
        tasks = _of_job(app_id, records)
        if not tasks and not records:
            return None
        app_id = app_id if tasks else next(iter(records))  # the id of a single task
        folder = next((r.folder for i in tasks for r in records[i] if r.folder), "")
        noted = self.folders(site).of(app_id)  # a user's own script runs in another folder
        return Named(app_id, ours=noted is not None or bool(folder and JobFolder(site.files, folder).is_ours()))

    def about(self, app_id: str) -> dict[str, str]:
        shown = next(iter(self._outputs(app_id).shown.values()), {})
        named = {"name": "JobName", "user": "UserId", "partition": "Partition", "command": "Command"}
        facts = {key: shown.get(name, "") for key, name in named.items()}
        facts["user"] = facts["user"].partition("(")[0]
        facts["folder"] = shown.get("WorkDir", "")
        return {key: value for key, value in facts.items() if value not in ("", "(null)")}

    # -- what became of it -----------------------------------------------------------------------

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:  # noqa: ARG002  # the scheduler's
        records = self._slurm(site).jobs(app_ids, tasks=True)
        known = {app_id: found for app_id in app_ids if (found := _of_job(app_id, records))}
        return {i: Known(foreign_facts(i, found), self._outputs(i)) for i, found in known.items()}

    def _look(self, folder: JobFolder, replicas: Sequence[ReplicaFacts]) -> list[Evidence]:
        left = folder.evidence([(r.role, r.replica) for r in replicas])
        said = [replace(found, said=found.stderr) for found in left]
        return [explained(found, signal=r.signal) for found, r in zip(said, replicas, strict=True)]

    def _outputs(self, app_id: str) -> SlurmOutputs:
        site = self._site(app_id)
        return SlurmOutputs(site.files, app_id, functools.partial(self.run_command, site))


# -- facts -----------------------------------------------------------------------------------------------


def _of_job(app_id: str, records: Mapping[str, list[JobRecord]]) -> dict[str, list[JobRecord]]:
    """The records of a job, or of each task of an array."""
    return {i: found for i, found in records.items() if i == app_id or i.startswith(f"{app_id}_")}


def foreign_facts(app_id: str, records: Mapping[str, Sequence[JobRecord]], *, now: float | None = None) -> JobFacts:
    """Facts about a job from its records, or those of each task of an array; pending tasks are under the array's id."""
    every = [record for found in records.values() for record in found]
    facts = facts_of(bare(app_id, every), now=now)
    tasks = {int(i.rpartition("_")[2]): found for i, found in records.items() if i != app_id}
    if tasks:
        waiting = list(records.get(app_id, ()))
        waits = pending_sentence(waiting, JobEvents(), now=now) if waiting else ""
        return _array(facts, tasks, waits=waits)
    role = COMPONENT if len(every) > 1 else JOB
    members = [_replica(role, r.component, r) for r in sorted(every, key=lambda r: r.component)]
    failed = facts.state is AppState.FAILED and not facts.kind
    return replace(facts, reason="" if failed else facts.reason, roles=[RoleFacts(name=role, replicas=members)])


def _array(facts: JobFacts, tasks: Mapping[int, Sequence[JobRecord]], *, waits: str) -> JobFacts:
    """Facts about an array, whose tasks continue when one has failed. ``waits``: why further tasks are pending."""
    members = []
    for k, found in sorted(tasks.items()):
        kind, why = ENDINGS.get(found[0].state, ("", ""))
        replica = _replica(TASK, k, found[0])
        members.append(replace(replica, reason=why, kind=kind, signal="") if why else replica)
    return task_facts(facts, members, waits=waits)


def _replica(role: str, k: int, record: JobRecord) -> ReplicaFacts:
    state = app_state(record.state)
    if record.completing and not is_terminal(state):
        state = AppState.RUNNING
    signal = ""
    no_output = record.signal == _NO_OUTPUT
    if record.signal and not no_output:
        signal = signal_name(record.signal)
    return ReplicaFacts(
        role=role,
        replica=k,
        state=state,
        native=record.state,
        exit_code=record.exit_code if is_terminal(state) and not signal else None,
        signal=signal,
        host=record.nodes,
        started=(record.started or 0.0) if state is not AppState.PENDING else 0.0,
        ended=(record.ended or 0.0) if is_terminal(state) else 0.0,
        reason="Slurm could not open its output file: is the folder there?" if no_output else "",
        kind="error" if no_output else "",
        stopped=state is AppState.CANCELLED,
    )
