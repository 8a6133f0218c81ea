"""Conversion of text and values to the types of component arguments."""

from __future__ import annotations

import ast
import inspect
import json
import typing
from typing import Annotated, Any, Dict, List, Literal, NewType, Optional, Sequence, Union  # noqa: UP035

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.component_reader.linter import shape_of_expr
from torchx.component_reader.types import (
    decode,
    decode_from_string,
    decode_optional,
    get_argparse_param_type,
    is_bool,
    is_primitive,
    none_throws,
    shape_of,
    to_dict,
    to_list,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("A=1", {"A": "1"}),
        ("A=1,B=2", {"A": "1", "B": "2"}),
        ("A=", {"A": ""}),
        ("A=1,", {"A": "1"}),
        (" A=1, B=2", {"A": "1", "B": "2"}),
        ("T=YWJjZA==", {"T": "YWJjZA=="}),
        ('NCCL_IB_HCA="=mlx5_0:1,mlx5_1:1",B=2', {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "B": "2"}),
        ("NCCL_IB_HCA==mlx5_0:1,mlx5_1:1", {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),
        ("A=x;y;z", {"A": "x;y;z"}),
        ("A='x,B=y',C=z", {"A": "x,B=y", "C": "z"}),
        ("A=it's,B=\"q", {"A": "it's", "B": '"q'}),
        ('A="say \\"hi\\", you",B=1', {"A": 'say "hi", you', "B": "1"}),
        ('C={"a":1,"b":[1,2]},D=1', {"C": '{"a":1,"b":[1,2]}', "D": "1"}),
        ('"A=1,2",B=3', {"A": "1,2", "B": "3"}),
        ("A= spaced ,B=\n", {"A": " spaced ", "B": "\n"}),
        ("ü=é", {"ü": "é"}),
        ("A=1;B=2", {"A": "1", "B": "2"}),
        ("A=1,2;B=3", {"A": "1,2", "B": "3"}),
        ("A=1,2;B=3,4,C=5;6", {"A": "1,2", "B": "3,4", "C": "5;6"}),
        ("A='1;B=2';C=3;", {"A": "1;B=2", "C": "3"}),
    ],
)
def test_to_dict(text: str, expected: dict[str, str]) -> None:
    """Commas and semicolons before `key=` separate pairs; the first `=` separates key and value; quotes protect a value."""
    assert to_dict(text) == expected


@pytest.mark.parametrize("text", ["A", ",A=1", "=1", "A,B=1"])
def test_to_dict_refuses_text_without_a_key(text: str) -> None:
    """A pair without a key raises an error that names it."""
    with pytest.raises(ValueError, match="key=value"):
        to_dict(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("a, b", ["a", "b"]),
        ("a,b,", ["a", "b"]),
        ("a,,b", ["a", "", "b"]),
        ('"a,b",c', ["a,b", "c"]),
        ("'a,b',c", ["a,b", "c"]),
        ("it's,ok", ["it's", "ok"]),
        ('"open,b', ['"open', "b"]),
        (r"src=/a\,b,dst=/c", [r"src=/a\,b", "dst=/c"]),
    ],
)
def test_to_list(text: str, expected: list[str]) -> None:
    """Commas separate items, except in quotes and after a backslash."""
    assert to_list(text) == expected


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_any_dict_can_be_written(value: dict[str, str]) -> None:
    """Every dict of strings survives the round trip through JSON."""
    assert decode(json.dumps(value), dict[str, str]) == value


@settings(deadline=None)
@given(st.lists(st.text()))
def test_any_list_can_be_written(value: list[str]) -> None:
    """Every list of strings survives the round trip through JSON."""
    assert decode(json.dumps(value), list[str]) == value


