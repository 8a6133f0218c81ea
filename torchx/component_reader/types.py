"""Supported types of component arguments, and conversion of text and values to them.

The argument parser and the linter both use this module, so they support the same types.

==============================  ====================================================================
type                            on the command line
==============================  ====================================================================
``str`` ``int`` ``float``       unchanged
``bool``                        ``true false yes no on off 1 0`` in any case
``list[X]``                     ``a,b``, ``"a,1",b`` (quotes keep a comma), or a JSON array
``tuple[X, Y]``                 like a list; ``tuple[X, ...]`` has any number of items
``dict[K, V]``                  ``k=v,k2=v2`` or ``k=v;k2=v2``, ``k="v,1",k2=v2``, or a JSON object
``X | None``                    like ``X``, or ``None``
``X | Y``                       the most specific match of: literal, int, float, bool, dict, list, str
``Literal["a", "b"]``           one of the values
a subclass of ``Enum``          the name or the value of a member
a data class                    one option for each field: ``--model.lr 0.1``
``object`` ``Any``              text
==============================  ====================================================================

``List``, ``Dict``, ``Sequence``, ``Mapping``, ``Optional``, ``Union`` and ``Annotated`` are supported too.
"""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any, TypeVar

from torchx.specs.options.cfg_literals import FALSE, TRUE, pieces, unquote

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping, Sequence

    _T = TypeVar("_T")

SCALARS = ("str", "int", "float", "bool")
ANYTHING = ("object", "Any")
LISTS = ("list", "List", "Sequence", "MutableSequence", "Iterable", "Collection")
TUPLES = ("tuple", "Tuple")
DICTS = ("dict", "Dict", "Mapping", "MutableMapping")
SUPPORTED = (
    "str, int, float, bool, list[...], tuple[...], dict[..., ...], Literal[...], and `| None` or a union of these;"
    " an Enum, a data class"
)

_NEVER_IN_NAMES = frozenset(" \t\n,;'\"$`(){}<>|&*?!\\")  # characters that no key of a `dict` contains
_SPECIFIC_FIRST = ("literal", "enum", "int", "float", "bool", "dict", "tuple", "list", "any", "str")
_MANY = "..."
_ARTICLE = {"int": "an int", "float": "a float", "bool": "true or false"}


class Shape:
    """A type, read from source code or from a live annotation.

    ``kind`` is one of ``SCALARS``, or of ``none any list tuple dict union literal unknown``; ``args`` are the inner
    shapes, the values of a literal, the members of an ``enum``, or the text of an unknown type.

    >>> str(shape_of(dict[str, int] | None))
    'dict[str, int] | None'
    """

    __slots__ = ("args", "kind")

    def __init__(self, kind: str, args: Sequence[Any] = ()) -> None:
        self.kind = kind
        self.args = tuple(args)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, object]:
        # `typing` caches unions, so their members may be in another order than written.
        return self.kind, frozenset(self.args) if self.kind in ("union", "literal") else self.args

    def __repr__(self) -> str:
        return f"Shape({self})"

    def __str__(self) -> str:
        if self.kind in ("list", "tuple", "dict"):
            return f"{self.kind}[{', '.join(map(str, self.args))}]"
        if self.kind == "union":
            return " | ".join(map(str, self.args))
        if self.kind == "literal":
            return f"Literal[{', '.join(map(repr, self.args))}]"
        if self.kind == "enum":
            return " | ".join(member.name for member in self.args)
        return {"none": "None", "any": "object", "unknown": "".join(map(str, self.args))}.get(self.kind, self.kind)

    def problem(self) -> str | None:
        """Return why the type is not supported; None if it is."""
        if self.kind in ("unknown", "none"):
            return f"type `{self}` is not supported"
        if self.kind == "dict" and self.args[0].kind not in (*SCALARS, "any", "literal"):
            return f"type `{self}` is not supported: its keys must be str, int, float or bool"
        if self.kind in ("list", "tuple", "dict"):
            return next((p for p in (a.problem() for a in self.args if a != Shape("unknown", (_MANY,))) if p), None)
        if self.kind == "union":
            some = [a for a in self.args if a.kind != "none"]
            return next((p for p in (a.problem() for a in some) if p), None)
        if self.kind == "literal" and not all(isinstance(v, (str, int, bool)) for v in self.args):
            return f"type `{self}` is not supported: its values must be str, int or bool"
        return None

    @property
    def optional(self) -> bool:
        """Whether None is a valid value."""
        return self.kind in ("any", "none") or (self.kind == "union" and any(a.optional for a in self.args))

    def required(self) -> Shape:
        """Return the shape without None."""
        if self.kind != "union":
            return self
        return union(a.required() for a in self.args if a.kind != "none")


