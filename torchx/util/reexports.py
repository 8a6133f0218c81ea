"""Lazy re-exports of names that programs import from modules that do not define them.

These modules of earlier versions of torchx had the names through their own imports. Such a module calls::

    reexports(__name__)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from torchx.util.any import Any

_HOMES = {
    "torchx.cli.cmd_builtins": "CmdBuiltins",
    "torchx.components.structured_arg": "StructuredJArgument StructuredNameArgument",
    "torchx.component_reader.builders": "materialize_appdef",
    "torchx.component_reader.finder": """
        ComponentNotFoundException ComponentValidationException get_builtin_source get_component get_components""",
    "torchx.component_reader.help": "TorchXArgumentHelpFormatter get_fn_docstring",
    "torchx.component_reader.linter": "ComponentFunctionValidator validate",
    "torchx.component_reader.types": """
        decode decode_optional get_argparse_param_type is_bool none_throws to_dict""",
    "torchx.config": "dump get_config get_configs load_sections",
    "torchx.plugins": "load_group",
    "torchx.runner.api": "Runner get_runner",
    "torchx.runner.events.api": "SourceType TorchxEvent",
    "torchx.runner.events.handlers": "get_logging_handler",
    "torchx.runner.ground.trackers": "get_configured_trackers",
    "torchx.schedulers": "SchedulerFactory get_default_scheduler_name get_scheduler_factories",
    "torchx.schedulers.api": """
        DescribeAppResponse ListAppResponse Scheduler Stream StructuredOpts filter_regex split_lines
        split_lines_iterator""",
    "torchx.schedulers.devices": "get_device_mounts",
    "torchx.schedulers.ids": "make_unique",
    "torchx.schedulers.local.images": "CWDImageProvider ImageProvider LocalDirectoryImageProvider",
    "torchx.schedulers.local.logs": "LogIterator",
    "torchx.schedulers.local.processes": "PopenProtocol SignalException",
    "torchx.schedulers.local.request": "ENV_CUDA_VISIBLE_DEVICES PopenRequest ReplicaParam",
    "torchx.schedulers.streams": "Tee",
    "torchx.specs.api": """
        AppDef AppDryRunInfo AppHandle AppState AppStatus BindMount CfgVal DeviceMount MountType NONE NULL_RESOURCE
        ReplicaState ReplicaStatus Resource RetryPolicy Role RoleStatus VolumeMount Workspace get_type_name is_started
        is_terminal macros make_app_handle parse_app_handle runopt runopts""",
    "torchx.specs.named_resources_aws": "instance_type_from_resource",
    "torchx.tracker.api": """
        ENV_TORCHX_JOB_ID ENV_TORCHX_PARENT_RUN_ID ENV_TORCHX_TRACKERS TrackerBase build_trackers
        tracker_config_env_var_name""",
    "torchx.util.session": "TORCHX_INTERNAL_SESSION_ID",
    "torchx.util.strings": "normalize_str",
    "torchx.workspace.api": "WorkspaceMixin",
    "torchx.workspace.dir_workspace": "DirWorkspaceMixin",
    "torchx.workspace.docker_workspace": "DockerWorkspaceMixin",
    "torchx.workspace.files": "walk_workspace",
}
"""Names by defining module."""


def reexports(module: str, own: Mapping[str, str] | None = None) -> None:
    """Add the names of :data:`_HOMES` to a module, each imported on first use.

    Type checkers do not see them, and so still report misspelled names.

    Args:
        own: additional names that only this module re-exports, by defining module.
    """

    def getattr_(name: str) -> Any:
        if name == "__path__":  # each `from module import name` looks it up first
            raise AttributeError(name)
        homes = {**(own or {}), **_HOMES}
        # Not from the module itself: in a circular import it may lack a name that it is about to define.
        home = next((home for home, names in homes.items() if home != module and name in names.split()), None)
        if home is not None:
            from importlib import import_module

            return getattr(import_module(home), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    sys.modules[module].__getattr__ = getattr_  # type: ignore[method-assign]  # where Python looks for it (PEP 562)