@settings(deadline=None)
@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,9}", fullmatch=True), st.text(), min_size=1))
def test_quotes_carry_any_value(value: dict[str, str]) -> None:
    """A quoted value with escaped quotes and backslashes survives the round trip."""
    quoted = {k: '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for k, v in value.items()}
    assert to_dict(",".join(f"{k}={v}" for k, v in quoted.items())) == value


@settings(deadline=None)
@given(st.text())
def test_garbage_is_an_answer_or_a_value_error(text: str) -> None:
    """Any text is converted or raises ValueError."""
    for annotation in (int, bool, list[int], dict[str, float], Literal["a", 1], int | list[str], dict[int, list[str]]):
        try:
            decode(text, annotation)
        except ValueError as e:
            assert "`" in str(e)


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("1", int, 1),
        ("-1", int, -1),
        ("1e3", float, 1000.0),
        ("True", bool, True),
        ("off", bool, False),
        ("0", bool, False),
        ("x", str, "x"),
        ("None", str, "None"),
        ("None", Optional[str], None),
        ("none", Optional[str], "none"),
        ("1", Optional[int], 1),
        ("1", int | None, 1),
        ("1,2", List[int], [1, 2]),  # noqa: UP006
        ("a=1", Dict[str, int], {"a": 1}),  # noqa: UP006
        ("a=1", dict, {"a": "1"}),
        ("a", list, ["a"]),
        ("1,2", Sequence[int], [1, 2]),
        ("5", Union[int, str], 5),
        ("5", Union[str, bool, float, int], 5),
        ("1.0", Union[str, bool, float, int], 1.0),
        ("yes", Union[str, bool, float, int], True),
        ("auto", Union[int, Literal["auto"]], "auto"),
        ("x", Union[int, str], "x"),
        ("x", Union[str, list[str]], "x"),
        ("x,y", Union[str, list[str]], ["x", "y"]),
        ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("x", Annotated[str, "-x"], "x"),
        ("7", NewType("Port", int), 7),
        ("x", Any, "x"),
        ("[[1], [2, 3]]", list[list[int]], [[1], [2, 3]]),
        ('{"a": ["x"]}', dict[str, list[str]], {"a": ["x"]}),
        ('{"a": 1, "b": null}', dict[str, int | None], {"a": 1, "b": None}),
    ],
)
def test_decode_text(text: str, annotation: Any, expected: Any) -> None:
    """Each supported type parses its text form."""
    found = decode(text, annotation)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, int, 1),
        (1, float, 1.0),
        (5, str, "5"),
        ({"a": "1"}, dict[str, int], {"a": 1}),
        ({"a": 1}, dict[str, str], {"a": "1"}),
        (("a", "b"), list[str], ["a", "b"]),
        (None, int | None, None),
        (True, bool, True),
        (True, int | bool, True),
        ({"x": [1]}, object, {"x": [1]}),
    ],
)
def test_decode_values(value: Any, annotation: Any, expected: Any) -> None:
    """A typed value is kept, or converted if that is lossless."""
    found = decode(value, annotation)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("x", int),
        ("1.5", int),
        ("maybe", bool),
        ("", bool),
        (True, int),
        (True, str),
        (1.5, int),
        ("A=1,2B=3", dict[str, str]),
        ("A=1,B C=3", dict[str, str]),
        ("c", Literal["a", "b"]),
        ([1], str),
        ("a", dict[str, str]),
        ("1,x", list[int]),
        ("1,2", list[list[int]]),
        ({"a": "x"}, dict[str, int]),
    ],
)
def test_decode_refuses(value: Any, annotation: Any) -> None:
    """A value of the wrong type raises ValueError with the value."""
    with pytest.raises(ValueError, match="`"):
        decode(value, annotation)


def test_equal_types_have_equal_shapes() -> None:
    """Old and new spellings of a type are equivalent."""
    assert shape_of(typing.Optional[typing.Dict[str, typing.List[int]]]) == shape_of(dict[str, list[int]] | None)  # noqa: UP006
    assert shape_of(typing.List) == shape_of(list)  # noqa: UP006


@pytest.mark.parametrize(
    "annotation", [bytes, tuple[bytes, ...], set[str], object(), None, dict[list[str], str], int | bytes]
)
def test_unsupported_types_have_a_problem(annotation: Any) -> None:
    """Unsupported types report a problem."""
    assert "not supported" in str(shape_of(annotation).problem())


def test_small_helpers() -> None:
    """The helpers that programs import work."""
    assert decode_from_string("a=1", dict[str, str] | None) == {"a": "1"}
    assert decode_optional(Optional[str]) is str
    assert decode_optional(str) is str
    assert is_primitive(int)
    assert not is_primitive(list)
    assert is_bool(bool)
    assert not is_bool(int)
    parameter = inspect.Parameter("x", inspect.Parameter.KEYWORD_ONLY, annotation=dict[str, str])
    assert get_argparse_param_type(parameter) is str
    assert none_throws(0) == 0
    with pytest.raises(AssertionError, match="no host"):
        none_throws(None, "no host")


@pytest.mark.parametrize("annotation", [int, str, list[str], dict[str, str], dict[str, str] | None])
def test_decode_of_none(annotation: Any) -> None:
    """None stays None of any type, because programs decode the defaults of components."""
    assert decode(None, annotation) is None


def test_keys_that_are_no_text() -> None:
    """Keys of other types than str may begin with a digit."""
    assert decode("1=a;2=b", dict[int, str]) == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("3,4", tuple[int, int], (3, 4)),
        ("[3, 4]", tuple[int, int], (3, 4)),
        ((1, 2), tuple[int, int], (1, 2)),
        ([1, 2], typing.Tuple[int, float], (1, 2.0)),  # noqa: UP006  # as programs write it
        ("a,b,c", tuple[str, ...], ("a", "b", "c")),
        ("a", tuple, ("a",)),
        ("x,1", tuple[str, int] | None, ("x", 1)),
    ],
)
def test_tuples(value: Any, annotation: Any, expected: Any) -> None:
    """Tuples are parsed like lists; each position has its type."""
    assert decode(value, annotation) == expected


@pytest.mark.parametrize("text", ["1", "1,2,3", "1,x"])
def test_tuples_of_another_length(text: str) -> None:
    """The error names the text and the type."""
    with pytest.raises(ValueError, match="`"):
        decode(text, tuple[int, int])


def test_tuples_in_source() -> None:
    """The linter accepts what the parser can read."""
    for text in ("tuple[int, int]", "Tuple[str, ...]", "tuple", "Optional[Tuple[int, str]]"):
        assert shape_of_expr(ast.parse(text, mode="eval").body).problem() is None
    assert shape_of_expr(ast.parse("tuple[int, object()]", mode="eval").body).problem() is not None
