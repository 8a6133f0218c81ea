"""Keeps what is known only when a run has just ended: its scheduler forgets it, and deletes its files some day."""

from __future__ import annotations

from typing import Any

from torchx.config import active_profile, load_files
from torchx.errors import TorchXError
from torchx.runs import RunRegistry
from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.kit.abilities import RunsTasks
from torchx.settings import FIRST_SAMPLE_S
from torchx.specs.api import AppStatus, is_terminal
from torchx.specs.handles import JobId

_MAX_TASKS = 2000


def keep(
    registry: RunRegistry, backend: Scheduler[Any], handle: str, found: AppStatus | DescribeAppResponse, began: float
) -> None:
    """Record what a run that has ended used, and keep its logs. Every place that is the first to see an end calls this.

    Args:
        found: the scheduler's answer, or the status.
        began: Unix time at which the run started, or was submitted.
    """
    app_id = handle.split("/", 3)[3]
    if not is_terminal(found.state) or JobId.of(app_id).task is not None:
        return
    busy_s = _tasks_s(backend, app_id, len(found.tasks.states)) if found.tasks is not None else _attempts_s(found)
    if busy_s is not None:
        from torchx.runs.usage import worked

        worked(registry, handle, busy_s)
    if found.ended_at and found.ended_at - began >= FIRST_SAMPLE_S:  # shorter runs have no samples
        from torchx.runner.watching import metrics

        metrics.keep(registry, backend, handle)
    if load_files().section("logs", active_profile()):  # else not imported at each end
        from torchx.runner.watching import keeping

        keeping.keep_later(registry, handle)


def _attempts_s(found: AppStatus | DescribeAppResponse) -> float | None:
    """Return how long all attempts ran together; None if it ran once."""
    from torchx.specs.wishes.retries import seconds_of_attempts

    roles = found.roles if isinstance(found, AppStatus) else found.roles_statuses
    spans = seconds_of_attempts(found.attempts, roles, found.ended_at or 0.0)
    return sum(spans) if len(spans) > 1 else None


def _tasks_s(backend: Scheduler[Any], app_id: str, count: int) -> float | None:
    """Return how long all tasks of a sweep ran together; of a large sweep, by some of them."""
    from torchx.runner.jobs.lookup import resolve_backend

    numbers = range(0, count, -(-count // _MAX_TASKS))
    try:
        view, app_id = resolve_backend(backend, app_id)
        found = view.describe_tasks(app_id, numbers) if isinstance(view, RunsTasks) else None
    except TorchXError:
        return None
    spans = [task.ended_at - task.started_at for task in found or () if task.started_at and task.ended_at]
    return sum(spans) * count / len(numbers) if spans else None
