"""Run options: declared, given as literals and JSON, resolved."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import ConfigError, TorchXError
from torchx.specs import CfgVal, InvalidRunConfigException, get_type_name, runopt, runopts
from torchx.specs.options.cfg_literals import join_options


def make_opts() -> runopts:
    opts = runopts()
    opts.add("queue", type_=str, help="queue to submit to", required=True)
    opts.add("comment", type_=str, help="", default="")
    opts.add("priority", type_=int, help="priority of the job", default=10)
    opts.add("ratio", type_=float, help="a ratio")
    opts.add("quiet", type_=bool, help="say less", default=False)
    opts.add("mounts", type_=list[str], help="what to mount")
    opts.add("env", type_=dict[str, str], help="variables", default={"A": "1"})
    opts.add("mail-type", type_=str, help="when to send mail")
    return opts


_values: dict[str, st.SearchStrategy[Any]] = {
    "queue": st.text(),
    "comment": st.text(),
    "priority": st.integers(),
    "ratio": st.floats(allow_nan=False),
    "quiet": st.booleans(),
    "mounts": st.lists(st.text(), min_size=1),
    "env": st.dictionaries(st.text(), st.text(), min_size=1),
    "mail-type": st.text(),
}


@given(st.fixed_dictionaries({}, optional=_values))
def test_literals_round_trip(cfg: dict[str, CfgVal]) -> None:
    """Any values, also with separators and quotes, survive the round trip through a literal."""
    opts = make_opts()
    assert opts.cfg_from_str(join_options(cfg)) == cfg


@given(st.fixed_dictionaries({}, optional=_values))
def test_json_round_trips(cfg: dict[str, CfgVal]) -> None:
    """Any values survive the round trip through JSON, except that strings are converted to the option's type."""
    assert make_opts().cfg_from_json_repr(json.dumps(cfg)) == cfg


@given(st.text(alphabet="queuenvmounts=,;:'\"\\ ab1{}[]", max_size=40))
def test_any_literal_is_read_or_a_config_error(text: str) -> None:
    """Garbage never raises outside our tree."""
    try:
        cfg = make_opts().cfg_from_str(text)
    except ConfigError as e:
        assert str(e)
    else:
        assert all(isinstance(name, str) for name in cfg)


@given(st.text(alphabet='{}[]":,abqueue 1.enltrfs\\', max_size=40))
def test_any_json_is_read_or_a_config_error(text: str) -> None:
    """Garbage never raises outside our tree."""
    try:
        make_opts().cfg_from_json_repr(text)
    except ConfigError as e:
        assert str(e)


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("", {}),
        ("queue=gpu", {"queue": "gpu"}),
        ("queue=gpu,priority=3", {"queue": "gpu", "priority": 3}),
        ("queue=gpu;priority=3", {"queue": "gpu", "priority": 3}),
        (" queue=gpu, priority = 3", {"queue": "gpu", "priority": 3}),
        ("queue=", {"queue": ""}),
        ("mounts=", {"mounts": []}),
        ("env=", {"env": {}}),
        ("mounts=a;b;c", {"mounts": ["a", "b", "c"]}),
        ("mounts=a,b,queue=c", {"mounts": ["a", "b"], "queue": "c"}),
        ("mounts=type=bind;src=/a;dst=/b,queue=c", {"mounts": ["type=bind", "src=/a", "dst=/b"], "queue": "c"}),
        ("env=A:1;B:2", {"env": {"A": "1", "B": "2"}}),
        ("env=A:1,B:2,queue=c", {"env": {"A": "1", "B": "2"}, "queue": "c"}),
        ("env=A=1;B=2", {"env": {"A": "1", "B": "2"}}),
        ("env=URL:http://h:80/x=y", {"env": {"URL": "http://h:80/x=y"}}),
        ('env=A:"x,y;z=1";B:2', {"env": {"A": "x,y;z=1", "B": "2"}}),
        ("comment=a,b", {"comment": "a,b"}),
        ("comment=a;b,priority=1", {"comment": "a;b", "priority": 1}),
        ("comment=it's, fine", {"comment": "it's, fine"}),
        ('comment={"a": 1, "b": [2]}', {"comment": '{"a": 1, "b": [2]}'}),
        ("comment='a,priority=1'", {"comment": "a,priority=1"}),
        ('comment="say \\"hi\\" \\\\"', {"comment": 'say "hi" \\'}),
        ("comment=C:\\dir", {"comment": "C:\\dir"}),
        ("comment=x==", {"comment": "x=="}),
        ("quiet=true,ratio=1e-3", {"quiet": True, "ratio": 0.001}),
        ("quiet=No", {"quiet": False}),
        ("mail-type=END,queue=x", {"mail-type": "END", "queue": "x"}),
        ("quue=x", {"quue": "x"}),
        ("queue=a,queue=b", {"queue": "b"}),
    ],
)
def test_literals(literal: str, expected: dict[str, CfgVal]) -> None:
    """The examples in the docstring of `cfg_from_str`, and edge cases."""
    assert make_opts().cfg_from_str(literal) == expected


