"""``dataclass`` and ``field`` without the import cost of :mod:`dataclasses`.

The standard library's ``dataclasses`` doubles the start-up time of Python, because it imports ``inspect``. This module
builds the same classes from their annotations. It compiles ``__init__`` for the first instance, and computes on first
access what ``dataclasses`` needs for ``fields``, ``replace``, ``asdict``, ``is_dataclass`` and subclasses.

Supported: ``frozen``, ``kw_only``, ``default``, ``default_factory``, ``repr=False``, ``compare=False``,
``__post_init__``, inheritance from records and from real dataclasses. In addition, ``_brief_repr = True`` omits fields
with their default value from ``__repr__``. Type checkers see the functions of the standard library.

>>> @dataclass
... class Point:
...     x: int
...     y: int = 0
>>> Point(1)
Point(x=1, y=0)
>>> import dataclasses
>>> dataclasses.replace(Point(1), y=2)
Point(x=1, y=2)
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["dataclass", "field", "is_record", "own_annotations", "record_fields", "replace"]

_FIELDS = "__torchx_fields__"
_FROZEN = "__torchx_frozen__"


class _Missing:
    def __repr__(self) -> str:
        return "<factory>"  # help() shows it as the default of an argument


_MISSING = _Missing()


class _Field:
    """The options of a field."""

    __slots__ = ("compare", "default", "factory", "kw_only", "name", "repr", "type")

    def __init__(self, default: Any, factory: Any, repr: bool, compare: bool) -> None:
        self.name = ""
        self.type: Any = None
        self.default = default
        self.factory = factory
        self.repr = repr
        self.compare = compare
        self.kw_only = False


def _field(
    *,
    default: Any = _MISSING,
    default_factory: Any = _MISSING,
    repr: bool = True,
    compare: bool = True,
) -> Any:
    """Declare a field with options, like :func:`dataclasses.field`."""
    return _Field(default, default_factory, repr, compare)


def _dataclass(cls: Any = None, *, frozen: bool = False, kw_only: bool = False) -> Any:
    """Class decorator that adds ``__init__``, ``__repr__`` and ``__eq__``, like :func:`dataclasses.dataclass`."""

    def wrap(c: Any) -> Any:
        return _process(c, frozen, kw_only)

    return wrap if cls is None else wrap(cls)


def _replaced(record: Any, /, **changes: Any) -> Any:
    """Return a copy of a record with some fields changed, like :func:`dataclasses.replace`.

    >>> @dataclass
    ... class Point:
    ...     x: int
    >>> replace(Point(1), x=2)
    Point(x=2)
    """
    return record.__replace__(**changes)


def is_record(cls: Any) -> bool:
    """Whether the class itself, not only a base class, is decorated with :func:`dataclass`."""
    return _FIELDS in cls.__dict__


def record_fields(cls: Any) -> list[tuple[str, Any, Any, bool]]:
    """Return name, annotation, default and whether it has one, of each field of a record or a real dataclass.

    A factory is called to get the default.
    """
    found = []
    for f in _fields_of(cls).values():
        default = f.default if f.factory is _MISSING else f.factory()
        has_default = default is not _MISSING
        found.append((f.name, f.type, default if has_default else None, has_default))
    return found


def _process(cls: Any, frozen: bool, kw_only: bool) -> Any:
    fields = _collect(cls, kw_only)
    own = cls.__dict__
    explicit_hash = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    setattr(cls, _FIELDS, fields)
    setattr(cls, _FROZEN, frozen)
    if "__init__" not in own:
        cls.__init__ = _LazyInit(cls, frozen)
    if "__repr__" not in own:
        cls.__repr__ = _repr
    if "__eq__" not in own:
        cls.__eq__ = _eq
    if not explicit_hash:
        cls.__hash__ = _hash if frozen else None
    if frozen:
        cls.__setattr__ = _refuse_setattr
        cls.__delattr__ = _refuse_delattr
    if "__match_args__" not in own:
        match_args = "__match_args__"  # type checkers reject a plain assignment
        setattr(cls, match_args, tuple([f.name for f in fields.values() if not f.kw_only]))
    cls.__replace__ = _replace
    cls.__dataclass_fields__ = _LazyDataclass("__dataclass_fields__", cls)
    cls.__dataclass_params__ = _LazyDataclass("__dataclass_params__", cls)
    return cls


def _collect(cls: Any, kw_only: bool) -> dict[str, _Field]:
    """Return the fields, inherited ones first; defaults remain class attributes."""
    fields: dict[str, _Field] = {}
    for base in cls.__mro__[-1:0:-1]:
        fields.update(_fields_of(base))
    for name, annotation in own_annotations(cls).items():
        if "ClassVar" in str(annotation):
            continue
        value = getattr(cls, name, _MISSING)
        f = value if isinstance(value, _Field) else _Field(value, _MISSING, True, True)
        if f.default.__class__.__hash__ is None:
            raise ValueError(f"mutable default for field `{name}`: use default_factory")
        f.name, f.type, f.kw_only = name, annotation, kw_only
        fields[name] = f
        if f.default is not _MISSING:
            setattr(cls, name, f.default)
        elif name in cls.__dict__:
            delattr(cls, name)
    return fields


def own_annotations(cls: Any) -> dict[str, Any]:
    """Return the annotations of the class body, without those of its base classes."""
    if sys.version_info >= (3, 14):
        return dict(cls.__annotations__)
    return dict(cls.__dict__.get("__annotations__", {}))  # noqa: RUF063 - `inspect` is what this module avoids


def _fields_of(base: Any) -> dict[str, _Field]:
    own: dict[str, _Field] | None = base.__dict__.get(_FIELDS)
    if own is not None:
        return own
    found: dict[str, _Field] = {}
    if "__dataclass_fields__" in base.__dict__:  # a real dataclass as base
        import dataclasses

        for f in dataclasses.fields(base):
            default = _MISSING if f.default is dataclasses.MISSING else f.default
            factory = _MISSING if f.default_factory is dataclasses.MISSING else f.default_factory
            mine = _Field(default, factory, f.repr, bool(f.compare))
            mine.name, mine.type, mine.kw_only = f.name, f.type, bool(f.kw_only)
            found[f.name] = mine
    return found


class _LazyInit:
    """Placeholder that compiles ``__init__`` on first access, because that takes as long as a small import."""

    def __init__(self, cls: Any, frozen: bool) -> None:
        self.cls = cls
        self.frozen = frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        init: Any = _make_init(self.cls, getattr(self.cls, _FIELDS), self.frozen)
        self.cls.__init__ = init
        return init if instance is None else init.__get__(instance, owner)


def _make_init(cls: Any, fields: dict[str, _Field], frozen: bool) -> Callable[..., None]:
    scope: dict[str, Any] = {"_MISSING": _MISSING, "_set": object.__setattr__}
    params: list[str] = []
    keywords: list[str] = []
    body: list[str] = []
    for i, f in enumerate(fields.values()):
        param = value = f.name
        if f.factory is not _MISSING:
            scope[f"_f{i}"] = f.factory
            param = f"{f.name}=_MISSING"
            value = f"_f{i}() if {f.name} is _MISSING else {f.name}"
        elif f.default is not _MISSING:
            scope[f"_d{i}"] = f.default
            param = f"{f.name}=_d{i}"
        (keywords if f.kw_only else params).append(param)
        body.append(f"  _set(self, {f.name!r}, {value})" if frozen else f"  self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    args = ", ".join(["self", *params, *(["*", *keywords] if keywords else [])])
    # As in the standard library, the source consists of identifiers of the class body only.
    # Compiled first: Ctrl-C during exec() of a text would kill `python -m torchx` by SIGINT, despite its handler.
    code = compile(f"def __init__({args}):\n" + ("\n".join(body) or "  pass"), "<record>", "exec")
    exec(code, scope)  # noqa: S102
    init: Any = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {f.name: f.type for f in fields.values()} | {"return": None}
    made: Callable[..., None] = init
    return made


_IN_REPR: set[int] = set()


def _repr(self: Any) -> str:
    if id(self) in _IN_REPR:
        return "..."  # a record that contains itself
    _IN_REPR.add(id(self))
    try:
        fields: dict[str, _Field] = getattr(type(self), _FIELDS)
        brief = getattr(type(self), "_brief_repr", False)
        values = [(name, getattr(self, name), f) for name, f in fields.items() if f.repr]
        text = ", ".join(f"{name}={value!r}" for name, value, f in values if not (brief and _is_default(f, value)))
    finally:
        _IN_REPR.discard(id(self))
    return f"{type(self).__qualname__}({text})"


def _is_default(f: _Field, value: Any) -> bool:
    default = f.default if f.factory is _MISSING else f.factory()
    return type(value) is type(default) and bool(value == default)


def _eq(self: Any, other: object) -> Any:
    if self is other:
        return True
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _compared(self) == _compared(other)


def _hash(self: Any) -> int:
    return hash(tuple(_compared(self)))


def _compared(self: Any) -> list[Any]:
    fields: dict[str, _Field] = getattr(type(self), _FIELDS)
    return [getattr(self, n) for n, f in fields.items() if f.compare]


def _replace(self: Any, /, **changes: Any) -> Any:
    fields: dict[str, _Field] = getattr(type(self), _FIELDS)
    return type(self)(**{n: getattr(self, n) for n in fields} | changes)


def _refuse_setattr(self: Any, name: str, value: object) -> None:
    _refuse(self, name, "assign to")
    object.__setattr__(self, name, value)


def _refuse_delattr(self: Any, name: str) -> None:
    _refuse(self, name, "delete")
    object.__delattr__(self, name)


def _refuse(self: Any, name: str, action: str) -> None:
    # A plain subclass of a frozen class may have additional, mutable attributes.
    if is_record(type(self)) or name in getattr(type(self), _FIELDS):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot {action} field {name!r}")


class _LazyDataclass:
    """Computes the two attributes that ``dataclasses`` uses on first access."""

    def __init__(self, name: str, cls: Any) -> None:
        self.name = name
        self.cls = cls

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        import dataclasses

        # A real dataclass with the same fields has the attributes that ours needs.
        specs = []
        for f in getattr(self.cls, _FIELDS).values():
            options: dict[str, Any] = {"repr": f.repr, "compare": f.compare, "kw_only": f.kw_only}
            if f.factory is not _MISSING:
                options["default_factory"] = f.factory
            elif f.default is not _MISSING:
                options["default"] = f.default
            specs.append((f.name, f.type, dataclasses.field(**options)))
        twin: Any = dataclasses.make_dataclass(self.cls.__name__, specs, frozen=getattr(self.cls, _FROZEN))
        for attribute in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(self.cls, attribute, getattr(twin, attribute))
        return getattr(self.cls, self.name)


if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
else:
    dataclass, field, replace = _dataclass, _field, _replaced
