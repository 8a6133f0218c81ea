"""Rules for a job within what the user holds already, as the run option ``in`` names it: an allocation, or pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torchx.errors import NotSupportedError
from torchx.util.notices import logger

if TYPE_CHECKING:
    from torchx.specs.wishes import Wishes

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
