"""Argument parsing: errors with hints, options that may be given once, times, defaults from ``.torchxconfig``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from torchx.cli.failures import UsageError
from torchx.errors import TorchXError
from torchx.util.strings import did_you_mean
from torchx.util.term import has_color, width

Row = tuple[str, str, str] | tuple[str, str, str, dict[str, Any]]
CFG, CFG_ROW = "K=V,...", {"action": "append", "dest": "cfg"}
OPTIONAL = ("--check-nodes", "--only-checks")
"""An option, and what it stands for with ``=VALUE``."""
JSON: Row = ("--json", "", "one JSON document, for programs")


class Parser(argparse.ArgumentParser):
    """``ArgumentParser`` that raises :class:`UsageError`, with the nearest option as hint.

    Abbreviated options are rejected: an abbreviation breaks when a second option gets the same prefix.

    >>> parser = Parser(prog="torchx run")
    >>> _ = parser.add_argument("--wait", action="store_true")
    >>> parser.parse_args(["--wiat"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    torchx.cli.failures.UsageError: unknown option `--wiat`...
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Formatter)
        kwargs.setdefault("allow_abbrev", False)
        add_help = kwargs.get("add_help", True)
        kwargs["add_help"] = False  # ours is worded differently
        super().__init__(*args, **kwargs)
        self.color = False  # argparse of Python 3.14 would colour the page a second time
        if add_help:
            self.add_argument("-h", "--help", action="help", help="print this page")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            raise self.unexpected(left, parsed)
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read an option with an optional value, which argparse would take from the next word."""
        option, with_value = OPTIONAL
        if option in self._option_string_actions:
            words, rest = list(sys.argv[1:] if args is None else args), []
            if "--" in words:
                words, rest = words[: words.index("--")], words[words.index("--") :]
            same = (option + "=", option.replace("-", "_").replace("__", "--", 1) + "=")
            found = [f"{with_value}={w.partition('=')[2]}" if w.startswith(same) else w for w in words]
            args = [*found, *rest]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        missing = message.partition("required: ")[2]
        if missing.startswith("JOB"):
            raise UsageError("no job is given", hint="`@last` is the newest run; `torchx list` lists them all")
        raise self._usage_error(message)

    def unexpected(self, left: list[str], parsed: argparse.Namespace | None = None) -> UsageError:
        parser = getattr(parsed, "_parser", None) or self
        option = next((arg for arg in left if arg.startswith("-") and len(arg) > 1), None)
        if option is None:
            return parser._usage_error(f"unexpected argument{'s' * (len(left) > 1)} `{' '.join(left)}`")
        name = option.partition("=")[0]
        if name in ("--log_level", "--log-level", "--version"):
            return UsageError(f"`{name}` goes before the command", hint=f"write `torchx {name} ...`")
        foreign = parser.elsewhere(name if name.startswith("--") else name[:2])
        hints = [foreign or did_you_mean(name, parser._option_string_actions)]
        if component := parser.default_component():
            hints.append(f"arguments of the default component `{component}` go after `--`: `torchx run -- {name} ...`")
        return parser._usage_error(f"unknown option `{name}`", "; ".join(filter(None, hints)))

    def elsewhere(self, option: str) -> str:
        """Return the hint for an option of another tool; empty if none is known, or this parser is of another verb."""
        if not self._runs_components():
            return ""
        from torchx.cli.foreign_options import RUN

        return RUN.get(option, "")

    def default_component(self) -> str:
        """Return the component of the config files; empty if there is none, or this parser is of another verb."""
        if not self._runs_components():
            return ""
        from torchx.config.files import active_profile, load_files

        found = load_files().section("cli:run", active_profile()).get("component")
        return found.text if found is not None else ""

    def _runs_components(self) -> bool:
        return any(action.dest == "component_name_and_args" for action in self._actions)

    def _usage_error(self, message: str, hint: str = "") -> UsageError:
        return UsageError(message, hint=hint or f"`{self.prog} --help` shows how it is used")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        convert = self._registry_get("type", action.type, action.type)
        try:
            return convert(arg_string)
        except TorchXError:
            raise  # its message is more specific than ours
        except argparse.ArgumentTypeError as e:
            problem = str(e)
        except (TypeError, ValueError):
            problem = f"`{arg_string}` is not a valid {getattr(action.type, '__name__', 'value')}"
        raise self._usage_error(f"`{_name(action)}`: {problem}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        message = f"`{_name(action)}`: `{value}` is not one of {', '.join(choices)}"
        only = (
            f"did you mean `{self.prog} {choices[0]} {value}`?"
            if len(choices) == 1 and not action.option_strings
            else ""
        )
        raise self._usage_error(message, only or did_you_mean(str(value), choices))


class ArgOnceAction(argparse.Action):
    """An option that may be given once: a second value is an error, instead of silently replacing the first.

    >>> parser = Parser()
    >>> _ = parser.add_argument("--scheduler", action=ArgOnceAction)
    >>> parser.parse_args(["--scheduler", "a", "--scheduler", "b"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    torchx.cli.failures.UsageError: `--scheduler` is given more than once...
    """

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None) -> None:
        # Recorded on the namespace, because a parser may parse more than once.
        given = namespace.__dict__.setdefault("_given_once", set())
        if self.dest in given:
            raise UsageError(f"`{_name(self)}` is given more than once", hint="leave one of them out")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def declare(parser: argparse.ArgumentParser, rows: Iterable[Row], *, sparse: bool = False) -> None:
    """Declare arguments and options.

    Args:
        rows: for each the spellings, the metavar (empty: a flag), the help, and further arguments of ``add_argument``.
        sparse: options may be given once and have no defaults: an option that was not given is not in the namespace.
    """
    for names, metavar, text, *more in rows:
        kind: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        if sparse:
            kind = {"action": ArgOnceAction, **kind, "default": argparse.SUPPRESS}
        for given in more:
            kind.update(given)
        parser.add_argument(*names.split(), help=text, **kind)


def parse_moment(text: str, *, now: float | None = None) -> float:
    """Parse a time span before now, or a date and time (local time unless it has a zone), into a Unix time.

    >>> parse_moment("10m", now=1000.0), parse_moment("2026-11-21T08:00:00Z")
    (400.0, 1795248000.0)
    """
    from datetime import datetime

    from torchx.util.spans import parse_span

    span = parse_span(text)
    try:
        if span is not None:
            return datetime.fromtimestamp((time.time() if now is None else now) - span).timestamp()
        stripped = text.strip()
        # Python 3.10 does not read the `Z` of UTC.
        return datetime.fromisoformat(stripped[:-1] + "+00:00" if stripped[-1:] in ("Z", "z") else stripped).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"`{text}` is not a time",
            hint="write how long ago (`90s`, `10m`, `2h`, `1d`), or a time (`2026-11-21T08:00`, with `Z` for UTC)",
        ) from None


class torchxconfig(argparse.Action):  # noqa: N801  # the name is fixed by the public interface
    """An option whose default is the key ``dest`` of the section ``[cli:<subcmd>]`` in ``.torchxconfig``.

    ``required`` and ``default`` apply when the file lacks the key.
    """

    def __init__(
        self,
        subcmd: str,
        dest: str,
        option_strings: Sequence[str],
        required: bool = False,
        default: Any = None,
        **kwargs: Any,
    ) -> None:
        from torchx.config import get_config

        configured = get_config(prefix="cli", name=subcmd, key=dest)
        if configured is not None:
            default, required = configured, False
        super().__init__(option_strings, dest, default=default, required=required, **kwargs)

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None) -> None:
        setattr(namespace, self.dest, values)


class torchxconfig_run(torchxconfig):  # noqa: N801  # the name is fixed by the public interface
    """:class:`torchxconfig` of ``[cli:run]``."""

    def __init__(
        self, dest: str, option_strings: Sequence[str], required: bool = False, default: Any = None, **kwargs: Any
    ) -> None:
        super().__init__("run", dest, option_strings, required, default, **kwargs)


class torchxconfig_list(torchxconfig):  # noqa: N801  # the name is fixed by the public interface
    """:class:`torchxconfig` of ``[cli:list]``."""

    def __init__(
        self, dest: str, option_strings: Sequence[str], required: bool = False, default: Any = None, **kwargs: Any
    ) -> None:
        super().__init__("list", dest, option_strings, required, default, **kwargs)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Formats help for the width of the terminal, 100 columns at most, with bold headings."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        kwargs["max_help_position"] = 30
        kwargs["width"] = min(width(sys.stdout), 100) - 2
        super().__init__(prog, **kwargs)

    if sys.version_info >= (3, 14):
        # `_set_color` imports `dataclasses` (14 ms), so it is called only when a page is formatted.
        def _set_color(self, color: bool, **_: Any) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name not in ("_theme", "_decolor"):
                raise AttributeError(name)
            super()._set_color(False)
            return self.__dict__[name]

    def start_section(self, heading: str | None) -> None:
        super().start_section(_heading(heading) if heading else heading)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, f"{_heading('usage:')} " if prefix is None else prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show one spelling of each option; the others work too."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        spellings = {option.lstrip("-").replace("_", "-"): option for option in reversed(action.option_strings)}
        short = [o for o in spellings.values() if not o.startswith("--")]
        long = [o for o in action.option_strings if o.startswith("--")]
        names = ", ".join([*sorted(short, key=len), *long[:1]])
        value = "" if action.nargs == 0 else " " + self._format_args(action, action.dest.upper())
        return names + value


def _heading(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return f"\033[1m{text}\033[0m" if has_color(sys.stdout) else text


def _name(action: argparse.Action) -> str:
    """Return the name of an option or argument as the user writes it."""
    if action.option_strings:
        return "/".join(action.option_strings)
    return str(action.metavar or action.dest).strip("[]")
