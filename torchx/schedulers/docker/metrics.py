"""Resource usage of a job's containers: the watcher samples it, and stores the samples in a file of each container.

So any client of the engine can read the samples as long as the container exists. :mod:`torchx.supervisor.metrics` has
the format; https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerStats
"""

from __future__ import annotations

import json
import time
from typing import Any

from torchx.schedulers.docker.attempts import STEPS
from torchx.schedulers.docker.client import side_by_side
from torchx.schedulers.docker.containers import Container, Job
from torchx.schedulers.docker.evidence import file_in, put_files, text_in
from torchx.schedulers.docker.logs import seconds
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.schedulers.kit.metrics import ReplicaMetrics, parse
from torchx.schedulers.kit.pace import Rank, parse_file
from torchx.specs.api import AppState
from torchx.supervisor.metrics import MAX_SAMPLES, thinned_out

METRICS_FILE = ".torchx-metrics"
_SHARE = 20  # sampling takes at most 1/20 of the time, as it loads the engine


def read(client: Any, job: Job) -> list[ReplicaMetrics]:
    """Return the recorded samples of each replica."""

    def of(container: Container) -> ReplicaMetrics:
        text = file_in(client, container.id, f"/{METRICS_FILE}") or ""
        return parse(container.role, container.k, text.splitlines())

    return side_by_side(of, sorted(job.containers, key=lambda c: (c.role, c.k)))


def steps(client: Any, job: Job) -> list[Rank]:
    """Return what the ranks in the containers report of their steps."""

    def of(container: Container) -> list[Rank]:
        return parse_file(container.role, container.k, (file_in(client, container.id, STEPS) or "").encode())

    return [rank for ranks in side_by_side(of, job.containers) for rank in ranks]


class ContainersSampler:
    """Samples all running containers of a job."""

    def __init__(self, engine: EngineHttp) -> None:
        self._engine = engine
        self.started: dict[str, float] = {}  # container id -> Unix time, of those with samples
        self._files: dict[str, list[str]] = {}  # container id -> lines of its file
        self._before: dict[str, tuple[float, float]] = {}  # container id -> time and CPU seconds of the last sample

    def look(self, job: Job) -> float:
        """Sample each container; return the least number of seconds until the next call. May raise OSError."""
        began = time.monotonic()
        for container in job.containers:
            if container.state is AppState.RUNNING:
                self._sample(container)
        return _SHARE * (time.monotonic() - began)

    def lines(self, container_id: str) -> list[str]:
        """Return the file of a container, as far as it is known."""
        return self._files.get(container_id, [])

    def _sample(self, container: Container) -> None:
        path = f"/containers/{container.id}"
        try:
            details = self._engine.get(f"{path}/json")
            stats = self._engine.get(f"{path}/stats", {"stream": 0, "one-shot": 1})
            lines = self._files.get(container.id) or text_in(self._engine, container.id, METRICS_FILE).splitlines(True)
            self.started[container.id] = started = seconds(details["State"]["StartedAt"])
            found = usage(details, stats, self._before.get(container.id, (started, 0.0)), started)
        except (RefusedError, KeyError, TypeError):  # removed, or it has just ended
            return
        if found is None:
            return
        head, row, self._before[container.id] = found
        row["a"] = container.mark.app + container.mark.role + int(details.get("RestartCount") or 0)
        lines = lines or [f"{json.dumps(head)}\n"]
        lines.append(f"{json.dumps(row, separators=(',', ':'))}\n")
        self._files[container.id] = thinned_out(lines) if len(lines) > MAX_SAMPLES else lines
        put_files(self._engine, container.id, {METRICS_FILE: "".join(lines)})


def usage(
    details: dict[str, Any], stats: dict[str, Any], before: tuple[float, float], started: float
) -> tuple[dict[str, Any], dict[str, Any], tuple[float, float]] | None:
    """Return the header of the file, a sample, and its time and CPU seconds; None if the container has just ended.

    ``before`` has the time and CPU seconds of the previous sample; a start, at the Unix time ``started``, resets them.

    >>> memory = {"usage": 900, "limit": 4096, "stats": {"inactive_file": 100}}
    >>> stats = {"read": "1970-01-01T00:00:11Z", "cpu_stats": {"cpu_usage": {"total_usage": 9 * 10**9}}}
    >>> head, row, before = usage({}, {**stats, "memory_stats": memory}, (1.0, 4.0), 0.0)
    >>> row["cpu"], row["mem"], head["memory_limit"], before
    (0.5, 800, 4096, (11.0, 9.0))
    >>> usage({}, {"cpu_stats": {}, "memory_stats": {}}, (1.0, 4.0), 0.0) is None
    True
    """
    memory, cpu = stats.get("memory_stats") or {}, stats.get("cpu_stats") or {}
    if "usage" not in memory:
        return None
    kept = memory.get("stats") or {}
    # Subtract the page cache, as `docker stats` does.
    resident = int(memory["usage"]) - int(kept.get("total_inactive_file", kept.get("inactive_file", 0)))
    at, used = seconds(stats["read"]), cpu["cpu_usage"]["total_usage"] / 1e9
    since, earlier = before if before[0] >= started else (started, 0.0)
    share = max(used - earlier, 0.0) / max(at - since, 0.001)
    cpus = int((details.get("HostConfig") or {}).get("NanoCpus") or 0) / 1e9 or cpu.get("online_cpus")
    head = {"memory_limit": memory.get("limit"), "cpus": cpus}
    return head, {"t": round(at, 1), "a": 0, "cpu": round(share, 2), "mem": max(resident, 0), "gpu": []}, (at, used)
