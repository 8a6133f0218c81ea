"""What to run: the job description that every scheduler understands.

>>> from torchx.specs import AppDef, Role
>>> AppDef("echo", roles=[Role("echo", image="/tmp", entrypoint="/bin/echo", args=["hello world"])]).name
'echo'
"""

from __future__ import annotations

from torchx.specs.api import (
    ALL,
    MISSING,
    NONE,
    NULL_RESOURCE,
    RESET,
    TORCHX_HOME,
    YELLOW_BOLD,
    AppDef,
    AppDryRunInfo,
    AppHandle,
    AppState,
    AppStatus,
    AppStatusError,
    BindMount,
    CfgVal,
    DeviceMount,
    InvalidRunConfigException,
    MalformedAppHandleException,
    Metadata,
    MountType,
    ParsedAppHandle,
    ReplicaState,
    ReplicaStatus,
    Resource,
    RetryPolicy,
    Role,
    RoleStatus,
    UnknownAppException,
    UnknownSchedulerException,
    VolumeMount,
    Workspace,
    cases,
    get_type_name,
    is_started,
    is_terminal,
    macros,
    make_app_handle,
    parse_app_handle,
    runopt,
    runopts,
)
from torchx.specs.mounts import parse_mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.component_reader.builders import materialize_appdef
    from torchx.plugins import load_group
    from torchx.specs import named_resources
    from torchx.specs.named_resources import (
        AWS_NAMED_RESOURCES,
        CUSTOM_NAMED_RESOURCES,
        GENERIC_NAMED_RESOURCES,
        ResourceFactory,
        get_named_resources,
        resource,
    )
    from torchx.specs.secret import Secret
    from torchx.util.modules import import_attr

GiB = 1024
"""MiB in a GiB, for ``memMB``."""

# Imported when first used.
_LAZY = {
    "AWS_NAMED_RESOURCES": "torchx.specs.named_resources",
    "CUSTOM_NAMED_RESOURCES": "torchx.specs.named_resources",
    "GENERIC_NAMED_RESOURCES": "torchx.specs.named_resources",
    "ResourceFactory": "torchx.specs.named_resources",
    "Secret": "torchx.specs.secret",
    "get_named_resources": "torchx.specs.named_resources",
    "import_attr": "torchx.util.modules",
    "load_group": "torchx.plugins",
    "materialize_appdef": "torchx.component_reader.builders",
    "named_resources": "torchx.specs.named_resources",
    "resource": "torchx.specs.named_resources",
}

__all__ = [
    "ALL",
    "AWS_NAMED_RESOURCES",
    "CUSTOM_NAMED_RESOURCES",
    "GENERIC_NAMED_RESOURCES",
    "MISSING",
    "NONE",
    "NULL_RESOURCE",
    "RESET",
    "TORCHX_HOME",
    "YELLOW_BOLD",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "GiB",
    "InvalidRunConfigException",
    "MalformedAppHandleException",
    "Metadata",
    "MountType",
    "ParsedAppHandle",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "ResourceFactory",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "Secret",
    "UnknownAppException",
    "UnknownSchedulerException",
    "VolumeMount",
    "Workspace",
    "cases",
    "get_named_resources",
    "get_type_name",
    "import_attr",
    "is_started",
    "is_terminal",
    "load_group",
    "macros",
    "make_app_handle",
    "materialize_appdef",
    "named_resources",
    "parse_app_handle",
    "parse_mounts",
    "resource",
    "runopt",
    "runopts",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
