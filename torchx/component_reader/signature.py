"""Parameters of component functions, read without the ``inspect`` module, whose import takes 10 ms."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchx.component_reader.types import SUPPORTED, Shape, shape_of
from torchx.errors import SpecError
from torchx.util.records import dataclass, field

_VARARGS, _VARKEYWORDS = 0x04, 0x08


class _Missing:
    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = _Missing()
"""The default of a required parameter."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a component.

    ``flags`` are its names on the command line: ``--name``, ``-x`` if the name is one letter, and ``-cn`` for
    ``Annotated[str, "-cn"]``.
    """

    name: str
    shape: Shape
    default: Any = REQUIRED
    kind: str = "positional"  # or "var" (`*args`), or "keyword"
    flags: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        """Whether a call must pass it."""
        return self.default is REQUIRED and self.kind != "var"


@dataclass(frozen=True)
class Signature:
    """The parameters of a component, and its name in messages: what the user gave, ``dist.ddp``, or the function."""

    name: str
    parameters: tuple[Parameter, ...]
    groups: Mapping[str, type] = field(default_factory=dict)
    """Parameters that are data classes, of which ``parameters`` has the fields: ``model`` -> its class."""

    def regrouped(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by argument of the function: fields of data classes are put together, inner ones first."""
        found = dict(values)
        for group in sorted(self.groups, key=lambda name: -name.count(".")):
            fields = [name for name in found if name.rpartition(".")[0] == group]
            try:
                found[group] = self.groups[group](**{name.rpartition(".")[2]: found.pop(name) for name in fields})
            except Exception as e:  # of its own checks
                raise SpecError(f"component `{self.name}`, argument `--{group}`: {e}") from e
        return found

    @property
    def var(self) -> Parameter | None:
        """The ``*args`` parameter, or None."""
        return next((p for p in self.parameters if p.kind == "var"), None)

    @property
    def options(self) -> tuple[Parameter, ...]:
        """All parameters except ``*args``."""
        return tuple(p for p in self.parameters if p.kind != "var")

    def get(self, name: str) -> Parameter | None:
        """Return the parameter of that name, or None; dashes match underscores."""
        return next((p for p in self.parameters if p.name == name.replace("-", "_")), None)


def read(fn: Callable[..., Any], *, name: str = "") -> Signature:
    """Return the signature of a component, through decorators that use ``functools.wraps``.

    Raises:
        SpecError: it takes ``**kwargs``, or a parameter of an unsupported type.

    >>> def echo(msg: str = "hi", *args: str, n: "int | None" = None) -> str: ...
    >>> [(p.name, str(p.shape), p.default) for p in read(echo).parameters]
    [('msg', 'str', 'hi'), ('args', 'str', <required>), ('n', 'int | None', None)]
    """
    inner = unwrap(fn)
    name, where = name or name_of(fn), location(fn)
    scope = _scope(inner)
    groups: dict[str, type] = {}
    raw = [field for p in _raw(inner, name, where) for field in _fields(p, groups)]
    return Signature(name, tuple(_parameter(p, name, where, scope) for p in raw), groups)


def _fields(raw: _Raw, groups: dict[str, type]) -> Iterator[_Raw]:
    """Yield the fields of a parameter that is a data class, which is added to ``groups``; else the parameter."""
    name, kind, annotation, default = raw
    declared = getattr(annotation, "__dataclass_fields__", None)
    if declared is None or not isinstance(annotation, type):
        yield raw
        return
    groups[name] = annotation
    hints = typing.get_type_hints(annotation)
    for key, one in declared.items():
        made = one.default_factory() if callable(one.default_factory) else one.default  # MISSING is not callable
        value = getattr(default, key) if default not in (REQUIRED, None) else made
        if one.init:
            unset = type(value).__name__ == "_MISSING_TYPE"
            yield from _fields((f"{name}.{key}", kind, hints[key], REQUIRED if unset else value), groups)


def returns_appdef(fn: Any) -> bool:
    """Whether the function is annotated to return an ``AppDef``, which distinguishes components from helpers."""
    inner = unwrap(fn)
    returns: Any = ""
    try:
        returns = _annotations(inner).get("return")
        if isinstance(returns, str):
            returns = _eval_with_typing(returns, _scope(inner))
    except NameError:  # imported under TYPE_CHECKING, for example
        pass
    except Exception:
        return False
    if isinstance(returns, str):  # not evaluated, or `from __future__ import annotations` has quoted it again
        return returns.strip("\"' ").rpartition(".")[2] == "AppDef"
    return any(base.__name__ == "AppDef" for base in getattr(returns, "__mro__", ()))


def unwrap(fn: Any) -> Any:
    """Return the function inside its decorators."""
    seen = set()
    while hasattr(fn, "__wrapped__") and id(fn) not in seen:
        seen.add(id(fn))
        fn = fn.__wrapped__
    return fn