@pytest.mark.parametrize(
    ("literal", "message"),
    [
        ("priority=high", "`priority`: `high` is not a whole number"),
        ("priority=", "`priority`: `` is not a whole number"),
        ("priority=1,2", "`priority`: `1,2` is not a whole number"),
        ("ratio=x", "`ratio`: `x` is not a number"),
        ("quiet=maybe", "`quiet`: `maybe` is not true or false"),
        ("env=A", "`env`: `A` in `A` is not of the form `KEY:value`"),
        ("gpu", "begin with `gpu`"),
        ("gpu,queue=x", "begin with `gpu`"),
        ("=x", "begin with `=x`"),
    ],
)
def test_wrong_literals(literal: str, message: str) -> None:
    """The error names the option and the value."""
    with pytest.raises(ConfigError) as e:
        make_opts().cfg_from_str(literal)
    assert message in str(e.value)
    assert e.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"priority": 3, "mounts": ["a"], "env": {"A": "1"}}', {"priority": 3, "mounts": ["a"], "env": {"A": "1"}}),
        ('{"priority": "3", "mounts": "a;b", "quiet": "yes"}', {"priority": 3, "mounts": ["a", "b"], "quiet": True}),
        ('{"queue": null}', {"queue": None}),
        ('{"other": [1, 2]}', {"other": [1, 2]}),
    ],
)
def test_json(text: str, expected: dict[str, CfgVal]) -> None:
    """Values are unchanged, strings are converted, unknown names are kept."""
    assert make_opts().cfg_from_json_repr(text) == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "{", '{"priority": 1.5}', '{"mounts": [1]}', '{"env": {"A": 1}}', '{"quiet": 1}']
)
def test_wrong_json(text: str) -> None:
    """Invalid JSON, other types than objects, and values of the wrong type raise errors."""
    with pytest.raises(ConfigError):
        make_opts().cfg_from_json_repr(text)


def test_resolve_fills_in_defaults_and_keeps_unknown_keys() -> None:
    """Every option gets a value; unknown keys are kept, and `unknown` lists them."""
    opts = make_opts()
    cfg: dict[str, CfgVal] = {"queue": "gpu", "quue": "x", "ratio": 1}
    assert opts.resolve(cfg) == {
        "queue": "gpu",
        "quue": "x",
        "ratio": 1,
        "comment": "",
        "priority": 10,
        "quiet": False,
        "mounts": None,
        "env": {"A": "1"},
        "mail-type": None,
    }
    assert opts.unknown(cfg) == ["quue"]
    assert cfg == {"queue": "gpu", "quue": "x", "ratio": 1}


def test_none_stands_for_the_default() -> None:
    """None means the default."""
    assert make_opts().resolve({"queue": "q", "priority": None, "mounts": None})["priority"] == 10


def test_a_default_is_never_shared() -> None:
    """Changing a resolved value does not change the option."""
    opts = make_opts()
    resolved = opts.resolve({"queue": "q"})
    typing.cast(dict[str, str], resolved["env"])["B"] = "2"
    assert opts.resolve({"queue": "q"})["env"] == {"A": "1"}


@pytest.mark.parametrize(
    ("cfg", "key", "message"),
    [
        ({}, "queue", "a value is required, of type str"),
        ({"queue": None}, "queue", "a value is required"),
        ({"queue": 5}, "queue", "`5` is of type int, and str is expected"),
        ({"queue": "q", "priority": "5"}, "priority", "`5` is of type str, and int is expected"),
        ({"queue": "q", "priority": True}, "priority", "of type bool"),
        ({"queue": "q", "mounts": "a"}, "mounts", "list[str] is expected"),
        ({"queue": "q", "mounts": [1]}, "mounts", "list[str] is expected"),
        ({"queue": "q", "env": {"a": 1}}, "env", "dict[str, str] is expected"),
        ({"queue": "a\0b"}, "queue", "`'a\\x00b'` has a NUL character in it"),
    ],
)
def test_resolve_refuses(cfg: dict[str, Any], key: str, message: str) -> None:
    """A missing or wrongly typed value raises InvalidRunConfigException with key and cfg."""
    with pytest.raises(InvalidRunConfigException) as e:
        make_opts().resolve(cfg)
    assert (e.value.cfg_key, e.value.cfg) == (key, cfg)
    assert f"`{key}`" in str(e.value)
    assert message in str(e.value)
    assert isinstance(e.value, TorchXError)


