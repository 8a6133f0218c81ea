"""Building AppDefs from components and arguments."""

from __future__ import annotations

import dataclasses
import logging
from enum import Enum
from typing import Annotated, Any, Dict, List, Literal, Optional  # noqa: UP035

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.component_reader.builders import (
    ComponentArgs,
    component_args_from_str,
    make_app_handle,
    materialize_appdef,
    parse_args,
    parse_mounts,
)
from torchx.errors import SpecError
from torchx.specs import AppDef, Role


def app() -> AppDef:
    return AppDef("a", [Role("r", image="i")])


def trainer(
    image: str,
    nnodes: int = 1,
    *script_args: str,
    h: Optional[str] = None,
    lr: float = 0.1,
    debug: bool = False,
    env: Optional[Dict[str, str]] = None,  # noqa: UP006
    mounts: List[str] | None = None,  # noqa: UP006
    mode: Literal["fast", "slow"] = "fast",
    config_name: Annotated[str, "-cn"] = "base",
) -> AppDef:
    """Trains.

    Args:
        script_args: arguments of the 100% script
        image: the image
        h: named resource
        lr: learning rate, 5% or so
    """
    return app()


def echo(msg: str = "hi") -> AppDef:
    return app()


def values(*words: str, **sources: Any) -> dict[str, Any]:
    return vars(parse_args(trainer, ["--image", "i", *words], **sources))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--nnodes", "2"], {"nnodes": 2}),
        (["--nnodes=2"], {"nnodes": 2}),
        (["--h", "gpu.small"], {"h": "gpu.small"}),
        (["-h", "gpu.small"], {"h": "gpu.small"}),
        (["-hgpu.small"], {"h": "gpu.small"}),
        (["-h=gpu.small"], {"h": "gpu.small"}),
        (["-h", "None"], {"h": None}),
        (["--lr", "-1e-3"], {"lr": -0.001}),
        (["--debug"], {"debug": True}),
        (["--debug", "true"], {"debug": True}),
        (["--debug", "False"], {"debug": False}),
        (["--debug=no"], {"debug": False}),
        (["--debug", "--lr", "1"], {"debug": True, "lr": 1.0}),
        (["--debug", "word"], {"debug": True, "script_args": ["word"]}),
        (["--env", "A=1,B=x=y,z;w"], {"env": {"A": "1", "B": "x=y,z;w"}}),
        (["--env", "A=1", "--env", "B=2", "--env", "A=3"], {"env": {"A": "3", "B": "2"}}),
        (["--mounts", "type=bind,src=/a", "--mounts", "dst=/b"], {"mounts": ["type=bind", "src=/a", "dst=/b"]}),
        (["--mode", "slow"], {"mode": "slow"}),
        (["-cn", "x"], {"config_name": "x"}),
        (["--config-name", "x"], {"config_name": "x"}),
        (["--config-name=--x"], {"config_name": "--x"}),
        (["--config_name", "-x y"], {"config_name": "-x y"}),
        (["--config_name", ""], {"config_name": ""}),
        (["--", "--lr", "7"], {"script_args": ["--lr", "7"], "lr": 0.1}),
        (["--", "--", "a"], {"script_args": ["--", "a"]}),
        (["ls", "-l", "--lr", "7", "--", "x"], {"script_args": ["ls", "-l", "--lr", "7", "--", "x"], "lr": 0.1}),
        (["-"], {"script_args": ["-"]}),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_command_line(words: list[str], expected: dict[str, Any]) -> None:
    """Each notation of an argument gives its value."""
    found = values(*words)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--nnodes", "x"], "argument `--nnodes` of component `trainer`: `x` is not an int", "--help"),
        (["--nnodes"], "`--nnodes` of component `trainer` has no value", "--nnodes VALUE"),
        (["--nnodes", "--lr", "1"], "`--nnodes` of component `trainer` has no value", "--nnodes=VALUE"),
        (["--nnodes", "--", "1"], "`--nnodes` of component `trainer` has no value", "--nnodes=VALUE"),
        (["--debug=maybe"], "`maybe` is not true or false", "bool"),
        (["--mode", "quick"], "`quick` is not one of `fast`, `slow`", "Literal"),
        (["--env", "A"], "`A` is not of the form `key=value`", "dict"),
        (["--lr", "1", "--lr", "2"], "`--lr` of component `trainer` is given more than once: `1` and `2`", "keep one"),
        (["--node", "2"], "has no argument `--node`", "did you mean `--nnodes`?"),
        (["--epochs", "2"], "has no argument `--epochs`", "go after `--`: `torchx run trainer ... -- --epochs ...`"),
    ],
)
def test_wrong_command_lines(words: list[str], message: str, hint: str) -> None:
    """The error for an invalid argument is one line that names it, with a hint."""
    with pytest.raises(SpecError) as e:
        values(*words)
    assert message in str(e.value)
    assert hint in e.value.hint
    assert "\n" not in str(e.value) + e.value.hint


