"""How plugins are found: entry points, decorated functions, who won, what failed.

==========================  ==================================================================
``load_group(group)``       the loaded plugins of a group by name
``names(group)``            their names; nothing is imported but modules of ``torchx_plugins``
``load(group, name)``       one of them
``Registry(group, rows)``   built-ins and plugins under one roof
``report()``                what ``torchx plugins`` shows
``register``                the decorators
==========================  ==================================================================
"""

from __future__ import annotations

from torchx.plugins import registry as _registry
from torchx.plugins.discovery import (
    COMMANDS,
    COMPONENTS,
    KINDS,
    NAMED_RESOURCES,
    SCHEDULERS,
    TRACKERS,
    EntryPoint,
    LoadFailure,
    refresh,
)
from torchx.plugins.registry import PluginError, PluginInfo, Registry, load_group, report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "COMMANDS",
    "COMPONENTS",
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
    """The names that plugins offer in a group.

    >>> names("no.such.group")
    []
    """
    return list(_registry.winners(group))


def load(group: str, name: str, default: Any = None) -> Any:
    """The plugin of that name; ``default`` when no plugin offers it.

    Raises:
        NotFoundError: no plugin offers it, and there is no ``default``.
        PluginError: it cannot be loaded.
    """
    found = _registry.winners(group)
    if name not in found:
        if default is not None:
            return default
        raise _registry.not_found(group, name, list(found))
    return _registry.load(found[name])
