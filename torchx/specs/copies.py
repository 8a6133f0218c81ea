"""Deep copies of plain data, many times quicker than ``copy.deepcopy``, which is the fallback."""

from __future__ import annotations

from enum import Enum

from torchx.util.records import is_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ATOMS: set[type] = {str, int, float, bool, bytes, complex, type(None)}
"""What cannot change is its own copy. Classes of enumerations come in when they are first met."""

_CONTAINERS = frozenset({dict, list})

_copiers: dict[type, Callable[[Any], Any]] = {}  # of the other classes, as they are met


def copy_data(value: Any) -> Any:
    """A deep copy of ``value``; anything but dicts, lists, tuples, records and atoms is left to ``copy.deepcopy``.

    Unlike there, an object that occurs twice is copied twice.

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
    """How objects of a class are copied that is no dict, list or atom."""
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


def copy_fields(record: Any, *, shallow: str = "") -> Any:
    """A deep copy of an object whose state is its ``__dict__``, of the same class.

    Args:
        shallow: name of a field whose dict is new, and whose values are not.
    """
    new = record.__class__.__new__(record.__class__)
    fields = new.__dict__ = record.__dict__.copy()
    for name, value in fields.items():
        kind = value.__class__
        if kind in ATOMS:
            continue
        if kind in _CONTAINERS and not value:  # as most fields of most roles are
            fields[name] = kind()
        else:
            fields[name] = dict(value) if name == shallow else copy_data(value)
    return new


class CopiedOnLook:
    """An attribute of a record whose value the record shares with others until somebody looks at it.

    Stands in the class; a value of one's own, in the record's ``__dict__``, goes before it. For what is seldom looked
    at and large, such as the replicas in the status of a job: who looks gets a deep copy, and may change it.

    >>> PARTS = CopiedOnLook("parts")
    >>> class Answer:
    ...     parts = PARTS
    >>> known, answer = [["a"]], Answer()
    >>> PARTS.lend(answer, known)
    >>> answer.parts.append("b")
    >>> answer.parts, known
    ([['a'], 'b'], [['a']])
    """

    __slots__ = ("_hidden", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._hidden = f"_shared_{name}"

    def lend(self, record: object, value: Any) -> None:
        """Let the record share ``value``, which nobody is going to change."""
        vars(record).pop(self._name, None)
        vars(record)[self._hidden] = value

    def lent(self, record: object) -> Any:
        """What the record still shares, for handing it on; None when it has a value of its own."""
        return vars(record).get(self._hidden)

    def __get__(self, record: object | None, owner: type | None = None) -> Any:
        if record is None:  # to the class it is a field without default, as any other
            raise AttributeError(self._name)
        attributes = vars(record)
        shared = attributes.get(self._hidden)
        if shared is not None:
            # Another thread may do the same right now: one of the copies is everybody's.
            attributes.setdefault(self._name, copy_data(shared))
            attributes.pop(self._hidden, None)
        try:
            return attributes[self._name]
        except KeyError:
            raise AttributeError(f"`{type(record).__name__}` has no attribute `{self._name}`") from None