def test_missing_arguments_are_all_named() -> None:
    """One error names all missing arguments."""

    def fn(a: str, b: int, c: int = 1, *, d: str) -> AppDef:
        return app()

    with pytest.raises(SpecError, match="needs `--a`, `--d`"):
        parse_args(fn, ["--b", "1"])


def test_a_positional_argument_that_nobody_takes() -> None:
    """The hint suggests the most similar option."""
    with pytest.raises(SpecError, match="does not take the positional argument `hello`") as e:
        parse_args(echo, ["hello"])
    assert e.value.hint == "did you mean `--msg hello`?"


def test_precedence() -> None:
    """The command line takes precedence over config, config over defaults, defaults over the function."""
    defaults = {"lr": "1", "nnodes": "2", "mode": "slow", "env": "A=1"}
    config = {"lr": 2.0, "nnodes": 3}
    found = values("--lr", "3", cmpnt_defaults=defaults, config=config)
    assert (found["lr"], found["nnodes"], found["mode"], found["env"], found["debug"]) == (
        3.0,
        3,
        "slow",
        {"A": "1"},
        False,
    )


def test_arguments_as_a_dict() -> None:
    """Values may be typed or text; `*args` are given by name."""
    given_ = {
        "image": "i",
        "env": {"A": 1},
        "nnodes": "2",
        "script-args": ["--x", "1"],
        "mounts": ["a", "b,c"],
        "h": None,
    }
    found = vars(parse_args(trainer, [], config=given_))
    assert found["env"] == {"A": "1"}
    assert found["nnodes"] == 2
    assert found["script_args"] == ["--x", "1"]
    assert found["mounts"] == ["a", "b,c"]
    assert values(config={"script_args": "--msg 'a b'"})["script_args"] == ["--msg", "a b"]
    assert values("x", config={"script_args": ["y"]})["script_args"] == ["x"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"imag": "x"}, "has no argument `imag`"),
        ({"nnodes": 1.5}, "`1.5` is not an int"),
        ({"nnodes": None}, "`None` is not a value"),
        ({"env": ["A"]}, "is not of type"),
        ({"script_args": 1}, "`1` is not a list"),
        ({"script_args": "'open"}, "cannot be split"),
    ],
)
def test_wrong_dicts(config: dict[str, Any], message: str) -> None:
    """Invalid values and names in a dict raise the same errors as on the command line."""
    with pytest.raises(SpecError, match=message):
        values(config=config)


def test_an_unknown_default_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """A configured default for an unknown argument causes a warning, not an error."""
    with caplog.at_level(logging.WARNING, "torchx"):
        assert values(cmpnt_defaults={"nnode": "2"})["nnodes"] == 1
    assert "no argument `nnode`" in caplog.text
    assert "did you mean `nnodes`?" in caplog.text


def test_component_args() -> None:
    """Parameters before `*args`, `*args`, and parameters after them are distinguished."""
    args = component_args_from_str(trainer, ["--image", "i", "--lr", "1", "a"])
    assert list(args.positional_args.items()) == [("image", "i"), ("nnodes", 1)]
    assert args.var_args == ["a"]
    assert args.kwargs["lr"] == 1.0
    assert ComponentArgs({"a": 1}, [], {}).positional_args == {"a": 1}


