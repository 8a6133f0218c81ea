"""Plugin discovery: entry points and decorated functions.

==========================  ==================================================================
``load_group(group)``       the loaded plugins of a group by name
``names(group)``            their names; imports modules of ``torchx_plugins`` only
``load(group, name)``       one loaded plugin
``Registry(group, rows)``   built-ins and plugins of a group
``report()``                the content of ``torchx plugins``
``register``                the decorators
==========================  ==================================================================
"""

from __future__ import annotations

from torchx.plugins import registry as _registry
from torchx.plugins.discovery import (
    COMMANDS,
    COMPONENTS,
    FAILURES,
    KINDS,
    NAMED_RESOURCES,
    SCHEDULERS,
    TRACKERS,
    EntryPoint,
    LoadFailure,
    refresh,
)
from torchx.plugins.registry import PluginError, PluginInfo, Registry, load_group, report
from torchx.util.any import Any

__all__ = [
    "COMMANDS",
    "COMPONENTS",
    "FAILURES",
    "KINDS",
    "NAMED_RESOURCES",
    "SCHEDULERS",
    "TRACKERS",
    "EntryPoint",
    "LoadFailure",
    "PluginError",
    "PluginInfo",
    "Registry",
    "load",
    "load_group",
    "names",
    "refresh",
    "report",
]


def names(group: str) -> list[str]:
    """Return the names of the plugins in a group.

    >>> names("no.such.group")
    []
    """
    return list(_registry.winners(group))


def load(group: str, name: str, default: Any = None) -> Any:
    """Load the plugin of that name; return ``default`` if there is none.

    Raises:
        NotFoundError: there is no such plugin and no ``default``.
        PluginError: the plugin cannot be loaded.
    """
    found = _registry.winners(group)
    if name not in found:
        if default is not None:
            return default
        raise _registry.not_found(group, name, list(found))
    return _registry.load(found[name])
