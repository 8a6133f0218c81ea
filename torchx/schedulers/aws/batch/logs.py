"""Finds the CloudWatch log streams of a Batch job's nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchx.schedulers.aws.batch.answers import groups, log_streams
from torchx.schedulers.aws.batch.client import details
from torchx.schedulers.aws.logs import Streams


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
