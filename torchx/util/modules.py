"""Objects by their dotted names, where a missing one is not an error."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def load_module(path: str) -> ModuleType | Callable[..., object] | None:
    """The module ``a.b``, or the attribute ``f`` of it for ``a.b:f``; None when there is none.

    Raises:
        Exception: whatever the module raises while it is imported.

    >>> load_module("os.path:join")("a", "b")
    'a/b'
    >>> load_module("no_such_module") is None
    True
    """
    name, _, attr = path.partition(":")
    try:
        module = import_module(name)
    except ModuleNotFoundError as e:
        # Only when it is the module itself that is missing, not one that it imports.
        if e.name is not None and (name == e.name or name.startswith(f"{e.name}.")):
            return None
        raise
    return getattr(module, attr, None) if attr else module


def import_attr(name: str, attr: str, default: T) -> T:
    """The attribute of a module, or the default when there is no such module.

    Raises:
        AttributeError: the module exists and has no such attribute.

    >>> import_attr("no_such_module", "x", default=1)
    1
    """
    module = load_module(name)
    if module is None:
        return default
    return getattr(module, attr)  # type: ignore[no-any-return]  # the default's type is the caller's word for it