def union(shapes: Any) -> Shape:
    """Return the union of shapes, flattened and without duplicates; a single shape is returned unchanged."""
    flat: dict[Shape, None] = {}
    for shape in shapes:
        flat.update(dict.fromkeys(shape.args if shape.kind == "union" else (shape,)))
    return next(iter(flat)) if len(flat) == 1 else Shape("union", tuple(flat))


def generic(name: str, args: Sequence[Shape] = ()) -> Shape:
    """Return the shape of a type by its bare name and inner shapes, for example ``Dict`` with two shapes."""
    text = Shape("str")
    if name in SCALARS and not args:
        return Shape(name)
    if name in ANYTHING and not args:
        return Shape("any")
    if name in ("None", "NoneType") and not args:
        return Shape("none")
    if name in LISTS and len(args) in (0, 1):
        return Shape("list", args or (text,))
    if name in TUPLES:
        return Shape("tuple", args or (text, Shape("unknown", (_MANY,))))
    if name in DICTS and len(args) in (0, 2):
        return Shape("dict", args or (text, text))
    return Shape("unknown", (f"{name}[{', '.join(map(str, args))}]" if args else name,))


def shape_of(annotation: Any, scope: Mapping[str, Any] | None = None) -> Shape:
    """Return the shape of a live annotation; quoted parts are looked up in ``scope`` and ``typing``.

    >>> import typing
    >>> shape_of(typing.Optional[typing.List[str]]) == shape_of(list[str] | None)
    True
    """
    if annotation is None or annotation is Ellipsis:
        return Shape("none") if annotation is None else Shape("unknown", (_MANY,))
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", None)
    if text is not None:
        return _shape_of_text(text, scope or {})
    if hasattr(annotation, "__metadata__"):  # Annotated[X, ...]
        return shape_of(annotation.__origin__, scope)
    if hasattr(annotation, "__supertype__"):  # NewType
        return shape_of(annotation.__supertype__, scope)
    if type(annotation).__name__ == "TypeAliasType":  # `type X = ...`
        return shape_of(annotation.__value__, scope)
    if isinstance(annotation, type) and (members := getattr(annotation, "__members__", None)):
        return Shape("enum", tuple(members.values()))
    inside = getattr(annotation, "__args__", ())
    if isinstance(annotation, types.UnionType):
        return union(shape_of(a, scope) for a in inside)
    origin = getattr(annotation, "__origin__", None)
    if origin is None:
        module = getattr(annotation, "__module__", "")
        name = getattr(annotation, "__name__", None) or str(annotation).rpartition(".")[2]
        if module in ("builtins", "typing", "collections.abc", "types"):
            return generic(name)
        return Shape("unknown", (f"{module}.{name}" if module else name,))
    if origin is typing.Union:
        return union(shape_of(a, scope) for a in inside)
    if origin is typing.Literal:
        return Shape("literal", inside)
    name = getattr(origin, "__name__", str(origin))
    # In some versions of Python, a bare `typing.List` has type variables as arguments.
    return generic(name, [shape_of(a, scope) for a in inside if not isinstance(a, TypeVar)])


def decode(encoded_value: Any, annotation: Any) -> Any:
    """Convert a value to the annotated type. Text is parsed as on the command line; None stays None.

    Raises:
        ValueError: the value cannot be converted.

    >>> decode("a=1,b=2", dict[str, int])
    {'a': 1, 'b': 2}
    >>> decode({"a": "1"}, dict[str, int])
    {'a': 1}
    """
    if encoded_value is None:
        return None
    return to_shape(encoded_value, annotation if isinstance(annotation, Shape) else shape_of(annotation))


def decode_from_string(encoded_value: str, annotation: Any) -> dict[Any, Any] | list[Any] | None:
    """Parse a text as list or dict.

    >>> decode_from_string("1,2", list[int])
    [1, 2]
    """
    return _from_text(encoded_value, shape_of(annotation).required())  # type: ignore[no-any-return]  # the annotation says


def decode_optional(param_type: Any) -> Any:
    """Return ``X`` of ``Optional[X]``; any other type unchanged.

    >>> decode_optional(int | None)
    <class 'int'>
    """
    inside = getattr(param_type, "__args__", ())
    if shape_of(param_type).kind == "union" and len(inside) == 2 and type(None) in inside:
        return next(t for t in inside if t is not type(None))
    return param_type


