"""The parameters of a component function, read without the ``inspect`` module, which costs 10 ms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torchx.component_reader.types import SUPPORTED, Shape, shape_of
from torchx.errors import SpecError
from torchx.util.records import dataclass

_VARARGS, _VARKEYWORDS = 0x04, 0x08


class _Missing:
    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = _Missing()
"""The default of a parameter that has none."""


@dataclass(frozen=True)
class Parameter:
    """One argument of a component.

    Args:
        kind: ``positional``, ``var`` (``*args``) or ``keyword``.
        flags: its names on the command line, the first being ``--name``. A name of one letter also has ``-x``,
            and ``Annotated[str, "-cn"]`` adds ``-cn``.
    """

    name: str
    shape: Shape
    default: Any = REQUIRED
    kind: str = "positional"
    flags: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is REQUIRED and self.kind != "var"


@dataclass(frozen=True)
class Signature:
    """What a component function takes and returns.

    Args:
        name: how messages call it: as the user did, else ``dist.ddp`` for a built-in, else the function's own name.
        where: ``file:line`` of its definition.
    """

    name: str
    parameters: tuple[Parameter, ...]
    returns: Any
    doc: str
    where: str

    @property
    def var(self) -> Parameter | None:
        """The ``*args``, if there is one."""
        return next((p for p in self.parameters if p.kind == "var"), None)

    @property
    def options(self) -> tuple[Parameter, ...]:
        """All but the ``*args``."""
        return tuple(p for p in self.parameters if p.kind != "var")

    def get(self, name: str) -> Parameter | None:
        """The parameter of that name; dashes count as underscores."""
        return next((p for p in self.parameters if p.name == name.replace("-", "_")), None)


def read(fn: Callable[..., Any], *, name: str = "") -> Signature:
    """The signature of a component, through decorators made with ``functools.wraps``.

    Args:
        name: under which the user asked for it.

    Raises:
        SpecError: it takes ``**kwargs``, or a parameter that no command line can express.

    >>> def echo(msg: str = "hi", *args: str, n: "int | None" = None) -> str: ...
    >>> [(p.name, str(p.shape), p.default) for p in read(echo).parameters]
    [('msg', 'str', 'hi'), ('args', 'str', <required>), ('n', 'int | None', None)]
    """
    inner = unwrap(fn)
    name, where = name or name_of(fn), location(fn)
    scope = _scope(inner)
    parameters = tuple(_parameter(p, name, where, scope) for p in _raw(inner, name, where))
    returns = _evaluate(_annotations(inner).get("return", REQUIRED), inner, strict=False)
    return Signature(name, parameters, returns, getattr(fn, "__doc__", None) or "", where)


def returns_appdef(fn: Any) -> bool:
    """Whether the function says that it returns an ``AppDef``: what tells a component from its helpers."""
    inner = unwrap(fn)
    try:
        returns = _evaluate(_annotations(inner).get("return", REQUIRED), inner, strict=False)
    except Exception:
        return False
    if isinstance(returns, str):  # could not be evaluated: go by the last name
        return returns.strip("\"' ").rpartition(".")[2] == "AppDef"
    return any(base.__name__ == "AppDef" for base in getattr(returns, "__mro__", ()))


def unwrap(fn: Any) -> Any:
    """The function below its decorators."""
    seen = set()
    while hasattr(fn, "__wrapped__") and id(fn) not in seen:
        seen.add(id(fn))
        fn = fn.__wrapped__
    return fn


def location(fn: Any) -> str:
    """``file:line`` where the function is defined.

    >>> location(len)
    '<unknown>'
    """
    code = getattr(getattr(unwrap(fn), "__func__", unwrap(fn)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "<unknown>"


def name_of(fn: Any) -> str:
    """How to call a component in a message.

    >>> from torchx.components.utils import echo
    >>> name_of(echo)
    'utils.echo'
    """
    name = getattr(fn, "__name__", None) or type(fn).__name__
    module = getattr(fn, "__module__", None) or ""
    return f"{module.removeprefix('torchx.components.')}.{name}" if module.startswith("torchx.components.") else name


@dataclass(frozen=True)
class _Raw:
    name: str
    kind: str
    annotation: Any
    default: Any


def _raw(fn: Any, name: str, where: str) -> list[_Raw]:
    """Name, kind, live annotation and default of each parameter, in order."""
    code = getattr(fn, "__code__", None)
    if code is None or hasattr(fn, "__signature__") or hasattr(fn, "__self__"):
        return _inspected(fn, name, where)
    if code.co_flags & _VARKEYWORDS:
        names = code.co_varnames
        raise _no_kwargs(names[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _VARARGS)], name, where)
    count, kwonly = code.co_argcount, code.co_kwonlyargcount
    positional = code.co_varnames[:count]
    keywords = code.co_varnames[count : count + kwonly]
    values = fn.__defaults__ or ()
    defaults: Mapping[str, Any] = {
        **dict(zip(positional[count - len(values) :], values, strict=True)),
        **(fn.__kwdefaults__ or {}),
    }
    var = (code.co_varnames[count + kwonly],) if code.co_flags & _VARARGS else ()
    annotations = _annotations(fn)
    found = []
    for kind, group in (("positional", positional), ("var", var), ("keyword", keywords)):
        for p in group:
            annotation = _evaluate(annotations.get(p, REQUIRED), fn, strict=True, what=p, name=name, where=where)
            found.append(_Raw(p, kind, annotation, defaults.get(p, REQUIRED)))
    return found


def _inspected(fn: Any, name: str, where: str) -> list[_Raw]:
    """The signature of a partial, a method or a callable object."""
    import inspect

    kinds: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "var", inspect.Parameter.KEYWORD_ONLY: "keyword"}
    found = []
    target = getattr(fn, "func", fn)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError as e:  # a function in C that does not say what it takes
        raise SpecError(
            f"the arguments of component `{name}` ({where}) cannot be read: {e}",
            hint="write a function with typed arguments around it",
        ) from None
    for p in parameters:
        if p.kind is inspect.Parameter.VAR_KEYWORD:
            raise _no_kwargs(p.name, name, where)
        annotation = REQUIRED if p.annotation is p.empty else p.annotation
        annotation = _evaluate(annotation, target, strict=True, what=p.name, name=name, where=where)
        found.append(
            _Raw(p.name, kinds.get(p.kind, "positional"), annotation, REQUIRED if p.default is p.empty else p.default)
        )
    return found


def _parameter(raw: _Raw, name: str, where: str, scope: dict[str, Any]) -> Parameter:
    if raw.annotation is REQUIRED:
        raise SpecError(
            f"argument `{raw.name}` of component `{name}` ({where}) has no type",
            hint=f"write `{raw.name}: str`, or another of: {SUPPORTED}",
        )
    shape = shape_of(raw.annotation, scope)
    problem = shape.problem()
    if problem:
        raise SpecError(
            f"argument `{raw.name}` of component `{name}` ({where}): {problem}", hint=f"use one of: {SUPPORTED}"
        )
    flags = [f"--{raw.name}"]
    if len(raw.name) == 1:
        flags.append(f"-{raw.name}")
    flags += [m for m in getattr(raw.annotation, "__metadata__", ()) if isinstance(m, str) and m.startswith("-")]
    return Parameter(raw.name, shape, raw.default, raw.kind, tuple(flags) if raw.kind != "var" else ())


def _annotations(fn: Any) -> Mapping[str, Any]:
    try:
        return getattr(fn, "__annotations__", None) or {}
    except NameError:  # Python 3.14 evaluates here; a name under TYPE_CHECKING does not exist
        from annotationlib import Format, get_annotations  # type: ignore[import-not-found,unused-ignore]  # 3.14

        return get_annotations(fn, format=Format.STRING)  # type: ignore[no-any-return,unused-ignore]  # 3.14


def _scope(fn: Any) -> dict[str, Any]:
    """What names mean in the annotations of a function."""
    module = sys.modules.get(getattr(fn, "__module__", ""))
    return getattr(getattr(fn, "__func__", fn), "__globals__", None) or (vars(module) if module else {})


def _evaluate(annotation: Any, fn: Any, *, strict: bool, what: str = "", name: str = "", where: str = "") -> Any:
    """A string annotation as the object that it names; names of ``typing`` need not be imported by the module."""
    if not isinstance(annotation, str):
        return annotation
    scope = _scope(fn)
    try:
        return eval(annotation, scope)  # noqa: S307  # what the function's own module says, in its own scope
    except NameError:
        pass
    except Exception as e:
        raise SpecError(f"type `{annotation}` of argument `{what}` of `{name}` ({where}) cannot be read: {e}") from e
    import typing

    try:
        # The module may have imported them under TYPE_CHECKING only.
        names = {n: getattr(typing, n) for n in typing.__all__}
        return eval(annotation, {**names, **scope})  # noqa: S307  # as above
    except Exception as e:
        if not strict:
            return annotation
        raise SpecError(
            f"type `{annotation}` of argument `{what}` of component `{name}` ({where}) cannot be read: {e}",
            hint="import the name outside of `if TYPE_CHECKING:`",
        ) from e


def _no_kwargs(kwargs: str, name: str, where: str) -> SpecError:
    return SpecError(
        f"component `{name}` ({where}) takes `**{kwargs}`, which the command line cannot express",
        hint=f"name each argument, or take one `{kwargs}: dict[str, str]`; a decorator must use functools.wraps",
    )
