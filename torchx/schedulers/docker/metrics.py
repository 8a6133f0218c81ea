"""What the containers of a job use now, as the engine counts it.

https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerStats
"""

from __future__ import annotations

import time

from torchx.schedulers.docker.client import side_by_side
from torchx.schedulers.docker.errors import is_missing
from torchx.schedulers.metrics import ReplicaMetrics, Sample
from torchx.specs.api import AppState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.schedulers.docker.containers import Container, Job


def read(client: Any, job: Job) -> list[ReplicaMetrics]:
    """Of each replica what it uses; the engine takes a second to count processors, for several at the same time."""
    import docker.errors

    def ask(container: Container) -> ReplicaMetrics:
        if container.state is not AppState.RUNNING:
            return ReplicaMetrics(container.role, container.k)
        try:
            return usage(container.role, container.k, client.api.stats(container.id, stream=False), time.time())
        except docker.errors.APIError as e:
            if not is_missing(e):
                raise
            return ReplicaMetrics(container.role, container.k)

    return side_by_side(ask, sorted(job.containers, key=lambda c: (c.role, c.k)))


def usage(role: str, k: int, stats: dict[str, Any], at: float) -> ReplicaMetrics:
    """An answer of the engine; of a container that has just ended nothing is in it.

    >>> cpu, before = ({"cpu_usage": {"total_usage": n}, "system_cpu_usage": 10 * n, "online_cpus": 4} for n in (9, 4))
    >>> memory = {"usage": 900, "limit": 4096, "max_usage": 1500, "stats": {"inactive_file": 100}}
    >>> found = usage("w", 0, {"cpu_stats": cpu, "precpu_stats": before, "memory_stats": memory}, 1.0)
    >>> found.samples[0].cpu, found.samples[0].memory, found.memory_limit, found.memory_peak()
    (0.4, 800, 4096, 1500)
    >>> usage("w", 0, {"cpu_stats": {}, "memory_stats": {}}, 1.0).samples
    []
    """
    memory = stats.get("memory_stats") or {}
    if "usage" not in memory:
        return ReplicaMetrics(role, k)
    kept = memory.get("stats") or {}
    # Files that were read are kept in memory while there is room, and counted: `docker stats` leaves them out, too.
    resident = int(memory["usage"]) - int(kept.get("total_inactive_file", kept.get("inactive_file", 0)))
    now, before = stats.get("cpu_stats") or {}, stats.get("precpu_stats") or {}
    cpus = now.get("online_cpus") or len((now.get("cpu_usage") or {}).get("percpu_usage") or ()) or None
    cpu = None
    try:
        whole = now["system_cpu_usage"] - before["system_cpu_usage"]
        used = now["cpu_usage"]["total_usage"] - before["cpu_usage"]["total_usage"]
        cpu = round(used / whole * (cpus or 1), 2) if whole > 0 else None
    except KeyError:  # the first look of the engine
        pass
    limit, peak = memory.get("limit"), int(memory.get("max_usage") or 0)
    return ReplicaMetrics(role, k, cpus, limit, [Sample(at, cpu, max(resident, 0))], peak=peak)
