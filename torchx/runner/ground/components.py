"""Makes an AppDef from a component's name and arguments, with defaults from the config files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchx import config
from torchx.specs.api import AppDef


def make_app(
    component: str, component_args: list[str] | dict[str, Any], defaults: Mapping[str, Mapping[str, str]] | None
) -> AppDef:
    """Call a component and return its AppDef; arguments and errors are those of :meth:`Runner.dryrun_component`.

    ``defaults`` are texts by component and argument; None: those of the config files.
    """
    from torchx.component_reader.builders import materialize_appdef
    from torchx.component_reader.finder import get_component

    fn = get_component(component).fn
    values = _configured(component, fn) if defaults is None else dict(defaults.get(component, {}))
    if isinstance(component_args, dict):
        return materialize_appdef(fn, [], values, component_args, name=component)
    return materialize_appdef(fn, list(component_args), values, name=component)


def _configured(component: str, fn: Callable[..., AppDef]) -> dict[str, Any]:
    """Return the values of ``[component:NAME]``; warns about arguments that the component does not have,
    and omits them.
    """
    values = config.get_configs("component", component)
    if not values:
        return {}
    from torchx.component_reader.signature import read

    signature = read(fn)
    known = [parameter.name for parameter in signature.parameters]
    for name in [name for name in values if signature.get(name) is None]:
        del values[name]
        config.warn_of_unknown(f"component:{component}", name, f"component `{component}` has no argument", known)
    return dict(values)
