"""Converts a Batch job definition for Fargate, which has fixed sizes and no access to hardware.

https://docs.aws.amazon.com/batch/latest/userguide/fargate.html
"""

from __future__ import annotations

from typing import Any

from torchx.errors import ConfigError, NotSupportedError

_Object = dict[str, Any]

# vCPUs -> least memory, most memory, and step, in MiB:
# https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html
SIZES = {
    1: (2048, 8192, 1024),
    2: (4096, 16384, 1024),
    4: (8192, 30720, 1024),
    8: (16384, 61440, 4096),
    16: (32768, 122880, 8192),
}


def size_for(vcpus: float, memory_mib: int) -> tuple[int, int]:
    """Return the smallest Fargate size with at least these vCPUs and this memory; NotSupportedError if there is none.

    >>> size_for(1, 512), size_for(3, 9000), size_for(1, 10000)
    ((1, 2048), (4, 9216), (2, 10240))
    """
    for cpus, (least, most, step) in SIZES.items():
        if vcpus <= cpus and memory_mib <= most:
            steps = max(0, -(-(memory_mib - least) // step))
            return cpus, least + steps * step
    raise NotSupportedError(
        f"Fargate has no size with {vcpus:g} vCPUs and {memory_mib} MiB",
        hint="the largest has 16 vCPUs and 122880 MiB; use a queue of EC2 instances",
    )


def to_fargate(definition: _Object, *, assign_public_ip: bool) -> _Object:
    """Return a copy of the definition for Fargate; ConfigError without an execution role, which Fargate requires.

    NotSupportedError: the job needs something that Fargate does not support.
    """
    if definition["type"] != "container":
        raise NotSupportedError(
            "the queue is a Fargate queue, which runs single containers only; this job has several, an order, "
            "or an instance type",
            hint="use a queue of EC2 instances",
        )
    container = dict(definition["containerProperties"])
    need = {r["type"]: float(r["value"]) for r in container["resourceRequirements"]}
    linux = container.pop("linuxParameters", {})
    for what, there in (
        ("GPUs", "GPU" in need),
        ("devices", bool(linux.get("devices"))),
        ("privileged containers", container.pop("privileged", False)),
        ("ulimits", bool(container.get("ulimits"))),
        ("folders of the host", any("host" in v for v in container.get("volumes", ()))),
    ):
        if there:
            raise NotSupportedError(
                f"the queue is a Fargate queue, which does not support {what}", hint="use a queue of EC2 instances"
            )
    if not container.get("executionRoleArn"):
        raise ConfigError("the queue is a Fargate queue, which needs `execution_role_arn`")
    cpus, memory = size_for(need["VCPU"], int(need["MEMORY"]))
    container["resourceRequirements"] = [
        {"type": "VCPU", "value": str(cpus)},
        {"type": "MEMORY", "value": str(memory)},
    ]
    container["networkConfiguration"] = {"assignPublicIp": "ENABLED" if assign_public_ip else "DISABLED"}
    return {**definition, "containerProperties": container, "platformCapabilities": ["FARGATE"]}
