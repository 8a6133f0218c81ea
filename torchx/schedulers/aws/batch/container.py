"""Renders parts of a Batch job definition: resources, limits, mounts, retries, variables.

https://docs.aws.amazon.com/batch/latest/userguide/job_definition_parameters.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from torchx.errors import ConfigError, SpecError
from torchx.schedulers.devices import get_device_mounts
from torchx.specs.api import BindMount, DeviceMount, Resource, Role, VolumeMount

_Object = dict[str, Any]

PERMISSIONS = {"r": "READ", "w": "WRITE", "m": "MKNOD"}
_MAX_SPOT_AND_HOST_ATTEMPTS = 10
_UNLIMITED = -1


class ResourceType(Enum):
    """Type of a resource requirement."""

    VCPU = 1
    GPU = 2
    MEMORY = 3

    @staticmethod
    def from_str(resource_type: str) -> ResourceType:
        """Return the member of this name, in any case. Raises SpecError if there is none.

        >>> ResourceType.from_str("GPU").value
        2
        """
        try:
            return ResourceType[resource_type.upper()]
        except KeyError:
            raise SpecError(f"`{resource_type}` is not a resource type of Batch", hint="VCPU, GPU or MEMORY") from None


DEFAULT_RESOURCE = Resource(cpu=1, memMB=1024)
"""For roles without resources: Batch has no defaults."""


def resource_requirements_from_resource(resource: Resource) -> list[dict[str, str]]:
    """Render a resource. CPUs are rounded up to a whole number, at least one.

    Raises:
        SpecError: the resource has no memory, which Batch requires.

    >>> resource_requirements_from_resource(Resource(cpu=4, gpu=1, memMB=2048))
    [{'type': 'VCPU', 'value': '4'}, {'type': 'MEMORY', 'value': '2048'}, {'type': 'GPU', 'value': '1'}]
    """
    if resource.memMB <= 0:
        raise SpecError("a resource has no memory, which Batch requires", hint="set `memMB`")
    found = [
        {"type": ResourceType.VCPU.name, "value": str(max(1, -int(-resource.cpu // 1)))},
        {"type": ResourceType.MEMORY.name, "value": str(int(resource.memMB))},
    ]
    if resource.gpu > 0:
        found.append({"type": ResourceType.GPU.name, "value": str(resource.gpu)})
    return found


def resource_from_resource_requirements(resource_requirements: list[dict[str, str]]) -> Resource:
    """Return the inverse of :func:`resource_requirements_from_resource`; missing CPUs and memory become -1.

    >>> resource_from_resource_requirements([{"type": "VCPU", "value": "2"}, {"type": "MEMORY", "value": "64"}])
    Resource(cpu=2, gpu=0, memMB=64)
    """
    found = {ResourceType.from_str(r["type"]): float(r["value"]) for r in resource_requirements}
    cpu = found.get(ResourceType.VCPU, -1)
    return Resource(
        cpu=int(cpu) if cpu == int(cpu) else cpu,  # type: ignore[arg-type]  # Fargate has quarters of a CPU
        gpu=int(found.get(ResourceType.GPU, 0)),
        memMB=int(found.get(ResourceType.MEMORY, -1)),
    )


def parse_ulimits(ulimits_list: list[str]) -> list[dict[str, Any]]:
    """Parse ulimits ``NAME:SOFT:HARD``, or ``NAME:BOTH``; ``=`` or commas may replace the colons. -1 is unlimited.

    Raises:
        ConfigError: one is malformed.

    >>> parse_ulimits(["memlock:-1:-1", "nofile=65536"])
    [{'name': 'memlock', 'softLimit': -1, 'hardLimit': -1}, {'name': 'nofile', 'softLimit': 65536, 'hardLimit': 65536}]
    """
    found = []
    for text in ulimits_list:
        match = re.fullmatch(r"\s*([a-z]+)\s*[:=,]\s*(-?\d+|unlimited)(?:\s*[:,]\s*(-?\d+|unlimited))?\s*", text)
        if match is None:
            raise ConfigError(f"`{text}` is not a valid ulimit", hint="write `NAME:SOFT:HARD`, such as `memlock:-1:-1`")
        soft, hard = (_UNLIMITED if n == "unlimited" else int(n) for n in (match[2], match[3] or match[2]))
        if hard != _UNLIMITED and (soft == _UNLIMITED or soft > hard):
            raise ConfigError(f"ulimit `{text}`: the soft limit is above the hard one")
        found.append({"name": match[1], "softLimit": soft, "hardLimit": hard})
    return found


def render_mounts(role: Role) -> tuple[list[_Object], list[_Object], list[_Object]]:
    """Render the volumes, mount points and devices of a role; SpecError if Batch does not support one of them."""
    volumes: list[_Object] = []
    points: list[_Object] = []
    devices = [_device(d) for d in get_device_mounts(role.resource.devices)]
    for mount in role.mounts:
        name = f"mount-{len(volumes)}"
        if isinstance(mount, DeviceMount):
            devices.append(_device(mount))
            continue
        if isinstance(mount, BindMount):
            volumes.append({"name": name, "host": {"sourcePath": mount.src_path}})
        elif isinstance(mount, VolumeMount):
            volumes.append({"name": name, "efsVolumeConfiguration": efs_volume(mount.src)})
        else:
            raise SpecError(f"role `{role.name}`: Batch cannot mount a {type(mount).__name__}")
        points.append({"sourceVolume": name, "containerPath": mount.dst_path, "readOnly": mount.read_only})
    return volumes, points, devices


def efs_volume(source: str) -> _Object:
    """Render an EFS volume: ``fs-ID``, ``fs-ID:/folder``, or ``fs-ID:fsap-ID`` with an access point; else SpecError.

    https://docs.aws.amazon.com/batch/latest/userguide/efs-volumes.html

    >>> efs_volume("fs-0a1b2c3d:/data")
    {'fileSystemId': 'fs-0a1b2c3d', 'transitEncryption': 'ENABLED', 'rootDirectory': '/data'}
    """
    system, _, rest = source.partition(":")
    if not re.fullmatch(r"fs-[0-9a-f]+", system) or (rest and not rest.startswith(("/", "fsap-"))):
        raise SpecError(
            f"volume `{source}` is not an EFS file system",
            hint="write `fs-0123456789`, `fs-0123456789:/folder` or `fs-0123456789:fsap-0123456789`",
        )
    found: _Object = {"fileSystemId": system, "transitEncryption": "ENABLED"}
    if rest.startswith("fsap-"):
        found["authorizationConfig"] = {"accessPointId": rest, "iam": "ENABLED"}
    elif rest:
        found["rootDirectory"] = rest
    return found


def render_retries(max_retries: int, host_retries: int) -> _Object:
    """Render the retry strategy; SpecError for more attempts than Batch supports, which counts all of them together.

    With ``max_retries`` every failure is retried, except that an image cannot be pulled. Without it, only the loss of a
    host (such as a spot reclaim) is retried. https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html
    """
    most = _MAX_SPOT_AND_HOST_ATTEMPTS - 1
    for what, count in (("max_retries", max_retries), ("host_retries", host_retries)):
        if not 0 <= count <= most:
            raise SpecError(f"{what} is {count}: Batch retries a job 0 to {most} times")
    host_lost = {"onStatusReason": "Host EC2*", "action": "RETRY"}
    if max_retries:
        no_image = {"onReason": "CannotPull*", "action": "EXIT"}
        any_end = {"onReason": "*", "action": "RETRY"}
        return {"attempts": max_retries + 1, "evaluateOnExit": [host_lost, no_image, any_end]}
    if host_retries:
        return {"attempts": host_retries + 1, "evaluateOnExit": [host_lost, {"onReason": "*", "action": "EXIT"}]}
    return {"attempts": 1}


def variables(env: Mapping[str, str]) -> list[dict[str, str]]:
    """Render an environment, sorted so that equal ones are equal; SpecError for a name that Batch reserves."""
    for name in env:
        if name.startswith("AWS_BATCH"):
            raise SpecError(f"variable `{name}`: names that begin with AWS_BATCH are reserved by Batch")
    return [{"name": name, "value": str(value)} for name, value in sorted(env.items())]


def one_instance_type(types: Iterable[str | None]) -> str | None:
    """Return the instance type of all roles; None if there is none. Raises SpecError if they differ."""
    named = sorted({t for t in types if t})
    if len(named) > 1:
        raise SpecError(
            f"roles ask for different instance types ({', '.join(named)}), and all nodes of a Batch job have one",
            hint="give all roles the same type, or describe what they need by cpu, gpu and memMB",
        )
    return named[0] if named else None


def _device(mount: DeviceMount) -> _Object:
    return {
        "hostPath": mount.src_path,
        "containerPath": mount.dst_path,
        "permissions": [PERMISSIONS[p] for p in mount.permissions if p in PERMISSIONS],
    }