def is_primitive(param_type: Any) -> bool:
    """Whether the type is str, int, float or bool."""
    return param_type in (str, int, float, bool)


def is_bool(param_type: Any) -> bool:
    """Whether the type is bool."""
    return param_type is bool


def get_argparse_param_type(parameter: inspect.Parameter) -> Callable[[str], object]:
    """Return the ``type=`` of ``argparse`` for a parameter: int, float, or otherwise str.

    >>> import inspect
    >>> get_argparse_param_type(inspect.Parameter("n", inspect.Parameter.KEYWORD_ONLY, annotation=int))
    <class 'int'>
    """
    annotation = parameter.annotation
    return annotation if annotation in (int, float) else str


def none_throws(optional: _T | None, message: str = "Unexpected `None`") -> _T:
    """Return the value, which must not be None.

    Raises:
        AssertionError: the value is None.

    >>> none_throws(1)
    1
    """
    if optional is None:
        raise AssertionError(message)
    return optional


def to_list(arg: str) -> list[str]:
    r"""Split ``a,b`` into items. A quoted item keeps its commas; ``\,`` does not separate and is kept unchanged.

    >>> to_list('a, "b,c",d')
    ['a', 'b,c', 'd']
    """
    items = [_unquoted(text)[0] for _, text in _split(arg, ",")]
    return items[:-1] if items and not items[-1] else items


def to_dict(arg: str) -> dict[str, str]:
    """Parse ``k=v,k2=v2`` or ``k=v;k2=v2``.

    The first ``=`` of a pair separates key and value. Commas and semicolons that no ``key=`` follows belong to the
    value, as do all of those in a quoted value.

    Raises:
        ValueError: a pair has no ``=``, or an empty key.

    >>> to_dict('TOKEN=YWI9PQ==,NCCL_IB_HCA="=mlx5_0:1,mlx5_1:1",URL="http://h/?a=1,b=2"')
    {'TOKEN': 'YWI9PQ==', 'NCCL_IB_HCA': '=mlx5_0:1,mlx5_1:1', 'URL': 'http://h/?a=1,b=2'}
    >>> to_dict("HCA=mlx5_0,mlx5_1,DEBUG=INFO")
    {'HCA': 'mlx5_0,mlx5_1', 'DEBUG': 'INFO'}
    >>> to_dict("A=1,2;B=3")
    {'A': '1,2', 'B': '3'}
    """
    found: dict[str, str] = {}
    key = ""
    pieces = _split(arg or "", ",;")
    if pieces and not pieces[-1][1].strip():
        pieces.pop()
    for separator, piece in pieces:
        text, quoted = _unquoted(piece, strip=False)
        name, equals, value = text.partition("=")
        if equals and name.strip():
            key = name.strip()
            found[key] = value if quoted else _unquoted(value, strip=False)[0]
        elif not key:
            raise ValueError(f"`{piece.strip()}` is not of the form `key=value`")
        else:
            found[key] += separator + piece
    return found


def to_shape(value: Any, shape: Shape) -> Any:
    """Convert a value to a shape; see :func:`decode`."""
    if shape.kind == "any" or (shape.kind == "enum" and value in shape.args):
        return value
    if shape.kind == "union":
        return _to_union(value, shape)
    if value is None and shape.kind == "none":
        return None
    if isinstance(value, str) or shape.kind == "enum":
        return _from_text(str(value), shape)
    if shape.kind == "list" and isinstance(value, (list, tuple, set, frozenset)):
        return [to_shape(v, shape.args[0]) for v in value]
    if shape.kind == "tuple" and isinstance(value, (list, tuple)):
        return _tuple(value, shape)
    if shape.kind == "dict" and hasattr(value, "items"):
        return {to_shape(k, shape.args[0]): to_shape(v, shape.args[1]) for k, v in value.items()}
    if shape.kind == "literal" and any(v == value and type(v) is type(value) for v in shape.args):
        return value
    if type(value).__name__ == shape.kind:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if shape.kind == "str":
            return str(value)
        if shape.kind == "float":
            return float(value)
    raise ValueError(f"`{value!r}` is not {_described(shape)}")


def _shape_of_text(text: str, scope: Mapping[str, Any]) -> Shape:
    try:
        annotation = eval(text, {**vars(typing), **scope})  # noqa: S307  # code of the module that contains the annotation
    except Exception:
        return Shape("unknown", (text,))
    return shape_of(annotation, scope)


