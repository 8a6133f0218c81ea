"""Finds the CloudWatch log streams of a Batch job's nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchx.errors import TorchXError
from torchx.schedulers.aws.batch.answers import groups, log_streams
from torchx.schedulers.aws.batch.client import details
from torchx.schedulers.aws.client import Clients, pages
from torchx.schedulers.aws.logs import MARK, Streams


def streams(client: Any, job: dict[str, Any], replicas: Iterable[tuple[str, int]]) -> Streams:
    """Log groups and streams of the given replicas, as far as the job has them."""
    wanted = set(replicas)
    index = {
        (group.name, k): (group, group.first + k)
        for group in groups(job)
        for k in range(group.last - group.first + 1)
        if (group.name, k) in wanted
    }
    nodes: dict[str, Any] = {}
    if job.get("nodeProperties"):
        nodes = details(client, [f"{job['jobId']}#{node}" for _, node in index.values()])
    return {
        replica: (group.log_group, log_streams(nodes.get(f"{job['jobId']}#{node}", job)))
        for replica, (group, node) in index.items()
    }


def order_marks(clients: Clients, job: dict[str, Any], nodes: dict[int, Any]) -> dict[str, float] | None:
    """Return what the main node has written about the order of the roles, and when; None if it cannot be read."""
    stream = {"logGroupName": groups(job)[0].log_group, "logStreamNames": log_streams(nodes.get(0, {}))[-1:]}
    if not stream["logStreamNames"]:
        return {}
    wanted = {**stream, "filterPattern": f'"{MARK}"'}
    try:
        found = [*pages(clients.client("logs"), "filter_log_events", "the log cannot be read", "events", **wanted)]
    except TorchXError:
        return None
    return {str(one["message"]).partition(MARK)[2].strip(): int(one["timestamp"]) / 1000 for one in reversed(found)}
