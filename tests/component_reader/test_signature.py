"""Parameters of component functions, read without `inspect`."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from torchx.component_reader.signature import REQUIRED, name_of, read, returns_appdef
from torchx.components import dist, utils
from torchx.errors import SpecError
from torchx.specs import AppDef

if TYPE_CHECKING:
    from typing import Annotated, Dict, Literal, Optional  # noqa: UP035  # unknown at run time, on purpose


def plain(
    a: str,
    *rest: str,
    b: int = 2,
    c: Optional[Dict[str, int]] = None,  # noqa: UP006  # the old spelling, on purpose
    d: Annotated[str, "-dd"] = "x",
    e: "list['int'] | None" = None,  # noqa: UP037  # quoted twice, on purpose
) -> AppDef:
    raise NotImplementedError


SIZES = {"small": 1, "large": 8}


def sized(size: Literal[tuple(name for name in ("small", "none") if name in SIZES)]) -> AppDef:  # type: ignore[valid-type]
    raise NotImplementedError


def decorated(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def test_parameters_of_a_plain_function() -> None:
    """Names, kinds, types and defaults are read, also if types are imported under TYPE_CHECKING only."""
    found = {p.name: (p.kind, str(p.shape), p.default) for p in read(plain).parameters}
    assert found == {
        "a": ("positional", "str", REQUIRED),
        "rest": ("var", "str", REQUIRED),
        "b": ("keyword", "int", 2),
        "c": ("keyword", "dict[str, int] | None", None),
        "d": ("keyword", "str", "x"),
        "e": ("keyword", "list[int] | None", None),
    }


def test_an_annotation_that_computes() -> None:
    """An expression in an annotation sees the globals of the module, also inside a generator."""
    assert str(read(sized).parameters[0].shape) == "Literal['small']"


def test_flags() -> None:
    """A one-letter name is also a short option, and `Annotated` adds another one."""
    assert read(plain).get("d").flags == ("--d", "-d", "-dd")
    assert read(dist.ddp).get("j").flags == ("--j", "-j")
    assert read(utils.hydra).get("config-name").flags == ("--config_name", "-cn")


def test_through_decorators() -> None:
    """The signature is that of the function inside decorators that use functools.wraps."""
    assert [p.name for p in read(decorated(decorated(plain))).parameters] == ["a", "rest", "b", "c", "d", "e"]
    assert returns_appdef(decorated(plain))


BUILTINS = [f for module in (dist, utils) for f in vars(module).values() if callable(f) and returns_appdef(f)]


@pytest.mark.parametrize("fn", [plain, *BUILTINS], ids=lambda f: f.__name__)
def test_as_inspect_sees_it(fn: Any) -> None:
    """Order, kinds and defaults are the same as in `inspect.signature`."""
    kinds = {"var": inspect.Parameter.VAR_POSITIONAL, "keyword": inspect.Parameter.KEYWORD_ONLY}
    expected = [
        (p.name, p.kind, REQUIRED if p.default is p.empty else p.default)
        for p in inspect.signature(fn).parameters.values()
    ]
    found = [
        (p.name, kinds.get(p.kind, inspect.Parameter.POSITIONAL_OR_KEYWORD), p.default) for p in read(fn).parameters
    ]
    assert found == expected


def test_partials_methods_and_callable_objects() -> None:
    """Callables without code, such as partials and methods, are supported."""

    class Component:
        def __call__(self, x: int) -> AppDef:
            raise NotImplementedError

        def method(self, y: bool = False) -> AppDef:
            raise NotImplementedError

    assert [(p.name, str(p.shape)) for p in read(Component()).parameters] == [("x", "int")]
    assert [(p.name, str(p.shape)) for p in read(Component().method).parameters] == [("y", "bool")]
    assert read(functools.partial(plain, b=7)).get("b").default == 7


def no_type(x) -> AppDef:
    raise NotImplementedError


def bad_type(x: bytes) -> AppDef:
    raise NotImplementedError


def unknown_type(x: NoSuchType) -> AppDef:  # type: ignore[name-defined]  # noqa: F821  # on purpose
    raise NotImplementedError


def keywords(**options: str) -> AppDef:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (no_type, "argument `x` of component `no_type` .* has no type"),
        (bad_type, "type `bytes` is not supported"),
        (unknown_type, "`NoSuchType` .* cannot be read"),
        (keywords, r"takes `\*\*options`"),
    ],
    ids=lambda v: getattr(v, "__name__", "message"),
)
def test_what_a_command_line_cannot_express(fn: Any, message: str) -> None:
    """Unsupported parameters raise an error with the argument and its location."""
    with pytest.raises(SpecError, match=message) as e:
        read(fn)
    assert "test_signature.py:" in str(e.value)
    assert e.value.hint


def test_names() -> None:
    """Messages use the command-line name of a built-in, and the function name otherwise."""
    assert name_of(dist.ddp) == "dist.ddp"
    assert name_of(plain) == "plain"


def helper() -> str:
    return ""


def quoted() -> "AppDef":  # noqa: UP037  # quoted twice, on purpose
    raise NotImplementedError


def test_a_component_says_that_it_returns_an_appdef() -> None:
    """The return type distinguishes components from helpers."""
    assert returns_appdef(plain)
    assert returns_appdef(quoted)
    assert not returns_appdef(helper)
    assert not returns_appdef(dist.parse_nnodes)


def test_does_not_import_inspect() -> None:
    """Reading a built-in's signature imports neither inspect nor argparse."""
    code = (
        "import sys; from torchx.component_reader.builders import materialize_appdef as m; from torchx.component_reader.finder import "
        "get_component as g; m(g('dist.ddp').fn, ['--script', 'x.py', '-j', '2x2', '--env', 'A=1', '--', 'a']);"
        "print([n for n in ('inspect', 'argparse', 'ast', 'docstring_parser') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.stdout.strip() == "[]", done.stderr