def _to_union(value: Any, shape: Shape) -> Any:
    if value is None and shape.optional:
        return None
    if isinstance(value, str):
        return _from_text(value, shape)
    exact = [a for a in shape.args if a.kind == type(value).__name__]
    for member in (*exact, *shape.args):
        try:
            return to_shape(value, member)
        except ValueError:
            continue
    raise ValueError(f"`{value!r}` is not {_described(shape)}")


def _from_text(text: str, shape: Shape) -> Any:
    kind = shape.kind
    if kind in ("str", "any"):
        return text
    if kind == "union":
        return _union_from_text(text, shape)
    if kind == "list":
        return _list_from_text(text, shape.args[0])
    if kind == "tuple":
        found = _from_json(text, "[", list)
        return _tuple(to_list(text) if found is None else found, shape)
    if kind == "dict":
        return _dict_from_text(text, *shape.args)
    try:
        if kind == "bool":
            return {**dict.fromkeys(TRUE, True), **dict.fromkeys(FALSE, False)}[text.strip().lower()]
        if kind == "literal":
            return {str(v): v for v in shape.args}[text]
        if kind == "enum":
            return {**{str(m.value): m for m in shape.args}, **{m.name: m for m in shape.args}}[text]
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except (ValueError, KeyError):
        pass
    raise ValueError(f"`{text}` is not {_described(shape)}")


def _union_from_text(text: str, shape: Shape) -> Any:
    if text == "None" and shape.optional:
        return None
    members = [a for a in shape.args if a.kind != "none"]
    if len(members) == 1:
        return _from_text(text, members[0])
    has_text = any(a.kind in ("str", "any") for a in members)
    for member in sorted(members, key=lambda a: _SPECIFIC_FIRST.index(a.kind)):
        # Any text is a list of one item. In a union with `str`, a list needs a comma or a bracket.
        if member.kind == "list" and has_text and "," not in text and not text.startswith("["):
            continue
        try:
            return _from_text(text, member)
        except ValueError:
            continue
    raise ValueError(f"`{text}` is not {_described(shape)}")


def _list_from_text(text: str, item: Shape) -> list[Any]:
    found = _from_json(text, "[", list)
    if found is not None:
        return [to_shape(v, item) for v in found]
    if item.required().kind in ("list", "dict"):
        raise ValueError(f"`{text}` is not a JSON array of {item}")
    return [_from_text(v, item) for v in to_list(text)]


def _tuple(items: Sequence[Any], shape: Shape) -> tuple[Any, ...]:
    inside = shape.args
    if inside[-1] == Shape("unknown", (_MANY,)):
        inside = inside[:1] * len(items)
    if len(items) != len(inside):
        raise ValueError(f"`{', '.join(map(str, items))}` is not {_described(shape)}: it has {len(items)} items")
    return tuple([to_shape(item, a) for item, a in zip(items, inside, strict=True)])


def _dict_from_text(text: str, key: Shape, value: Shape) -> dict[Any, Any]:
    found = _from_json(text, "{", dict)
    if found is None:
        if value.required().kind in ("list", "dict"):
            raise ValueError(f"`{text}` is not a JSON object with values of type {value}")
        found = to_dict(text)
        odd = [
            name for name in found if key.kind == "str" and (name[0].isdigit() or not _NEVER_IN_NAMES.isdisjoint(name))
        ]
        if odd:
            raise ValueError(f"`{odd[0]}` in `{text}` is not a name")
    return {_from_text(k, key): to_shape(v, value) for k, v in found.items()}


def _from_json(text: str, start: str, kind: type) -> Any:
    if not text.lstrip().startswith(start):
        return None
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, kind) else None


def _described(shape: Shape) -> str:
    if shape.kind == "literal":
        return f"one of {', '.join(f'`{v}`' for v in shape.args)}"
    if shape.kind == "enum":
        return f"one of {', '.join(f'`{m.name}`' for m in shape.args)}"
    return _ARTICLE.get(shape.kind) or f"of type `{shape}`"


def _split(text: str, separators: str) -> list[tuple[str, str]]:
    """Split a text into ``(preceding separator, piece)``; a comma after a backslash does not separate."""
    found: list[tuple[str, str]] = []
    for separator, piece in pieces(text, separators, "=") if text.strip() else ():
        if separator == "," and found[-1][1].endswith("\\"):
            before, begun = found.pop()
            found.append((before, f"{begun},{piece}"))
        else:
            found.append((separator, piece))
    return found


def _unquoted(text: str, *, strip: bool = True) -> tuple[str, bool]:
    """Return the text without the quotes around it, and whether it was quoted."""
    bare = text.strip()
    inner = unquote(bare)
    return (inner, True) if inner != bare else (bare if strip else text, False)
