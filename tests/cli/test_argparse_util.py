"""Options given once, options with defaults in the config file, errors that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx.cli.argparse_util import (
    ArgOnceAction,
    Parser,
    parse_moment,
    torchxconfig,
    torchxconfig_list,
    torchxconfig_run,
)
from torchx.cli.failures import UsageError
from torchx.util.spans import parse_span


def test_once() -> None:
    """A second value is an error. A parser may parse twice."""
    parser = Parser(prog="x")
    parser.add_argument("--a", action=ArgOnceAction, type=int, default=7)
    assert parser.parse_args([]).a == 7
    assert parser.parse_args(["--a", "1"]).a == 1
    assert parser.parse_args(["--a", "2"]).a == 2
    with pytest.raises(UsageError, match="`--a` is given more than once"):
        parser.parse_args(["--a", "1", "--a", "1"])


@pytest.mark.parametrize("action", [torchxconfig_run, torchxconfig_list], ids=["run", "list"])
def test_default_from_config(project: Path, action: type[torchxconfig]) -> None:
    """The key in the verb's section is the default, also of a required option; the command line overrides it."""
    verb = "run" if action is torchxconfig_run else "list"
    (project / ".torchxconfig").write_text(f"[cli:{verb}]\nscheduler = slurm\ncount = 3\n")
    parser = Parser()
    parser.add_argument("--scheduler", action=action, required=True)
    parser.add_argument("--count", action=action, type=int, default=1)
    parser.add_argument("--other", action=action, default="fallback")
    args = parser.parse_args([])
    assert (args.scheduler, args.count, args.other) == ("slurm", 3, "fallback")
    assert parser.parse_args(["--scheduler", "lsf"]).scheduler == "lsf"


def test_required_without_config(project: Path) -> None:
    """A required option that is neither given nor configured is an error."""
    parser = Parser()
    parser.add_argument("--scheduler", action=torchxconfig_run, required=True)
    with pytest.raises(UsageError, match="--scheduler"):
        parser.parse_args([])


def test_section_of_any_verb(project: Path) -> None:
    """The verb of a plugin has its own section."""
    (project / ".torchxconfig").write_text("[cli:hello]\nname = world\n")
    assert torchxconfig(subcmd="hello", dest="name", option_strings=["--name"]).default == "world"


def test_abbreviations_are_refused() -> None:
    """A prefix of an option is rejected like a typo."""
    parser = Parser()
    parser.add_argument("--follow", action="store_true")
    with pytest.raises(UsageError) as e:
        parser.parse_args(["--foll"])
    assert e.value.hint == "did you mean `--follow`?"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("2 days", 172800),
        ("1.5h", 5400),
        ("1w", 604800),
        ("5 min ago", 300),
    ],
)
def test_spans(text: str, seconds: float) -> None:
    """Time spans with units are parsed."""
    assert parse_span(text) == seconds
    assert parse_moment(text, now=1_000_000.0) == 1_000_000.0 - seconds


@pytest.mark.parametrize("text", ["", "10", "m", "soon", "2026-13-01", "-5m", "1e400d", "9" * 400 + "d"])
def test_no_moments(text: str) -> None:
    """Other texts are an error that names the text."""
    with pytest.raises(UsageError, match="is not a time"):
        parse_moment(text)
