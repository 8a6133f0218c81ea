"""What the supervisor of a local job has written down of what its replicas use."""

from __future__ import annotations

from torchx.schedulers.metrics import ReplicaMetrics, parse
from torchx.supervisor.layout import METRICS_FILE, replica_folder
from torchx.supervisor.statefile import TASKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.schedulers.local.jobs import LocalJob


def read(job: LocalJob) -> list[ReplicaMetrics]:
    """Of each replica its samples; none of one for which there are no samples yet, and none of a sweep."""
    state = job.read()
    if state is None or TASKS in state.facts:
        return []
    logs = job.logs()
    found = []
    for role, count in state.roles:
        for k in range(count):
            try:
                with open(f"{replica_folder(logs, role, k)}/{METRICS_FILE}", encoding="utf-8", errors="replace") as f:
                    found.append(parse(role, k, f))
            except OSError:
                found.append(ReplicaMetrics(role, k))
    return found
