"""Compares what the replicas of a local job request with what the machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.schedulers.local.request import ENV_CUDA_VISIBLE_DEVICES, ReplicaParam
from torchx.specs.api import AppDef, BindMount, DeviceMount, Resource
from torchx.util.machine import cpu_count, gpu_ids, memory_mb
from torchx.util.notices import logger
from torchx.util.strings import size_text

if TYPE_CHECKING:
    from torchx.schedulers.kit.nodes import Pool


def share_gpus(role_params: dict[str, list[ReplicaParam]], app: AppDef) -> None:
    """Set ``CUDA_VISIBLE_DEVICES`` of each replica to different GPUs. Only warns if there are too few."""
    asked = {role.name: max(role.resource.gpu, 0) for role in app.roles}
    total = sum(asked[name] * len(params) for name, params in role_params.items())
    if not total:
        return
    free = gpu_ids()
    if total > len(free):
        logger("torchx.schedulers.local").warning(
            f"the replicas ask for {total} GPUs and this machine has {len(free)}: "
            f"{ENV_CUDA_VISIBLE_DEVICES} is not set, and they may share GPUs"
        )
        return
    for name, params in role_params.items():
        for param in params:
            mine, free = free[: asked[name]], free[asked[name] :]
            param.env.setdefault(ENV_CUDA_VISIBLE_DEVICES, ",".join(mine))


def warn_of_shortage(app: AppDef) -> None:
    """Warn once if all replicas together request more than the machine has, or if roles have mounts."""
    problems = shortages(app)
    unmounted = sorted({mount.dst_path for role in app.roles for mount in role.mounts if not _is_there(mount)})
    if unmounted:
        problems.append(f"mounts are not supported here and ignored: {', '.join(f'`{path}`' for path in unmounted)}")
    if problems:
        logger("torchx.schedulers.local").warning("; ".join(problems))


def shortages(app: AppDef) -> list[str]:
    """One sentence if all replicas together request more than the machine has; else an empty list."""
    asked = [(role.resource, role.num_replicas) for role in app.roles if not role.resource.is_unset]
    cpus = sum(max(resource.cpu, 0) * count for resource, count in asked)
    gpus = sum(max(resource.gpu, 0) * count for resource, count in asked)
    memory = sum(max(resource.memMB, 0) * count for resource, count in asked)
    short = []
    if cpus > cpu_count():
        short.append((f"{cpus} CPUs", str(cpu_count())))
    if gpus and gpus > len(gpu_ids()):
        short.append((f"{gpus} GPU{'s' * (gpus > 1)}", str(len(gpu_ids()))))
    if memory_mb() and memory > memory_mb():
        short.append((f"{size_text(memory << 20)} of memory", size_text(memory_mb() << 20)))
    if not short:
        return []
    (wanted, there), *more = short
    others = "".join(f"; and for {w}, it has {t}" for w, t in more)
    return [f"the job asks for {wanted}, this machine has {there}{others}"]


def _is_there(mount: object) -> bool:
    """Whether a path is mounted at itself, so that a local process sees it anyway."""
    return isinstance(mount, (BindMount, DeviceMount)) and mount.src_path == mount.dst_path


def pools(need: Resource | None) -> list[Pool]:
    """Return this machine; what other processes use of it is unknown."""
    from torchx.schedulers.kit.nodes import Node, pools_of

    return pools_of([Node("this machine", cpu_count(), memory_mb(), len(gpu_ids()), free_gpus=-1)], need)
