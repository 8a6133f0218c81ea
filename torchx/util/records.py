"""``dataclass`` and ``field`` that cost nothing to import.

The standard library's ``dataclasses`` doubles the start-up time of Python, because it
imports ``inspect``. These two build the same classes from the annotations alone, and
compute what ``dataclasses`` itself needs (``fields``, ``replace``, ``asdict``,
``is_dataclass``, a real dataclass as subclass) when it is first asked for.

Supported: ``frozen``, ``kw_only``, ``default``, ``default_factory``, ``repr=False``,
``compare=False``, ``__post_init__``, inheritance from records and from real dataclasses. Modules write::

    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from dataclasses import dataclass, field
    else:
        from torchx.util.records import dataclass, field

so that type checkers see the real thing.

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
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIELDS = "__torchx_fields__"
_MISSING: Any = type("_MISSING", (), {"__repr__": lambda self: "MISSING"})()


class _Field:
    """How one attribute is filled, shown and compared."""

    __slots__ = ("compare", "default", "factory", "kw_only", "metadata", "name", "repr", "type")

    def __init__(
        self,
        default: Any = _MISSING,
        factory: Any = _MISSING,
        *,
        repr: bool = True,
        compare: bool = True,
        metadata: Any = None,
    ) -> None:
        self.name = ""
        self.type: Any = None
        self.default = default
        self.factory = factory
        self.repr = repr
        self.compare = compare
        self.metadata = metadata
        self.kw_only = False


def field(
    *,
    default: Any = _MISSING,
    default_factory: Any = _MISSING,
    repr: bool = True,
    compare: bool = True,
    metadata: Any = None,
) -> Any:
    """A field with a factory or with options, as :func:`dataclasses.field`."""
    if default is not _MISSING and default_factory is not _MISSING:
        raise ValueError("cannot specify both default and default_factory")
    return _Field(default, default_factory, repr=repr, compare=compare, metadata=metadata)


def dataclass(cls: Any = None, *, frozen: bool = False, kw_only: bool = False) -> Any:
    """Class decorator: ``__init__``, ``__repr__``, ``__eq__`` from the annotations."""

    def wrap(c: Any) -> Any:
        return _process(c, frozen, kw_only)

    return wrap if cls is None else wrap(cls)


def _process(cls: Any, frozen: bool, kw_only: bool) -> Any:
    fields: dict[str, _Field] = {}
    for base in cls.__mro__[-1:0:-1]:
        fields.update(_fields_of(base))
    for name, annotation in _annotations(cls).items():
        if "ClassVar" in str(annotation):
            continue
        value = cls.__dict__.get(name, _MISSING)
        f = value if isinstance(value, _Field) else _Field(value)
        if f.default.__class__ in (list, dict, set):
            raise ValueError(f"mutable default for field `{name}`: use default_factory")
        f.name, f.type, f.kw_only = name, annotation, kw_only
        fields[name] = f
        if f.default is not _MISSING:
            setattr(cls, name, f.default)
        elif name in cls.__dict__:
            delattr(cls, name)
    setattr(cls, _FIELDS, fields)
    own = cls.__dict__
    if "__init__" not in own:
        cls.__init__ = _make_init(cls, fields, frozen)
    if "__repr__" not in own:
        cls.__repr__ = _repr
    if "__eq__" not in own:
        cls.__eq__ = _eq
        if "__hash__" not in own or own["__hash__"] is None:
            cls.__hash__ = _hash if frozen else None
    if frozen:
        cls.__setattr__ = _refuse_setattr
        cls.__delattr__ = _refuse_delattr
    if "__match_args__" not in own:
        cls.__match_args__ = tuple(f.name for f in fields.values() if not f.kw_only)
    cls.__replace__ = _replace
    cls.__dataclass_fields__ = _LazyDataclass("__dataclass_fields__", cls, frozen)
    cls.__dataclass_params__ = _LazyDataclass("__dataclass_params__", cls, frozen)
    return cls


def _annotations(cls: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        return dict(getattr(cls, "__annotations__", {}))
    return dict(cls.__dict__.get("__annotations__", {}))


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
            mine = _Field(default, factory, repr=f.repr, compare=f.compare, metadata=f.metadata)
            mine.name, mine.type, mine.kw_only = f.name, f.type, bool(f.kw_only)
            found[f.name] = mine
    return found


def _make_init(cls: Any, fields: dict[str, _Field], frozen: bool) -> Callable[..., None]:
    scope: dict[str, Any] = {"_MISSING": _MISSING, "_set": object.__setattr__}
    params: list[str] = []
    keywords: list[str] = []
    body: list[str] = []
    defaulted = ""
    for i, f in enumerate(fields.values()):
        param = f.name
        if f.factory is not _MISSING:
            scope[f"_f{i}"] = f.factory
            param += "=_MISSING"
            value = f"_f{i}() if {f.name} is _MISSING else {f.name}"
        else:
            if f.default is not _MISSING:
                scope[f"_d{i}"] = f.default
                param += f"=_d{i}"
            value = f.name
        if f.kw_only:
            keywords.append(param)
        else:
            if defaulted and "=" not in param:
                raise TypeError(f"non-default argument `{f.name}` follows default argument `{defaulted}`")
            defaulted = f.name if "=" in param else defaulted
            params.append(param)
        body.append(f"  _set(self, {f.name!r}, {value})" if frozen else f"  self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    args = ", ".join(["self", *params, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({args}):\n" + ("\n".join(body) or "  pass"), scope)
    init: Any = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {f.name: f.type for f in fields.values()} | {"return": None}
    return init  # type: ignore[no-any-return]


def _repr(self: Any) -> str:
    fields: dict[str, _Field] = getattr(type(self), _FIELDS)
    shown = ", ".join(f"{n}={getattr(self, n)!r}" for n, f in fields.items() if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: object) -> Any:
    if self is other:
        return True
    if other.__class__ is not self.__class__:
        return NotImplemented
    fields: dict[str, _Field] = getattr(type(self), _FIELDS)
    return all(getattr(self, n) == getattr(other, n) for n, f in fields.items() if f.compare)


def _hash(self: Any) -> int:
    fields: dict[str, _Field] = getattr(type(self), _FIELDS)
    return hash(tuple(getattr(self, n) for n, f in fields.items() if f.compare))


def _replace(self: Any, /, **changes: Any) -> Any:
    fields: dict[str, _Field] = getattr(type(self), _FIELDS)
    return type(self)(**{n: getattr(self, n) for n in fields} | changes)


def _refuse_setattr(self: Any, name: str, value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delattr(self: Any, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


class _LazyDataclass:
    """The two attributes by which ``dataclasses`` knows its own, made on first sight."""

    def __init__(self, name: str, cls: Any, frozen: bool) -> None:
        self.name = name
        self.cls = cls
        self.frozen = frozen

    def __get__(self, instance: object, owner: Any) -> Any:
        import dataclasses

        # A plain class with the same annotations, through the real decorator: its
        # fields and parameters are what dataclasses itself would have made of ours.
        specs = []
        for f in getattr(self.cls, _FIELDS).values():
            options: dict[str, Any] = {"repr": f.repr, "compare": f.compare, "kw_only": f.kw_only}
            if f.metadata is not None:
                options["metadata"] = f.metadata
            if f.factory is not _MISSING:
                options["default_factory"] = f.factory
            elif f.default is not _MISSING:
                options["default"] = f.default
            specs.append((f.name, f.type, dataclasses.field(**options)))
        twin: Any = dataclasses.make_dataclass(self.cls.__name__, specs, frozen=self.frozen)
        for attribute in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(self.cls, attribute, getattr(twin, attribute))
        return getattr(self.cls, self.name)
