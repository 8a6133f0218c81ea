"""Deep copies of plain data, many times faster than ``copy.deepcopy``, which is the fallback."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from torchx.util.any import Any, T
from torchx.util.records import is_record

ATOMS: set[type] = {str, int, float, bool, bytes, complex, type(None)}
"""Immutable types, which need no copy. Enum classes are added when they are first seen."""

_CONTAINERS = frozenset({dict, list})

_copiers: dict[type, Callable[[Any], Any]] = {}  # cache for all other classes


def copy_data(value: Any) -> Any:
    """Return a deep copy of ``value``. ``copy.deepcopy`` copies all but dicts, lists, tuples, records and atoms.

    Unlike ``copy.deepcopy``, it copies an object that occurs twice two times.

    >>> original = {"a": [1, {"b": 2}]}
    >>> duplicate = copy_data(original)
    >>> duplicate["a"][1]["b"] = 3
    >>> original
    {'a': [1, {'b': 2}]}
    """
    kind = value.__class__
    if kind in ATOMS:
        return value
    if kind is dict:
        return {k: v if v.__class__ in ATOMS else copy_data(v) for k, v in value.items()}
    if kind is list:
        return [v if v.__class__ in ATOMS else copy_data(v) for v in value]
    copier = _copiers.get(kind)
    if copier is None:
        copier = _copiers[kind] = _copier_of(kind)
    return copier(value)


def _copier_of(kind: type) -> Callable[[Any], Any]:
    """Return the copy function for a class other than dict, list and the atoms."""
    if kind is tuple:
        return lambda value: tuple([copy_data(v) for v in value])
    if issubclass(kind, Enum):
        ATOMS.add(kind)
        return lambda value: value
    own = getattr(kind, "__deepcopy__", None)
    if own is not None:
        return lambda value: own(value, {})
    if is_record(kind):
        return copy_fields
    from copy import deepcopy

    return deepcopy


def copy_fields(record: T, *, shallow: str = "") -> T:
    """Return a deep copy of an object whose state is its ``__dict__``; the dict ``shallow``, one level deep only."""
    new = record.__class__.__new__(record.__class__)
    fields = new.__dict__ = record.__dict__.copy()
    for name, value in fields.items():
        kind = value.__class__
        if kind in ATOMS:
            continue
        if kind in _CONTAINERS and not value:  # the common case
            fields[name] = kind()
        else:
            fields[name] = dict(value) if name == shallow else copy_data(value)
    return new
