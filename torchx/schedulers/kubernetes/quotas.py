"""What is free in the queues of Kueue of a namespace: the nominal quota of their cluster queues, less what is reserved.

Quota that a cluster queue may borrow from others is not counted: https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchx.errors import NotFoundError
from torchx.schedulers.kit.nodes import Pool
from torchx.schedulers.kubernetes.api.errors import unless_forbidden
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.doctor import amount
from torchx.specs.api import GPU_TYPE, Resource

_Object = dict[str, Any]
_Amounts = dict[str, float]
_GPU = "gpu"


def pools(api: KubeApi, namespace: str, need: Resource | None) -> list[Pool]:
    """Return a pool for each flavor of each queue of the namespace; none without Kueue, or rights to list queues.

    Without the right to list cluster queues, amounts are unknown.
    """
    try:
        queues = _items(api, "LocalQueue", namespace)
    except NotFoundError:
        return []
    clusters = _items(api, "ClusterQueue", None) if queues else []
    by_name = {str(queue["metadata"]["name"]): queue for queue in clusters}
    return [
        pool
        for queue in queues
        for pool in _of(queue, by_name.get(str((queue.get("spec") or {}).get("clusterQueue"))), need)
    ]


def _items(api: KubeApi, kind: str, namespace: str | None) -> list[_Object]:
    kinds = (kind, f"{kind}V1Beta1")
    return api.of_any(kinds, lambda kind: unless_forbidden(lambda: api.items(path_of(kind, namespace)), []))


def _of(queue: _Object, cluster: _Object | None, need: Resource | None) -> Iterator[Pool]:
    name = f"queue {queue['metadata']['name']}"
    why = _stopped(queue) or (_stopped(cluster) if cluster is not None else "")
    if cluster is None:
        yield Pool(name, "", -1, -1, -1, -1, 0 if why else -1, -1, -1, -1, why=why, quota=True)
        return
    status = cluster.get("status") or {}
    reserved = _by_flavor(status.get("flavorsReservation") or status.get("flavorsUsage") or (), "total")
    groups = (cluster.get("spec") or {}).get("resourceGroups") or ()
    nominal = _by_flavor((flavor for group in groups for flavor in group.get("flavors") or ()), "nominalQuota")
    for flavor, has in nominal.items():
        taken = reserved.get(flavor, {})
        free = {kind: 0.0 if why else max(total - taken.get(kind, 0), 0) for kind, total in has.items()}
        (cpus, memory, gpus), left = _numbers(has), _numbers(free)
        kind = flavor if gpus > 0 else ""
        fits = _fits(free, kind, need)
        shape = (f"{name} ({flavor})", kind, cpus, memory, gpus)
        yield Pool(*shape, -1, 0 if why else -1, *left, fits, why=why, quota=True)


def _by_flavor(flavors: Iterable[_Object], key: str) -> dict[str, _Amounts]:
    return {
        str(flavor.get("name")): {
            _GPU if str(row.get("name")).endswith("/gpu") else str(row.get("name")): amount(row.get(key, 0))
            for row in flavor.get("resources") or ()
        }
        for flavor in flavors
    }


def _numbers(amounts: _Amounts) -> tuple[int, int, int]:
    """Return CPUs, MiB and GPUs; -1: the quota does not limit them."""
    memory = amounts.get("memory")
    return int(amounts.get("cpu", -1)), -1 if memory is None else int(memory) >> 20, int(amounts.get(_GPU, -1))


def _fits(free: _Amounts, kind: str, need: Resource | None) -> int:
    """Return for how many replicas there is quota; -1: none was asked for, or it limits nothing of them.

    >>> _fits({"cpu": 9, "gpu": 16}, "h100", Resource(4, 8, -1)), _fits({"memory": 1}, "", Resource(1, 0, -1))
    (2, -1)
    """
    if need is None:
        return -1
    wanted = {"cpu": need.cpu, "memory": need.memMB << 20, _GPU: need.gpu}
    asked = str(need.capabilities.get(GPU_TYPE) or "").lower()
    if need.gpu > 0 and asked not in kind.lower() and _GPU in free:
        return 0
    return min((int(free[name] // n) for name, n in wanted.items() if n > 0 and name in free), default=-1)


def _stopped(queue: _Object) -> str:
    """Why a queue admits no jobs now; empty if it does."""
    conditions = {str(c.get("type")): c for c in (queue.get("status") or {}).get("conditions") or ()}
    active = conditions.get("Active") or {}
    if (queue.get("spec") or {}).get("stopPolicy") in ("Hold", "HoldAndDrain"):
        return f"queue `{queue['metadata']['name']}` is stopped"
    return str(active.get("message") or "the queue takes no jobs now") if active.get("status") == "False" else ""
