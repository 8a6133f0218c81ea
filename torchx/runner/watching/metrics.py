"""The usage of replicas: from their scheduler while it knows the job, and from the run registry afterwards."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from torchx.errors import NotSupportedError, TorchXError
from torchx.runner.ground.registry import run_registry
from torchx.runner.jobs.views import TaskAsJob
from torchx.runs import Run, RunRegistry
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.abilities import ReportsUsage
from torchx.schedulers.kit.metrics import AttemptUsage, ReplicaMetrics
from torchx.specs.api import AppStatus, parse_app_handle

TAG = "metrics"
_LASTING = ("kept", "sums")
"""Values of :attr:`Capabilities.metrics` of schedulers that report usage after the end, too."""


def read(backend: Scheduler[Any], app_id: str, run: Run | None, scheduler: str) -> list[ReplicaMetrics]:
    """Implement :meth:`Runner.metrics`; ``run`` is the job's entry in the run registry."""
    kept = on_record(run)
    source = _source(backend)
    if source is None:
        if kept:
            return kept
        raise NotSupportedError(
            f"`{scheduler}` does not report what replicas use", hint="`torchx exec JOB -- top` shows it from inside"
        )
    found = source.metrics(app_id) or []
    if run is not None and backend.capabilities.metrics == "live" and (seen := _with_seen(run.handle, kept, found)):
        _record(run_registry(), run.handle, seen)
    earlier = {(one.role, one.replica): one for one in kept}
    return [earlier.get((one.role, one.replica), one) if one.memory_peak() is None else one for one in found] or kept


def _source(backend: Scheduler[Any]) -> ReportsUsage | None:
    """Return the scheduler that reports usage; for a task of a sweep, the scheduler of the sweep."""
    if isinstance(backend, TaskAsJob) and backend.capabilities.metrics == "kept":
        backend = backend._scheduler
    return backend if isinstance(backend, ReportsUsage) else None


def fill(status: AppStatus, backend: Scheduler[Any], app_id: str, run: Run | None) -> list[ReplicaMetrics]:
    """Implement :meth:`Runner.fill_metrics`; return the usage."""
    found, source = on_record(run), _source(backend)
    if source is not None and backend.capabilities.metrics in _LASTING:
        with contextlib.suppress(TorchXError):  # the status is useful without
            found = source.metrics(app_id) or found
    used = {(one.role, one.replica): one for one in found}
    for replica in (replica for role in status.roles for replica in role.replicas):
        one = used.get((replica.role, replica.id))
        if one is not None:
            replica.memory_peak, replica.memory_limit = one.memory_peak(), one.memory_limit
    return found


def keep(registry: RunRegistry, backend: Scheduler[Any], handle: str) -> None:
    """Record a summary of the usage of a run that has ended: its metrics files will be deleted some day."""
    if not (isinstance(backend, ReportsUsage) and backend.capabilities.metrics in _LASTING):
        return
    try:
        found = backend.metrics(parse_app_handle(handle).app_id) or []
    except TorchXError:
        return
    _record(registry, handle, [one for one in found if one.samples or one.attempts])


def _record(registry: RunRegistry, handle: str, found: Sequence[ReplicaMetrics]) -> None:
    rows = [
        [one.role, one.replica, one.cpus, one.memory_limit, [list(vars(a).values()) for a in one.summary()]]
        for one in found
    ]
    if rows:
        registry.tag(handle, {TAG: json.dumps(rows, separators=(",", ":"))})


_seen_at: dict[tuple[str, str, int], float] = {}  # Unix time of the last sample of a replica in this process
_MOST_S = 300.0  # a longer time between two samples tells nothing of what was used in it


def _with_seen(handle: str, kept: Sequence[ReplicaMetrics], found: Sequence[ReplicaMetrics]) -> list[ReplicaMetrics]:
    """Return what is known of replicas of which only the current use can be read: the peak of those who looked.

    Empty if nothing is new.
    """
    known = {(one.role, one.replica): one for one in kept}
    is_news = False
    for one in (one for one in found if one.samples):
        sample, place = one.samples[-1], (handle, one.role, one.replica)
        at = _seen_at.get(place, sample.at)
        before = next(iter(known[one.role, one.replica].attempts), None) if (one.role, one.replica) in known else None
        if before is not None and sample.at <= at and sample.memory <= before.memory:
            _seen_at.setdefault(place, sample.at)
            continue
        _seen_at[place], is_news = sample.at, True
        span = min(max(sample.at - at, 0.0), _MOST_S)
        past = before or AttemptUsage(0, sample.cpu, sample.memory, None, 0.0)
        seconds, cpu = past.seconds + span, past.cpu if sample.cpu is None else sample.cpu
        if seconds and past.cpu is not None and sample.cpu is not None:
            cpu = round((past.cpu * past.seconds + sample.cpu * span) / seconds, 2)
        usage = AttemptUsage(0, cpu, max(past.memory, sample.memory), None, seconds)
        known[one.role, one.replica] = ReplicaMetrics(
            one.role, one.replica, one.cpus, one.memory_limit, attempts=[usage]
        )
    return [*known.values()] if is_news else []


def on_record(run: Run | None) -> list[ReplicaMetrics]:
    """Return the usage that :func:`keep` recorded."""
    if run is None or TAG not in run.tags:
        return []
    try:
        return [
            ReplicaMetrics(role, k, cpus, limit, attempts=[AttemptUsage(*attempt) for attempt in attempts])
            for role, k, cpus, limit, attempts in json.loads(run.tags[TAG])
        ]
    except (ValueError, TypeError):
        return []
