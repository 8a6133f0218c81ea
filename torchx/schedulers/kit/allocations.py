"""Rules for a job within what the user holds already, as the run option ``in`` names it: an allocation, or pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torchx.errors import NotSupportedError
from torchx.util.notices import logger

if TYPE_CHECKING:
    from torchx.specs.api import CfgVal, runopts
    from torchx.specs.wishes import Wishes

NAMES = {"in_": "in"}
"""Field of a class of options -> name of the option, which is a keyword of Python."""
_WISHES = {"retry": "--retry", "after": "--after", "timeout_s": "--timeout", "spares": "--spares"}


def check_wishes(wishes: Wishes, within: str) -> None:
    """Raise NotSupportedError for wishes that only a job of its own can have. ``within``: what the user holds."""
    for wish, option in _WISHES.items():
        if getattr(wishes, wish):
            raise NotSupportedError(f"`{option}` is not available within {within} (`in`)", hint=f"omit `{option}`")


def say_unused(opts: Any, names: Iterable[str], defaults: Mapping[str, Any] | None = None) -> None:
    """Log a warning that names the options among ``names`` that the user gave, and that do not apply."""
    known = defaults or {}
    if unused := [name for name in names if getattr(opts, name) not in (None, False, known.get(name))]:
        logger("torchx").warning("in=%s: not used: %s", opts.in_, ", ".join(f"`{name}`" for name in unused))


def refuse_export(within: str) -> None:
    """Raise NotSupportedError, because what the user holds is not there later."""
    raise NotSupportedError(f"a job within {within} (`in`) cannot be exported", hint="omit `in`")


def renamed(opts: runopts, names: Mapping[str, str]) -> runopts:
    """Return these options, some with other names."""
    found = opts.__class__()
    for name, opt in opts:
        found.add(
            names.get(name, name),
            type_=opt.opt_type,
            help=lambda opt=opt: opt.help,  # type: ignore[misc]  # bound at once
            default=opt.default,
            required=opt.is_required,
        )
    return found


def with_fields(cfg: Mapping[str, CfgVal]) -> Mapping[str, CfgVal]:
    """Return run options with the names of fields, see :data:`NAMES`."""
    return {**cfg, **{field: cfg[name] for field, name in NAMES.items() if name in cfg}}
