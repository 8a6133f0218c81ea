"""Which scheduler, or view of it, answers for a job: by its app id alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchx.runner.jobs.views import TaskAsJob
from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.kit.abilities import RunsTasks
from torchx.specs.handles import JobId


def resolve_backend(backend: Scheduler[Any], app_id: str) -> tuple[Scheduler[Any], str]:
    """Return the scheduler and the app id to query for a job: ``backend``,
    or a view of it for a paced sweep or a task.
    """
    named = JobId.of(app_id)
    sweep, number = named.job, named.task
    if number is None:
        return (_paced(backend) if is_paced(app_id) else backend), app_id
    if is_paced(sweep):
        from torchx.runner.jobs.paced.sweeps import of_task

        return of_task(backend, sweep, number) or (TaskAsJob(_paced(backend), sweep, number), app_id)
    return (TaskAsJob(backend, sweep, number) if isinstance(backend, RunsTasks) else backend), app_id


def describe_many(backend: Scheduler[Any], app_ids: Sequence[str]) -> dict[str, DescribeAppResponse | None]:
    """Describe many jobs, among them sweeps; ``backend`` is queried once."""
    paced = {app_id for app_id in app_ids if is_paced(app_id)}
    rest = [app_id for app_id in app_ids if app_id not in paced]
    found = backend.describe_many(rest) if rest else {}
    return {**found, **{app_id: _paced(backend).describe(app_id) for app_id in paced}} if paced else found


def is_paced(app_id: str) -> bool:
    """Whether this is a sweep whose tasks this machine submits as single jobs."""
    from torchx.runner.jobs.paced.tasks import folder_of

    return bool(folder_of(app_id))


def _paced(backend: Scheduler[Any]) -> Any:
    from torchx.runner.jobs.paced.sweeps import PacedSweeps

    return PacedSweeps(backend)