def location(fn: Any) -> str:
    """Return ``file:line`` of the definition of a function, or the file of another object.

    >>> location(len)
    '<unknown>'
    """
    inner = unwrap(fn)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    target = getattr(inner, "func", inner)  # of a partial
    module = sys.modules.get(getattr(target, "__module__", None) or type(target).__module__)
    return getattr(module, "__file__", None) or "<unknown>"


def name_of(fn: Any) -> str:
    """Return the name of a component for messages.

    >>> from torchx.components.utils import echo
    >>> name_of(echo)
    'utils.echo'
    """
    name = getattr(fn, "__name__", None) or type(fn).__name__
    module = getattr(fn, "__module__", None) or ""
    return f"{module.removeprefix('torchx.components.')}.{name}" if module.startswith("torchx.components.") else name


_Raw = tuple[str, str, Any, Any]
"""Name, kind, evaluated annotation and default of a parameter."""


def _raw(fn: Any, name: str, where: str) -> list[_Raw]:
    """Return the parameters of a function in order."""
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
            annotation = _evaluate(annotations.get(p, REQUIRED), fn, p, name, where)
            found.append((p, kind, annotation, defaults.get(p, REQUIRED)))
    return found


def _inspected(fn: Any, name: str, where: str) -> list[_Raw]:
    """Implement :func:`_raw` for partials, methods and callable objects."""
    import inspect

    kinds: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "var", inspect.Parameter.KEYWORD_ONLY: "keyword"}
    found = []
    target = getattr(fn, "func", fn)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError as e:  # a function in C without a signature
        raise SpecError(
            f"the arguments of component `{name}` ({where}) cannot be read: {e}",
            hint="write a function with typed arguments around it",
        ) from None
    for p in parameters:
        if p.kind is inspect.Parameter.VAR_KEYWORD:
            raise _no_kwargs(p.name, name, where)
        annotation = REQUIRED if p.annotation is p.empty else _evaluate(p.annotation, target, p.name, name, where)
        default = REQUIRED if p.default is p.empty else p.default
        found.append((p.name, kinds.get(p.kind, "positional"), annotation, default))
    return found


def _parameter(raw: _Raw, name: str, where: str, scope: dict[str, Any]) -> Parameter:
    parameter, kind, annotation, default = raw
    what = f"argument `{parameter}` of component `{name}` ({where})"
    if annotation is REQUIRED:
        raise SpecError(f"{what} has no type", hint=f"write `{parameter}: str`, or another of: {SUPPORTED}")
    shape = shape_of(annotation, scope)
    problem = shape.problem()
    if problem:
        raise SpecError(f"{what}: {problem}", hint=f"use one of: {SUPPORTED}")
    flags = flags_of(parameter, getattr(annotation, "__metadata__", ())) if kind != "var" else ()
    return Parameter(parameter, shape, default, kind, flags)


def flags_of(parameter: str, metadata: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of a parameter on the command line; ``metadata`` is that of an ``Annotated`` type."""
    short = [f"-{parameter}"] if len(parameter) == 1 else []
    return (f"--{parameter}", *short, *(m for m in metadata if isinstance(m, str) and m.startswith("-")))


def _annotations(fn: Any) -> Mapping[str, Any]:
    try:
        return getattr(fn, "__annotations__", None) or {}
    except NameError:  # Python 3.14 evaluates annotations here, and a name under TYPE_CHECKING is undefined
        from annotationlib import Format, get_annotations  # type: ignore[import-not-found,unused-ignore]  # 3.14

        return get_annotations(fn, format=Format.STRING)  # type: ignore[no-any-return,unused-ignore]  # 3.14


def _scope(fn: Any) -> dict[str, Any]:
    """Return the namespace of a function's annotations."""
    module = sys.modules.get(getattr(fn, "__module__", ""))
    return getattr(getattr(fn, "__func__", fn), "__globals__", None) or (vars(module) if module else {})


def _evaluate(annotation: Any, fn: Any, parameter: str, name: str, where: str) -> Any:
    """Evaluate a string annotation; return other annotations unchanged."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return _eval_with_typing(annotation, _scope(fn))
    except Exception as e:
        raise SpecError(
            f"type `{annotation}` of argument `{parameter}` of component `{name}` ({where}) cannot be read: {e}",
            hint="import the name outside of `if TYPE_CHECKING:`" if isinstance(e, NameError) else "",
        ) from e


def _eval_with_typing(annotation: str, scope: dict[str, Any]) -> Any:
    """Evaluate an annotation; the module may have imported names of ``typing`` under TYPE_CHECKING only."""
    # In one namespace: a generator expression in an annotation would not see separate locals.
    return eval(annotation, {**vars(typing), **scope})  # noqa: S307  # code of the function's own module


def _no_kwargs(kwargs: str, name: str, where: str) -> SpecError:
    return SpecError(
        f"component `{name}` ({where}) takes `**{kwargs}`, which the command line cannot express",
        hint=f"name each argument, or take one `{kwargs}: dict[str, str]`; a decorator must use functools.wraps",
    )
