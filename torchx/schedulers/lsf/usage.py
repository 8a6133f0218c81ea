"""What replicas used, as LSF counts it while it knows their jobs: processor time, and the peak of their memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchx.schedulers.kit.metrics import AttemptUsage, ReplicaMetrics
from torchx.schedulers.lsf.parse import Row


def used(rows: Iterable[Row], roles: Sequence[str]) -> list[ReplicaMetrics]:
    """Return the usage of the replicas in these rows, without those of which LSF has no numbers yet."""
    found = []
    for row in rows:
        if row.memory and row.role < len(roles) and "[" not in row.jobid:
            cpu = round(row.cpu_s / row.run_s, 2) if row.cpu_s is not None and row.run_s else None
            attempt = AttemptUsage(0, cpu, row.memory, None, float(row.run_s))
            found.append(ReplicaMetrics(roles[row.role], row.k, attempts=[attempt]))
    return found
