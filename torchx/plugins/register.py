"""Decorators that register functions and classes as plugins.

They work in modules of the namespace package ``torchx_plugins``, which torchx imports by itself, and in any module that
the program imports before it uses the plugin.

======================  ================================  ===============================================
decorator               module of ``torchx_plugins``      decorates
======================  ================================  ===============================================
``scheduler``           ``torchx_plugins.schedulers.*``   ``(session_name: str, **kwargs) -> Scheduler``
``component``           ``torchx_plugins.components.*``   ``(...) -> AppDef``
``named_resource``      ``...named_resources.*``          ``() -> Resource``
``tracker``             ``torchx_plugins.trackers.*``     ``(config: str | None) -> TrackerBase``
``command``             ``torchx_plugins.commands.*``     a ``SubCommand`` class
``failure``             ``torchx_plugins.failures.*``     ``() -> Iterable[Row]``, see docs/signatures.md
======================  ================================  ===============================================

The optional argument is the name; the default is the function name, or ``<module>.<function>`` for a component.

>>> from torchx.plugins import load_group, register
>>> @register.named_resource("lab_gpu")
... def lab_gpu() -> object:
...     return "a Resource"
>>> load_group("torchx.named_resources")["lab_gpu"]()
'a Resource'
>>> register.forget("torchx.named_resources", "lab_gpu")
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from torchx.plugins import discovery
from torchx.plugins.discovery import EntryPoint

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])


def scheduler(name: str | F | None = None) -> Any:
    """Register a scheduler factory."""
    return _decorator(discovery.SCHEDULERS, name)


def component(name: str | F | None = None) -> Any:
    """Register a component function; the name may be dotted, as in ``vision.train``."""
    return _decorator(discovery.COMPONENTS, name)


def named_resource(name: str | F | None = None) -> Any:
    """Register a function that returns a ``Resource``."""
    return _decorator(discovery.NAMED_RESOURCES, name)


def failure(name: str | F | None = None) -> Any:
    """Register a function that returns signatures of failures."""
    return _decorator(discovery.FAILURES, name)


def tracker(name: str | F | None = None) -> Any:
    """Register a tracker factory."""
    return _decorator(discovery.TRACKERS, name)


def command(name: str | F | None = None) -> Any:
    """Register a ``SubCommand`` class as a command of the command line."""
    return _decorator(discovery.COMMANDS, name)


def registered(group: str) -> dict[str, EntryPoint]:
    """Return the registered plugins of a group by name."""
    return dict(discovery.registered.get(group, ()))


def forget(group: str, name: str) -> None:
    """Remove a registration if it exists."""
    discovery.registered.get(group, {}).pop(name, None)


def _decorator(group: str, name: str | F | None) -> Any:
    def register(obj: F) -> F:
        module = getattr(obj, "__module__", "")
        own = getattr(obj, "__name__", "")
        if group == discovery.COMPONENTS:
            own = f"{module.rpartition('.')[2]}.{own}"
        key = name if isinstance(name, str) and name else own
        where = getattr(sys.modules.get(module), "__file__", None) or module
        value = f"{module}:{getattr(obj, '__qualname__', own)}"
        discovery.registered.setdefault(group, {})[key] = EntryPoint(key, value, group, where=where, obj=obj)
        return obj

    return register(name) if callable(name) else register