def test_materialize_calls_the_component() -> None:
    """Every value arrives at its parameter."""
    seen: dict[str, Any] = {}

    def fn(a: str, b: int = 1, *rest: int, c: bool = False) -> AppDef:
        seen.update(a=a, b=b, rest=rest, c=c)
        return app()

    assert materialize_appdef(fn, ["--c", "--a", "x", "1", "2"]) == app()
    assert seen == {"a": "x", "b": 1, "rest": (1, 2), "c": True}


def raises() -> AppDef:
    options: dict[str, AppDef] = {}
    return options["key"]


def returns_text() -> AppDef:
    return "x"  # type: ignore[return-value]  # on purpose


def returns_nothing_to_run() -> AppDef:
    return AppDef("a")


def complains() -> AppDef:
    raise SpecError("`x` is wrong", hint="y")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (raises, r"component `raises` raised KeyError: 'key' at .*test_builders.py:\d+"),
        (returns_text, r"component `returns_text` \(.*test_builders.py:\d+\) returned `str`, not an AppDef"),
        (returns_nothing_to_run, r"\(.*test_builders.py:\d+\) returned an AppDef with no roles"),
        (complains, "`x` is wrong"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_components_that_fail(fn: Any, message: str) -> None:
    """The error for a failing component has its name, file and line."""
    with pytest.raises(SpecError, match=message) as e:
        materialize_appdef(fn, [])
    assert e.value.hint


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (trainer, []),
        (trainer, ["--lr", "x"]),
        (trainer, ["--lrr", "1"]),
        (echo, ["hi"]),
        (raises, []),
        (returns_text, []),
    ],
    ids=["missing", "type", "unknown", "positional", "raises", "returns"],
)
def test_messages_call_a_component_as_the_user_did(fn: Any, words: list[str]) -> None:
    """The message and the hint contain the component name as typed, with the file."""
    with pytest.raises(SpecError) as e:
        materialize_appdef(fn, words, name="my/comp.py:fn")
    assert "component `my/comp.py:fn`" in e.value.message
    assert "torchx run " not in (e.value.hint or "") or "torchx run my/comp.py:fn " in e.value.hint


