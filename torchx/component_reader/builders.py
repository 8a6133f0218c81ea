"""Calls component functions with parsed arguments to get AppDefs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.component_reader import arguments
from torchx.component_reader.signature import Signature, location, read, unwrap
from torchx.component_reader.source import blame, importable
from torchx.errors import SpecError, TorchXError
from torchx.specs.api import GPU_TYPE, AppDef, Gpus
from torchx.specs.handles import make_app_handle
from torchx.specs.mounts import parse_mounts
from torchx.util.records import dataclass, field
from torchx.util.reexports import reexports

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

reexports(__name__)

__all__ = [
    "ComponentArgs",
    "component_args_from_str",
    "make_app_handle",
    "materialize_appdef",
    "parse_args",
    "parse_mounts",
]


@dataclass
class ComponentArgs:
    """The arguments of a component call: ``fn(*positional_args.values(), *var_args, **kwargs)``.

    Args:
        positional_args: parameters before ``*args``, in order.
        var_args: the ``*args``.
        kwargs: parameters after ``*args``.
    """

    positional_args: dict[str, Any] = field(default_factory=dict)
    var_args: list[str] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)


def materialize_appdef(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: list[str],
    cmpnt_defaults: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    *,
    name: str = "",
) -> AppDef:
    """Call a component and return its AppDef.

    The value of an argument comes from ``cmpnt_args``, ``config``, ``cmpnt_defaults`` or the function, in this order.

    Args:
        cmpnt_fn: the component.
        cmpnt_args: its command line, for example ``["--msg", "hi"]``.
        cmpnt_defaults: values by argument name, text or typed; an unknown name causes a warning.
        config: values by argument name, text or typed; an unknown name is an error.
        name: name of the component in messages.

    Raises:
        SpecError: an argument is invalid, or the component raises or does not return an AppDef with roles.
        SystemExit: with code 0, after printing the help for ``--help``.

    >>> from torchx.components.utils import echo
    >>> materialize_appdef(echo, ["--msg", "hi"]).roles[0].args
    ['hi']
    """
    signature, values = _parsed(cmpnt_fn, cmpnt_args, cmpnt_defaults, config, name)
    app = _call(cmpnt_fn, _component_args(signature, values), signature.name)
    for gpus in values.values():
        if isinstance(gpus, Gpus) and not any(GPU_TYPE in role.resource.capabilities for role in app.roles):
            raise SpecError(
                f"component `{signature.name}` does not ask for GPUs of the type `{gpus.kind}`",
                hint="it must pass `gpu` on to `Resource` or `specs.resource` as it is",
            )
    return app


def component_args_from_str(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: list[str],
    cmpnt_args_defaults: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> ComponentArgs:
    """Return the typed arguments of a component; see :func:`materialize_appdef`.

    >>> from torchx.components.utils import sh
    >>> component_args_from_str(sh, ["--cpu", "2", "ls", "-l"]).var_args
    ['ls', '-l']
    """
    return _component_args(*_parsed(cmpnt_fn, cmpnt_args, cmpnt_args_defaults, config))


def _component_args(signature: Signature, values: dict[str, Any]) -> ComponentArgs:
    args = ComponentArgs()
    values = signature.regrouped(values)
    for p in signature.parameters:
        name = p.name.partition(".")[0]
        if p.kind == "var":
            args.var_args = values[name]
        else:
            (args.positional_args if p.kind == "positional" else args.kwargs)[name] = values[name]
    return args


def parse_args(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: list[str],
    cmpnt_defaults: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> argparse.Namespace:
    """Return the typed arguments of a component as a namespace; see :func:`materialize_appdef`."""
    import argparse

    signature, values = _parsed(cmpnt_fn, cmpnt_args, cmpnt_defaults, config)
    return argparse.Namespace(**signature.regrouped(values))


def _parsed(
    fn: Callable[..., AppDef],
    words: list[str],
    defaults: dict[str, Any] | None,
    config: dict[str, Any] | None,
    name: str = "",
) -> tuple[Signature, dict[str, Any]]:
    signature = read(fn, name=name)
    try:
        return signature, arguments.parse(signature, words, defaults, config)
    except arguments.HelpRequested:
        from torchx.component_reader.help import format_help

        print(format_help(fn, name=name), end="")  # noqa: T201  # help belongs on stdout
        raise SystemExit(0) from None


def _call(fn: Callable[..., AppDef], args: ComponentArgs, name: str) -> AppDef:
    try:
        with importable(unwrap(fn)):
            app = fn(*args.positional_args.values(), *args.var_args, **args.kwargs)
    except (TorchXError, KeyboardInterrupt):
        raise
    except BaseException as e:
        if isinstance(e, SystemExit) and not e.code:
            raise  # success, for example after printing its own help
        raise SpecError(
            f"component `{name}` raised {blame(e, location(fn).rpartition(':')[0])}",
            hint="`--log_level=DEBUG` shows the traceback",
        ) from e
    where = f"component `{name}` ({location(fn)})"
    if not isinstance(app, AppDef):
        raise SpecError(
            f"{where} returned `{type(app).__name__}`, not an AppDef", hint="a component ends with `return AppDef(...)`"
        )
    if not app.roles:
        raise SpecError(f"{where} returned an AppDef with no roles", hint="a job needs a Role in `roles=[...]`")
    return app
