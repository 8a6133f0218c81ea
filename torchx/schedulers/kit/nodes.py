"""What is free on a cluster: nodes of equal shape in one pool, which is a partition, a queue or a node pool."""

from __future__ import annotations

from collections.abc import Iterable

from torchx.specs.api import GPU_TYPE, Resource
from torchx.util.records import dataclass, field


@dataclass
class Node:
    """One node as its scheduler describes it. -1: unknown."""

    pool: str
    cpus: int = -1
    memory_mb: int = -1
    gpus: int = 0
    gpu: str = ""  # type
    free_cpus: int = -1
    free_memory_mb: int = -1
    free_gpus: int = 0
    usable: bool = True  # takes jobs, now or when others have ended


@dataclass
class Pool:
    """Nodes of one shape in a pool; amounts are those of one node, and ``free_*`` the sums over all.

    Attributes:
        usable: nodes that take jobs.
        fitting: nodes that have room for a replica of the size asked for now; -1: none was asked for, or unknown.
        start: Unix time at which a job of the size asked for would start; None: the scheduler cannot say.
        why: why such a job cannot run here; empty if it can, or was not asked for.
        quota: it is a queue with these amounts as its quota, not a set of nodes; ``fitting`` counts replicas.
    """

    name: str
    gpu: str
    cpus: int
    memory_mb: int
    gpus: int
    nodes: int = 0
    usable: int = 0
    free_cpus: int = 0
    free_memory_mb: int = 0
    free_gpus: int = 0
    fitting: int = -1
    start: float | None = field(default=None)
    why: str = ""
    quota: bool = False


def pools_of(nodes: Iterable[Node], need: Resource | None) -> list[Pool]:
    """Sum up nodes by pool and shape, in order of their first node; ``need``: the size of a replica.

    >>> [pool] = pools_of([Node("a", 4, 100, free_cpus=4), Node("a", 4, 90, free_cpus=1)], Resource(2, 0, -1))
    >>> pool.nodes, pool.free_cpus, pool.memory_mb, pool.fitting
    (2, 5, 90, 1)
    """
    found: dict[tuple[object, ...], Pool] = {}
    for node in nodes:
        key = (node.pool, node.cpus, node.gpus, node.gpu)
        pool = found.setdefault(key, Pool(node.pool, node.gpu, node.cpus, node.memory_mb, node.gpus))
        pool.nodes += 1
        pool.usable += node.usable
        pool.memory_mb = min(pool.memory_mb, node.memory_mb)
        for name in ("free_cpus", "free_memory_mb", "free_gpus"):
            amount, sum_ = getattr(node, name), getattr(pool, name)
            setattr(pool, name, -1 if amount < 0 or sum_ < 0 else sum_ + (amount if node.usable else 0))
        if need is not None and node.free_cpus >= 0:
            pool.fitting = max(pool.fitting, 0) + (node.usable and has_room(node, need))
    return list(found.values())


def has_room(node: Node, need: Resource) -> bool:
    """Whether a replica of this size fits on a node now."""
    kind = str(need.capabilities.get(GPU_TYPE) or "").lower()
    is_kind = not kind or kind in node.gpu.lower()
    memory = node.free_memory_mb < 0 or node.free_memory_mb >= max(need.memMB, 0)
    gpus = need.gpu <= 0 or node.free_gpus >= need.gpu
    return is_kind and memory and gpus and node.free_cpus >= max(need.cpu, 0)
