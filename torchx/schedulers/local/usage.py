"""What the replicas of a local job use, and the steps that their ranks report, from files in its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.schedulers.kit.files import LocalFiles
from torchx.supervisor.layout import METRICS_FILE, STEPS_FILE, replica_folder
from torchx.supervisor.statefile import JobState

if TYPE_CHECKING:
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.pace import Rank
    from torchx.schedulers.local.jobs import LocalJob


def metrics(job: LocalJob | None) -> list[ReplicaMetrics] | None:
    """See :class:`torchx.schedulers.kit.abilities.ReportsUsage`."""
    from torchx.schedulers.kit.metrics import read_kept

    state = None if job is None else job.read()
    if job is None or state is None:
        return None
    return read_kept(LocalFiles(), _paths(job, state, METRICS_FILE))


def steps(job: LocalJob | None) -> list[Rank]:
    """See :class:`torchx.schedulers.kit.abilities.ReportsSteps`."""
    from torchx.schedulers.kit.pace import read_files

    state = None if job is None else job.read()
    if job is None or state is None:
        return []
    return read_files(LocalFiles(), _paths(job, state, STEPS_FILE))


def _paths(job: LocalJob, state: JobState, name: str) -> dict[tuple[str, int], str]:
    return {at: f"{replica_folder(job.logs(), *at)}/{name}" for at in state.positions()}
