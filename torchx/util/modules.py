"""Imports of optional modules and attributes by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def load_module(path: str) -> ModuleType | Callable[..., object] | None:
    """Import ``a.b``, or attribute ``f`` of it for ``a.b:f``; return None if it does not exist.

    Raises:
        Exception: an exception of the module during its import.

    >>> load_module("os.path:join")("a", "b")
    'a/b'
    >>> load_module("no_such_module") is None
    True
    """
    name, _, attr = path.partition(":")
    try:
        module = import_module(name)
    except ModuleNotFoundError as e:
        # Only if the module itself is missing, not one that it imports.
        if e.name is not None and (name == e.name or name.startswith(f"{e.name}.")):
            return None
        raise
    return getattr(module, attr, None) if attr else module


def import_attr(name: str, attr: str, default: T) -> T:
    """Return an attribute of a module, or the default if the module does not exist.

    Raises:
        AttributeError: the module exists but has no such attribute.

    >>> import_attr("no_such_module", "x", default=1)
    1
    """
    module = load_module(name)
    if module is None:
        return default
    return getattr(module, attr)  # type: ignore[no-any-return]  # the caller vouches for the type of the default
