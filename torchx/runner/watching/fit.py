"""Compares what a job used with what it asked for; see :mod:`torchx.specs.fit`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchx.runner.watching.metrics import on_record
from torchx.runs import Run, RunQuery, RunRegistry
from torchx.schedulers.kit.metrics import ReplicaMetrics
from torchx.specs.api import AppDef, AppState, AppStatus, Resource
from torchx.specs.fit import RoleUsage
from torchx.specs.wishes import Wishes
from torchx.util.notices import logger
from torchx.util.records import dataclass, replace

if TYPE_CHECKING:
    from torchx.schedulers.api import Scheduler

_MOST = 1000


@dataclass
class Waste:
    """What a run asked for and did not use: hours of GPUs, of CPUs, and of a GiB of memory."""

    run: Run
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    gib_hours: float = 0.0
    options: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the row of ``torchx list --wasteful --json``."""
        run, names = self.run, ("gpu_hours", "cpu_hours", "gib_hours")
        unused = {f"unused_{name}": getattr(self, name) for name in names}
        fields = {"handle": run.handle, "name": run.name, "state": str(run.state)}
        return {**fields, **unused, "enough": self.options or None}


def compare(
    run: Run | None, found: Iterable[ReplicaMetrics], backend: Scheduler[Any] | None, seconds: float | None
) -> list[RoleUsage]:
    """Return the usage of each role with samples, against the recorded definition of its job.

    Args:
        backend: its scheduler, which knows the time limit of its run options; None: only ``--timeout`` counts.
        seconds: how long the job ran, if that was once.
    """
    app = run.appdef() if run is not None else None
    if run is None or app is None:
        return []
    cfg = {key: setting.get("value") for key, setting in run.cfg.items()}
    limit_s = Wishes.of(app).timeout_s or (backend.time_limit_s(cfg) if backend is not None else None)
    by_role: dict[str, list[ReplicaMetrics]] = {}
    for one in found:
        if one.summary():
            by_role.setdefault(one.role, []).append(one)
    return [_usage(app, name, replicas, limit_s, seconds) for name, replicas in by_role.items()]


def fill(status: AppStatus, run: Run | None, found: Iterable[ReplicaMetrics], backend: Scheduler[Any]) -> None:
    """Add to a status what each role used against what it asked for."""
    once = status.started_at and status.ended_at and not status.num_restarts and len(status.attempts) < 2
    seconds = (status.ended_at or 0) - (status.started_at or 0) if once else None
    status.usage = compare(run, found, backend, seconds)


def wasteful(registry: RunRegistry, query: RunQuery) -> list[Waste]:
    """Return the runs on record with samples that left something unused, most first; of the newest 1,000 that match."""
    found = []
    newest = registry.list(replace(query, limit=_MOST + 1))
    if len(newest) > _MOST:
        logger("torchx").warning(
            "only the newest %s runs of these are compared: select fewer, as by `--since 7d`", f"{_MOST:,}"
        )
    for listed in newest[:_MOST]:
        run = registry.get(listed.handle) if listed.is_terminal() else None
        app = run.appdef() if run is not None else None
        if run is None or app is None or not (used := on_record(run)):
            continue
        resources = {role.name: role.resource for role in app.roles if not role.resource.is_unset}
        waste = Waste(run, options=" ".join(_enough(run, used)))
        for one in used:
            resource = resources.get(one.role, Resource(0, 0, 0))
            for attempt in one.summary():
                hours, gpu, cpu = attempt.seconds / 3600, attempt.gpu, attempt.cpu
                waste.gpu_hours += 0 if gpu is None else max(resource.gpu, 0) * hours * (1 - gpu / 100)
                waste.cpu_hours += 0 if cpu is None else max(resource.cpu - cpu, 0) * hours
                waste.gib_hours += max(int(resource.memMB) / 1024 - attempt.memory / 2**30, 0) * hours
        if waste.gpu_hours or waste.cpu_hours or waste.gib_hours:
            found.append(waste)
    return sorted(found, key=lambda one: (-one.gpu_hours, -one.cpu_hours, -one.gib_hours))


def _enough(run: Run, used: list[ReplicaMetrics]) -> list[str]:
    """Return the options that would do, if all roles need the same."""
    roles = [one.enough() for one in compare(run, used, None, None)] if run.state is AppState.SUCCEEDED else []
    return [f"--{name} {value}" for name, value in roles[0].items()] if len(roles) == 1 else []


def _usage(
    app: AppDef, name: str, replicas: list[ReplicaMetrics], limit_s: float | None, seconds: float | None
) -> RoleUsage:
    resource = next((one.resource for one in app.roles if one.name == name and not one.resource.is_unset), None)
    attempts = [attempt for one in replicas for attempt in one.summary()]
    gpus = [attempt.gpu for attempt in attempts if attempt.gpu is not None]
    memory_mb = resource.memMB if resource is not None else -1
    return RoleUsage(
        role=name,
        memory_asked=int(memory_mb) << 20 if memory_mb > 0 else None,
        memory=max(one.memory_peak() or 0 for one in replicas) or None,
        cpus_asked=resource.cpu if resource is not None and resource.cpu > 0 else None,
        cpus=max((attempt.cpu for attempt in attempts if attempt.cpu is not None), default=None),
        gpus_asked=resource.gpu if resource is not None and resource.gpu > 0 else None,
        gpu=sum(gpus) / len(gpus) if gpus else None,
        gpu_memory=max((attempt.gpu_memory or 0 for attempt in attempts), default=0) or None,
        gpu_memory_total=max((sum(g.memory_total for g in s.gpus) for one in replicas for s in one.samples), default=0)
        or None,
        limit_s=limit_s or None,
        seconds=seconds,
    )