def test_help_calls_a_component_as_the_user_did(capsys: pytest.CaptureFixture[str]) -> None:
    """The help page contains the component name as typed, too."""
    with pytest.raises(SystemExit):
        materialize_appdef(trainer, ["--help"], name="my/comp.py:fn")
    assert capsys.readouterr().out.startswith("usage: torchx run <run options> my/comp.py:fn --image")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` prints the docstring and each argument with type and default, and exits with 0."""
    with pytest.raises(SystemExit) as e:
        materialize_appdef(trainer, ["--help"])
    assert e.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: torchx run <run options> trainer --image IMAGE")
    for part in ("Trains.", "float. learning rate, 5% or so (default: 0.1)", "-cn", "str. the image (required)"):
        assert part in text, part
    assert "arguments of the 100% script" in text


def sized(n: int = 1, dry: bool = False) -> AppDef:
    """Makes it ``n`` times.

        torchx run file.py:sized -n 3
        torchx run file.py:sized

    Args:
        n: how often; ``0`` for never
        dry: only say so
    """
    return app()


def test_help_is_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Examples keep their indent, double backticks become single, and a bool shows that its value is optional."""
    with pytest.raises(SystemExit):
        materialize_appdef(sized, ["--help"])
    text = capsys.readouterr().out
    assert "\nMakes it `n` times.\n\n    torchx run file.py:sized -n 3\n    torchx run file.py:sized\n\n" in text
    assert "[--dry [true|false]]" in text
    assert "how often; `0` for never (default: 1)" in text


def test_h_is_help_unless_the_component_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    """`-h` is a named resource where the component has one; elsewhere it prints the help."""
    with pytest.raises(SystemExit):
        materialize_appdef(echo, ["-h"])
    assert "--msg MSG" in capsys.readouterr().out
    assert values("-h", "cpu.small")["h"] == "cpu.small"


def test_an_argument_named_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` is then the argument, and `-h` prints the page."""

    def aid(help: str = "none") -> AppDef:
        return AppDef(help, [Role("r", image="i")])

    assert materialize_appdef(aid, ["--help", "me"]).name == "me"
    with pytest.raises(SystemExit):
        materialize_appdef(aid, ["-h"])
    assert "--help HELP" in capsys.readouterr().out


def test_help_of_the_script_is_not_ours() -> None:
    """After `--`, or after the first positional word, `--help` is passed to the script."""
    assert values("--", "--help")["script_args"] == ["--help"]
    assert values("ls", "--help")["script_args"] == ["ls", "--help"]


@given(st.lists(st.text()))
def test_words_after_two_dashes_arrive_as_they_are(words: list[str]) -> None:
    """Words after `--` are passed on unchanged."""
    assert values("--", *words)["script_args"] == words


@given(st.lists(st.text(alphabet="-=hjlrmodenv,\"' 1{[Aé"), max_size=6))
def test_any_command_line_is_read_or_refused(words: list[str]) -> None:
    """Any command line gives values, a SpecError or the help."""
    try:
        parse_args(trainer, words)
    except SpecError as e:
        assert str(e)


@given(st.text(), st.dictionaries(st.text(min_size=1), st.text()))
def test_values_of_a_dict_arrive_as_they_are(text: str, env: dict[str, str]) -> None:
    """Typed values of run_component are not parsed again."""
    found = values(config={"config_name": text, "env": env})
    assert (found["config_name"], found["env"]) == (text, env)


def test_reexports() -> None:
    """Programs can import two helpers from here."""
    assert make_app_handle("s", "x", "a") == "s://x/a"
    assert len(parse_mounts(["type=bind", "src=/a", "dst=/b"])) == 1


class Color(Enum):
    """A choice."""

    RED = "r"
    BLUE = 2


@dataclasses.dataclass
class Opt:
    """A group of options."""

    lr: float = 0.1
    betas: list[float] = dataclasses.field(default_factory=lambda: [0.9])

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError("lr is negative")


@dataclasses.dataclass
class Model:
    """A group with a group in it."""

    layers: int
    opt: Opt = dataclasses.field(default_factory=Opt)
    color: Color = Color.RED


FIVE = Opt(lr=5.0)


def grouped(model: Model, c: Color = Color.BLUE, opt: Opt = FIVE, *args: str, z: int = 0) -> AppDef:
    """Take data classes and a choice."""
    return AppDef("a", [Role("r", "", entrypoint="e", args=[repr((model, c, opt, args, z))])])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model.layers", "3"], (Model(3), Color.BLUE, Opt(5.0), (), 0)),
        (
            [
                "--model.layers=3",
                "--model.opt.lr",
                "0.5",
                "--model.color",
                "2",
                "--c",
                "RED",
                "--opt.betas",
                "1,2",
                "--",
                "x",
            ],
            (Model(3, Opt(0.5), Color.BLUE), Color.RED, Opt(5.0, [1.0, 2.0]), ("x",), 0),
        ),
    ],
)
def test_data_classes_are_groups_of_options(words: list[str], expected: tuple[Any, ...]) -> None:
    """Each field is an option, with the default of the argument or of the class; members of an Enum by name or value."""
    assert materialize_appdef(grouped, words).roles[0].args == [repr(expected)]
    defaults = {"model.layers": 3, "c": Color.BLUE}
    assert materialize_appdef(grouped, words, defaults).roles[0].args == [repr(expected)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs `--model.layers`"),
        (["--model.layers", "x"], "`x` is not an int"),
        (["--model.layers", "1", "--model.nope", "1"], "no argument `--model.nope`"),
        (["--model.layers", "1", "--c", "GREEN"], "`GREEN` is not one of `RED`, `BLUE`"),
        (["--model.layers", "1", "--opt.lr", "-1"], "`--opt`: lr is negative"),
    ],
)
def test_wrong_fields_of_data_classes(words: list[str], said: str) -> None:
    """The error names the option."""
    with pytest.raises(SpecError, match=said):
        materialize_appdef(grouped, words)
