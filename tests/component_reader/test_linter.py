"""The linter finds mistakes, and agrees with the argument parser."""

from __future__ import annotations

import argparse
import ast
import collections.abc
import typing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchx.component_reader import linter
from torchx.component_reader.finder import BUILTINS
from torchx.component_reader.linter import (
    ArgTypeValidator,
    ComponentFnVisitor,
    ComponentFunctionValidator,
    LinterMessage,
    ReturnTypeValidator,
    get_generic_type,
    get_optional_type,
    is_primitive,
    shape_of_expr,
    validate,
)
from torchx.component_reader.signature import read
from torchx.component_reader.types import shape_of
from torchx.errors import SpecError
from torchx.specs import AppDef
from torchx.specs.file_linter import TorchXArgumentHelpFormatter, get_fn_docstring

HEAD = """
import typing
import typing as t
import torchx.specs as specs
import torchx.specs
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Dict, List, Literal, Optional, Union
from torchx.specs import AppDef
from torchx.specs.api import AppDef as App
Env = Dict[str, str]
class Mine: ...
"""


def problems(tmp_path: Path, source: str, name: str = "fn") -> list[str]:
    file = tmp_path / "component.py"
    file.write_text(HEAD + source)
    return [m.description for m in validate(str(file), name)]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "a: str, b: int = 1, c: float = 1.0, d: bool = False",
        "a: Dict[str, int], b: dict[str, int], c: typing.Dict[str, int], d: t.Dict",
        "a: List[str], b: list[str], c: List, d: list, e: Sequence[int], f: Mapping[str, str]",
        "a: Optional[str], b: str | None, c: Union[str, None], d: None | int, e: Union[int, str]",
        "a: Optional[List[int]] = None, b: list[int] | None = None",
        "a: Annotated[str, '-a2'], b: Literal['x', 'y'] = 'x'",
        "a: 'str', b: 'Optional[List[int]]', c: List['str'], d: 'list[int] | None'",
        "a: str, *args: str, k: int, l: bool = True",
        "a: str, /, b: int",
        "a: Env, b: Optional[Env] = None, c: object = None, d: Any = 1, e: dict[str, object] | None = None",
    ],
)
def test_arguments_that_are_fine(tmp_path: Path, arguments: str) -> None:
    """Old and new spellings, strings, aliases, varargs and keyword-only arguments are valid."""
    assert problems(tmp_path, f"def fn({arguments}) -> AppDef: ...") == []


@pytest.mark.parametrize(
    "returns",
    ["AppDef", "specs.AppDef", "torchx.specs.AppDef", "'AppDef'", "'specs.AppDef'", "App", "torchx.specs.api.AppDef"],
)
def test_ways_to_say_appdef(tmp_path: Path, returns: str) -> None:
    """AppDef is recognized however it is imported."""
    assert problems(tmp_path, f"@typing.no_type_check\ndef fn() -> {returns}: ...") == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def fn(a) -> AppDef: ...", "argument `a` of `fn`: it has no type; write `: str`"),
        ("def fn(*a) -> AppDef: ...", "argument `a` of `fn`: it has no type"),
        ("def fn(a: bytes) -> AppDef: ...", "argument `a` of `fn`: type `bytes` is not supported; use one of: str"),
        ("def fn(a: Mine) -> AppDef: ...", "type `Mine` is not supported"),
        ("def fn(a: Optional[Mine]) -> AppDef: ...", "type `Mine` is not supported"),
        ("def fn(a: dict[list[str], str]) -> AppDef: ...", "its keys must be"),
        ("def fn(a: None) -> AppDef: ...", "type `None` is not supported"),
        ("def fn(*, a: 'List[') -> AppDef: ...", "is not supported"),
        ("def fn(**kw: str) -> AppDef: ...", "takes `**kw`"),
        ("def fn(): ...", "`fn` has no return type; a component is written `-> AppDef`"),
        ("def fn() -> str: ...", "`fn` has return type `str`"),
        ("def fn() -> list[AppDef]: ...", "`fn` has return type `list[AppDef]`"),
        ("def f2() -> AppDef: ...", "function `fn` is not found"),
    ],
)
def test_findings(tmp_path: Path, source: str, message: str) -> None:
    """Each mistake is found, and the message says how to fix it."""
    found = problems(tmp_path, source)
    assert len(found) == 1
    assert message in found[0]
    assert "component.py" in found[0]


