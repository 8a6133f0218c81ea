"""What a role needs of a Docker engine, as arguments of ``client.containers.create``.

https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerCreate
"""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.schedulers.devices import get_device_mounts
from torchx.schedulers.docker.gangs import REPLICA
from torchx.schedulers.kit.names import DNS_LABEL
from torchx.specs.api import AppDef, BindMount, VolumeMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx.specs.api import Resource, Role

SHM_BYTES = 8 << 30
"""The most that ``/dev/shm`` may grow to where a role does not say how much memory it needs."""


def host_names(app: AppDef) -> dict[str, str]:
    """Role -> the beginning of its replicas' host names.

    Raises:
        SpecError: two roles would have the same.
    """
    names: dict[str, str] = {}
    for role in app.roles:
        name = DNS_LABEL.make(role.name, room=len(f"-{role.num_replicas}"))
        other = next((r for r, n in names.items() if n == name), None)
        if other is not None:
            raise SpecError(
                f"roles `{other}` and `{role.name}` would both have the host name `{name}`",
                hint="host names have lower case letters, digits and dashes: rename one of the roles",
            )
        names[role.name] = name
    return names


def definition(role: Role) -> str:
    """The role as JSON, secrets masked: labels can be read by everyone who may list containers."""
    from torchx.specs.serialize import masked, role_to_dict

    return as_json(role_to_dict(masked(AppDef("", [role])).roles[0], fallback=repr))


def as_json(value: object) -> str:
    """Compact JSON; what JSON has no type for as text."""
    import json

    return json.dumps(value, default=str, separators=(",", ":"))


def readable(name: str, value: object) -> str:
    """The value of one of ``create``'s arguments, for people.

    >>> readable("mem_limit", 1 << 30), readable("nano_cpus", 1500000000), readable("ports", {"80/tcp": 80})
    ('1024 MB', '1.5 CPUs', '{"80/tcp":80}')
    """
    if name in ("mem_limit", "shm_size") and isinstance(value, int):
        return f"{value / (1 << 20):g} MB"
    if name == "nano_cpus" and isinstance(value, int):
        return f"{value / 1e9:g} CPUs"
    return value if isinstance(value, str) else as_json(value)


def copied(patterns: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names match.

    >>> copied(["NCCL_*"], {"NCCL_DEBUG": "INFO", "HOME": "/"})
    {'NCCL_DEBUG': 'INFO'}
    """
    from fnmatch import fnmatchcase

    wanted = list(patterns)
    return {name: value for name, value in environ.items() if any(fnmatchcase(name, p) for p in wanted)}


def render_mounts(role: Role) -> dict[str, object]:
    """``mounts`` and ``devices`` of ``create``: those of the role, and those behind the devices of its resource."""
    mounts: list[dict[str, object]] = []
    devices: list[str] = []
    for mount in [*role.mounts, *get_device_mounts(role.resource.devices)]:
        if isinstance(mount, BindMount):
            mounts.append(_mount("bind", mount.src_path, mount.dst_path, read_only=mount.read_only))
        elif isinstance(mount, VolumeMount):
            mounts.append(_mount("volume", mount.src, mount.dst_path, read_only=mount.read_only))
        else:
            devices.append(f"{mount.src_path}:{mount.dst_path}:{mount.permissions}")
    return {"mounts": mounts, "devices": devices}


def _mount(kind: str, source: str, target: str, *, read_only: bool) -> dict[str, object]:
    return {"Type": kind, "Source": source, "Target": target, "ReadOnly": read_only}


def render_resource(resource: Resource) -> dict[str, object]:
    """Limits of a container: CPUs, memory without swap, and all of that memory for ``/dev/shm`` if it needs it.

    PyTorch's data loaders pass batches through ``/dev/shm``, of which Docker would give 64 MB.
    """
    limits: dict[str, object] = {"shm_size": SHM_BYTES}
    if resource.cpu > 0:
        limits["nano_cpus"] = int(resource.cpu * 1e9)
    if resource.memMB > 0:
        memory = resource.memMB << 20
        limits.update(mem_limit=memory, memswap_limit=memory, shm_size=memory)
    return limits


class GpuShares:
    """Hands GPUs out: each replica of a job gets others. A replica that is the only one to ask gets any.

    ``compute`` and ``utility`` are CUDA and ``nvidia-smi``:
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html#driver-capabilities
    """

    def __init__(self, app: AppDef) -> None:
        self._alone = sum(role.num_replicas for role in app.roles if role.resource.gpu > 0) == 1
        self._next = 0

    def take(self, count: int) -> list[dict[str, object]]:
        """``device_requests`` of the next replica."""
        if count <= 0:
            return []
        capabilities = [["compute", "utility"]]
        if self._alone:
            return [{"count": count, "capabilities": capabilities}]
        ids = [str(i) for i in range(self._next, self._next + count)]
        self._next += count
        return [{"device_ids": ids, "capabilities": capabilities}]


def render_ports(role: Role) -> dict[str, object]:
    """Each of the role's ports, published at one that the engine chooses: `torchx status` shows it.

    Not at the same number: all jobs of ``dist.ddp`` listen at 29500. And on the loopback address only: who wants others
    to reach it has to say so, by a tunnel or a proxy.
    """
    return {f"{port}/tcp": ("127.0.0.1",) for port in role.port_map.values()}


def render_retries(most: int, policy: str) -> dict[str, object] | None:
    """What the engine does by itself: https://docs.docker.com/engine/containers/start-containers-automatically/"""
    if most <= 0 or policy != REPLICA:
        return None
    return {"Name": "on-failure", "MaximumRetryCount": most}
