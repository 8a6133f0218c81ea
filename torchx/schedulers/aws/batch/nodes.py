"""What the queues of Batch may start: instances of their compute environments, up to ``maxvCpus``.

Batch starts instances for jobs and stops them later, so free is what it may still start. Idle parts of instances that
run already are not counted: no call returns them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchx.schedulers.aws.batch.queues import Queue, takes_none, why_not_here
from torchx.schedulers.kit.nodes import Node, Pool, has_room
from torchx.specs.api import Resource
from torchx.specs.gpu_types import TABLE
from torchx.specs.named_resources_aws import K8S_ITYPE, NAMED_RESOURCES

_Object = dict[str, Any]


def pools(queues: list[Queue], need: Resource | None) -> list[Pool]:
    """Return a pool for each type of instance in each compute environment of these queues."""
    return [pool for queue in queues for environment in queue.environments for pool in _of(queue, environment, need)]


def _of(queue: Queue, environment: _Object, need: Resource | None) -> Iterator[Pool]:
    resources = environment.get("computeResources") or {}
    most, running = resources.get("maxvCpus"), resources.get("desiredvCpus")  # no `desired`: Fargate, or not managed
    free = -1 if most is None or running is None else max(int(most) - int(running), 0)
    closed = takes_none(queue)
    why = closed or why_not_here(environment, 1 if need is None else int(need.cpu), [])
    usable = not closed and not why_not_here(environment, 0, [])
    name = f"{queue.name}/{environment.get('computeEnvironmentName')}"
    for kind in resources.get("instanceTypes") or [resources.get("type") or "unmanaged"]:
        shapes = _shapes(str(kind))
        for shape in shapes:
            yield _pool(f"{name} {shape.capabilities[K8S_ITYPE]}", shape, most, free, need=need, why=why, usable=usable)
        if not shapes:  # such as `optimal`, or Fargate, where each job gets what it asks for
            yield Pool(f"{name} {kind}", "", -1, -1, -1, -1, -usable, free if usable else 0, -1, -1, why=why)


def _shapes(kind: str) -> list[Resource]:
    """Return the instances that a type, or a family of types, names; none if torchx does not know their size.

    >>> [shape.cpu for shape in _shapes("p3")], _shapes("optimal")
    ([8, 32, 64], [])
    """
    named = [name for name in NAMED_RESOURCES if kind in (name[4:], name[4:].partition(".")[0])]
    return sorted((NAMED_RESOURCES[name]() for name in named), key=lambda shape: (shape.gpu, shape.cpu))


def _pool(
    name: str, shape: Resource, most: int | None, free: int, *, need: Resource | None, why: str, usable: bool
) -> Pool:
    cpus, memory, gpus = int(shape.cpu), shape.memMB, shape.gpu
    family = str(shape.capabilities[K8S_ITYPE]).partition(".")[0]
    gpu = ", ".join(kind for kind, families in TABLE["aws_batch"].items() if family in families.split())
    count = -1 if most is None else int(most) // cpus
    new = -1 if free < 0 else free // cpus if usable else 0
    found = Pool(name, gpu, cpus, memory, gpus, count, count if usable else 0, why=why)
    found.free_cpus, found.free_memory_mb, found.free_gpus = (max(new * n, -1) for n in (cpus, memory, gpus))
    if need is not None:
        fits = has_room(Node(name, cpus, memory, gpus, gpu, cpus, memory, gpus), need)
        found.fitting = new if fits else 0
        found.why = why or ("" if fits else "a replica is larger than this instance, or has other GPUs")
    return found