def test_findings_have_a_place(tmp_path: Path) -> None:
    """All findings are reported at once, with file, line and column."""
    file = tmp_path / "c.py"
    file.write_text("def fn(\n    a,\n    b: bytes,\n): ...\n")
    found = validate(str(file), "fn")
    assert [(m.line, m.char, m.severity) for m in found] == [(2, 4, "error"), (3, 4, "error"), (1, 0, "error")]
    assert found[0].description.startswith(f"{file}:2: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A syntax error, a missing file and a misspelled name are findings too."""
    (tmp_path / "bad.py").write_text("x = 1\ndef fn(:\n")
    (finding,) = validate(str(tmp_path / "bad.py"), "fn")
    assert (finding.line, "bad.py:2: " in finding.description) == (2, True)
    (finding,) = validate(str(tmp_path / "none.py"), "fn")
    assert "cannot be read: No such file" in finding.description
    assert "did you mean `trainer`?" in problems(tmp_path, "def trainer() -> AppDef: ...", "trianer")[0]


def test_the_last_definition_counts(tmp_path: Path) -> None:
    """Of two functions with the same name the last one counts; one inside `if` is found."""
    assert problems(tmp_path, "def fn(a): ...\nif True:\n    def fn() -> AppDef: ...") == []


def test_own_checks(tmp_path: Path) -> None:
    """Custom validators replace the default ones."""

    class NoDefaults(ComponentFunctionValidator):
        def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
            return [LinterMessage("mine", "has a default", d.lineno, 0) for d in app_specs_func_def.args.defaults]

    file = tmp_path / "c.py"
    file.write_text("def fn(a, b=1): ...")
    assert [m.name for m in validate(str(file), "fn", [NoDefaults()])] == ["mine"]


def test_the_parts() -> None:
    """Visitor, validators and helpers can be used separately."""
    tree = ast.parse("def fn(a: str) -> AppDef: ...")
    visitor = ComponentFnVisitor("fn", None)
    visitor.visit(tree)
    assert visitor.visited_function
    assert visitor.linter_errors == linter.OK() == []
    fn = tree.body[0]
    assert isinstance(fn, ast.FunctionDef)
    assert ArgTypeValidator().validate(fn) == []
    assert len(ReturnTypeValidator("Role").validate(fn)) == 1

    def expr(text: str) -> ast.expr:
        return ast.parse(text, mode="eval").body

    assert ast.unparse(get_generic_type(expr("dict[str, int]"))) == "dict"
    assert ast.unparse(get_optional_type(expr("Union[None, X]")) or expr("no")) == "X"
    assert get_optional_type(expr("Union[int, str]")) is None
    assert is_primitive(expr("int"))
    assert not is_primitive(expr("list"))
    assert issubclass(TorchXArgumentHelpFormatter, argparse.HelpFormatter)


def test_docstrings_of_all_styles() -> None:
    """Google and reST docstrings give a description and the help of each argument."""

    def google(x: int) -> AppDef:
        """Does it.

        At length.

        Args:
            x: how often
        """
        raise NotImplementedError

    def rest(x: int) -> AppDef:
        """Does it.

        :param x: how often
        """
        raise NotImplementedError

    assert get_fn_docstring(google) == ("Does it.\n\nAt length.", {"x": "how often"})
    assert get_fn_docstring(rest) == ("Does it.", {"x": "how often"})
    rest.__doc__ = None
    assert "no docstring" in get_fn_docstring(rest)[0]


@pytest.mark.parametrize("name", [f"{m}.{fn}" for m, fns in BUILTINS.items() for fn in fns])
def test_our_own_components_pass(name: str) -> None:
    """The built-in components, which are not checked at run time, are valid."""
    module, _, fn = name.rpartition(".")
    path = Path(linter.__file__).parents[1] / "components" / f"{module}.py"
    assert [m.description for m in validate(str(path), fn)] == []


LEAVES = [
    "str",
    "int",
    "float",
    "bool",
    "object",
    "Any",
    "None",
    "bytes",
    "list",
    "List",
    "dict",
    "Dict",
    "Literal['a', 1]",
    "Literal[b'x']",
    '"int"',
    '"list[int] | None"',
    '"bytes"',
    '"no_such_name"',
    "tuple[int, ...]",
    "complex",
]


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    one = st.sampled_from(
        ["list[{}]", "List[{}]", "typing.List[{}]", "Sequence[{}]", "Optional[{}]", "Annotated[{}, 'x']", "set[{}]"]
    )
    two = st.sampled_from(["dict[{}, {}]", "Dict[{}, {}]", "Mapping[{}, {}]", "Union[{}, {}]", "{} | {}"])
    return st.one_of(
        st.builds(lambda form, a: form.format(a), one, inner),
        st.builds(lambda form, a, b: form.format(a, b), two, inner, inner),
    )


@example("Optional[Dict[str, int] | List[int]]")
@example("Optional[List[int] | Dict[str, int]]")  # an equal one to `typing`, which answers with the former
@given(st.recursive(st.sampled_from(LEAVES), nested, max_leaves=5))
def test_agrees_with_the_argument_parser(annotation: str) -> None:
    """Linter and argument parser agree about any type."""
    scope = {**vars(typing), "typing": typing, "Sequence": collections.abc.Sequence, "Mapping": collections.abc.Mapping}
    try:
        live = eval(annotation, scope)
    except TypeError:  # for example `None | None`
        return
    names = {"typing": "<module typing>"}
    from_source = shape_of_expr(ast.parse(annotation, mode="eval").body, names)
    assert (from_source.problem() is None) == (shape_of(live).problem() is None), annotation
    if from_source.problem() is None:
        assert from_source == shape_of(live)

    def fn(x): ...

    fn.__annotations__ = {"x": live}
    if from_source.problem() is None:
        assert read(fn).parameters[0].shape == from_source
    else:
        with pytest.raises(SpecError):
            read(fn)
