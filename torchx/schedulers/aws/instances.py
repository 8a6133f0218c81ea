"""The instance type that a role asks for: by its named resource, or by the type of its GPUs."""

from __future__ import annotations

from torchx.errors import ConfigError
from torchx.specs.api import GPU_TYPE, Role
from torchx.specs.gpu_types import native
from torchx.specs.named_resources_aws import K8S_ITYPE, instance_types


def wanted(role: Role, backend: str) -> list[str]:
    """Return the instance types of which the role needs one, the smallest first; empty if any will do.

    Raises:
        ConfigError: the named resource is of another type than the GPUs, or no instance has as many.
    """
    named, gpus = role.resource.capabilities.get(K8S_ITYPE), native(role.resource, backend)
    if not gpus:
        return [str(named)] if named else []
    found = instance_types(gpus, role.resource)
    kind = f"{role.resource.gpu} GPUs of the type `{role.resource.capabilities[GPU_TYPE]}`"
    if not found or (named and named not in found):
        which = f"`{named}` does not have" if named else "no instance has"
        raise ConfigError(
            f"role `{role.name}` asks for {kind}, {role.resource.cpu} CPUs and {role.resource.memMB} MiB,"
            f" which {which}",
            hint=f"ask for less, or name an instance type: `[gpu_types:{backend}]` of .torchxconfig",
        )
    return [str(named)] if named else found