def test_a_missing_value_hints_at_the_typo() -> None:
    """If an unknown key resembles the required one, the hint suggests it."""
    with pytest.raises(InvalidRunConfigException) as e:
        make_opts().resolve({"quue": "gpu"})
    assert e.value.hint == "did you mean `queue` by `quue`?"


@pytest.mark.parametrize(
    ("type_", "default", "is_"),
    [
        (int, "5", 5),
        (int, True, 1),
        (str, 5, "5"),
        (str, ["a", "b"], "a,b"),
        (float, 1, 1),
        (bool, 0, False),
        (bool, "yes", True),
        (list[str], "a,b", ["a", "b"]),
        (list[str], ("a", 1), ["a", "1"]),
        (list[str], (), []),
        (dict[str, str], "a=b", {"a": "b"}),
        (dict[str, str], {"a": 1}, {"a": "1"}),
    ],
)
def test_a_default_of_another_type(type_: Any, default: Any, is_: object) -> None:
    """It is read as a user would type it, so that programs which declare one keep working."""
    opts = runopts()
    opts.add("x", type_=type_, default=default, help="")
    assert opts.resolve({}) == {"x": is_}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"type_": int, "default": "x"}, "default `x`"),
        ({"type_": str, "default": "x", "required": True}, "cannot be both"),
        ({"type_": set}, "cannot be of type `"),
        ({"type_": list[int]}, "cannot be of type `list[int]`"),
    ],
)
def test_wrong_declarations(kwargs: dict[str, Any], message: str) -> None:
    """An invalid declaration raises an error immediately."""
    with pytest.raises(ConfigError) as e:
        runopts().add("x", help="", **kwargs)
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("tp", "name"),
    [
        (str, "str"),
        (int, "int"),
        (list[str], "list[str]"),
        (typing.List[str], "list[str]"),  # noqa: UP006 - both styles
        (typing.Dict[str, str], "dict[str, str]"),  # noqa: UP006 - both styles
    ],
)
def test_type_names_in_both_styles(tp: Any, name: str) -> None:
    """`typing.List[str]` is `list[str]`."""
    assert get_type_name(tp) == name
    opts = runopts()
    opts.add("x", type_=tp, help="")
    assert get_type_name(dict(opts)["x"].opt_type) == name


def test_runopt_properties() -> None:
    """An option has properties for list and dict types, and converts strings."""
    option = runopt(None, list[str], False, "help")
    assert (option.is_type_list_of_str, option.is_type_dict_of_str) == (True, False)
    assert runopt(None, dict[str, str], False, "").is_type_dict_of_str
    assert runopt(1, int, False, "").cast_to_type("7") == 7
    assert option == runopt(None, list[str], False, "help") != runopt(None, list[str], True, "help")


def test_help_may_be_made_late() -> None:
    """A help function is called once, on first access."""
    calls = []
    opts = runopts()
    opts.add("x", type_=str, help=lambda: calls.append(1) or "text")
    opts.resolve({})
    assert calls == []
    option = opts.get("x")
    assert option is not None
    assert (option.help, option.help, calls) == ("text", "text", [1])


def test_the_mapping_side() -> None:
    """Iteration is sorted by name; len, in, get and update work as for a dict."""
    opts = make_opts()
    assert [name for name, _ in opts] == sorted(_values)
    assert len(opts) == 8
    assert "queue" in opts
    assert "quue" not in opts
    assert opts.get("quue") is None
    other = runopts()
    other.add("queue", type_=str, help="", default="x")
    opts.update(other)
    assert opts.resolve({})["queue"] == "x"


def test_help_text() -> None:
    """Usage, then required, then optional options, each with type, default and help."""
    opts = runopts()
    opts.add("b", type_=int, help="two\nlines", default=1)
    opts.add("a", type_=str, help="a name", required=True)
    assert repr(opts).splitlines() == [
        "usage:",
        "    a=A,[b=B]",
        "",
        "required arguments:",
        "    a=A (str)",
        "        a name",
        "",
        "optional arguments:",
        "    b=B (int, 1)",
        "        two",
        "        lines",
    ]
