"""Entry point of the command line: finds the verb, builds only its parser and runs it."""

from __future__ import annotations

import os
import sys

from torchx.cli import commands, failures
from torchx.cli.failures import UsageError
from torchx.errors import TorchXError
from torchx.util import notices
from torchx.util.colors import BLUE, ENDC, GRAY
from torchx.util.strings import did_you_mean
from torchx.util.term import has_color
from torchx.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from torchx.cli.cmd_base import SubCommand

__all__ = [
    "BLUE",
    "ENDC",
    "GRAY",
    "create_parser",
    "get_default_sub_cmds",
    "get_sub_cmds",
    "main",
    "run_main",
    "sub_parser_description",
]

sub_parser_description = """Use the following commands to run operations, e.g.:
torchx run ${JOB_NAME}
"""

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def main(argv: list[str] | None = None) -> None:
    """Run the ``torchx`` command.

    Args:
        argv: the arguments after the program name; default: ``sys.argv[1:]``.

    Raises:
        SystemExit: the exit code is not 0. ``torchx --help`` lists the codes.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    torchx ...
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    _reopen_closed_streams()
    _replace_unencodable_characters()
    if code := failures.guard(lambda: _dispatch(arguments)):
        sys.exit(code)


def run_main(subcmds: dict[str, SubCommand], argv: list[str] | None = None) -> None:
    """Run a command line with custom verbs; otherwise like :func:`main`."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if code := failures.guard(lambda: _run(subcmds, arguments)):
        sys.exit(code)


def create_parser(subcmds: dict[str, SubCommand]) -> argparse.ArgumentParser:
    """Return a parser for these verbs. The parsed namespace holds the verb's ``run`` as ``func``."""
    from torchx.cli.argparse_util import Parser

    parser = Parser(
        prog="torchx",
        description="Describe a job once in Python, run it anywhere, and always know how it ended.",
        epilog=failures.EXIT_CODES,
    )
    parser.add_argument("--log_level", "--log-level", type=_log_level, metavar="LEVEL", help=", ".join(LOG_LEVELS))
    parser.add_argument("--version", action="version", version=f"torchx {__version__}")
    about = sub_parser_description
    rows = parser.add_subparsers(title="sub-commands", description=about, metavar="COMMAND", prog=parser.prog)
    for name, command in subcmds.items():
        row = commands.VERBS.get(name)
        line = row.help if row else help_line(command)
        line = line.replace("%", "%%")  # argparse formats help texts
        if name.startswith("_"):
            subparser = rows.add_parser(name, description=line)  # argparse does not list it without `help`
        else:
            subparser = rows.add_parser(name, description=line, help=line)
        # Set before `add_arguments`: a verb with subcommands overrides `func`.
        subparser.set_defaults(func=command.run, _parser=subparser)
        command.add_arguments(subparser)
    return parser


def get_default_sub_cmds() -> dict[str, SubCommand]:
    """Return the built-in verbs by name."""
    return {name: commands.builtin(name) for name in commands.VERBS}


def get_sub_cmds() -> dict[str, SubCommand]:
    """Return built-in and plugin verbs by name. Warns of a verb that cannot be loaded and omits it."""
    found = {}
    for name in commands.names(hidden=True):
        try:
            found[name] = commands.find(name)
        except TorchXError as e:
            failures.warn(str(e))
    return found


def help_line(command: object) -> str:
    """Return the first line of the docstring of a verb's class."""
    lines = (type(command).__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def _dispatch(argv: list[str]) -> None:
    """Handle ``--help`` and ``--version`` without a parser, and everything else with the parser of one verb."""
    globals_, rest = _split(argv)
    if any(arg in ("-h", "--help") for arg in globals_) or not argv or rest == ["help"]:
        print(commands.help_page(color=has_color(sys.stdout)))
    elif "--version" in globals_:
        print(f"torchx {__version__}")
    elif rest[:1] == ["help"]:
        _dispatch([*rest[1:], "--help"])
    elif not rest:
        raise UsageError("no command is given", hint="`torchx --help` lists them")
    elif rest[0] not in commands.registry():
        hint = commands.ELSEWHERE.get(rest[0]) or did_you_mean(rest[0], commands.names())
        hint = hint or "`torchx --help` lists the commands"
        raise UsageError(f"unknown command `{rest[0]}`", hint=hint)
    else:
        _run({rest[0]: commands.find(rest[0])}, argv)


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the options before the verb, and the verb with its arguments."""
    at = commands.verb_at(argv)
    for arg in argv[:at]:
        known = ("-h", "--help", "--version", "--log_level", "--log-level")
        if arg.startswith("-") and arg.partition("=")[0] not in known:
            hint = did_you_mean(arg, ("--help", "--version", "--log_level"))
            raise UsageError(f"unknown option `{arg}`", hint=hint or "options of a command go after it")
    return argv[:at], argv[at:]


def _run(subcmds: dict[str, SubCommand], argv: list[str]) -> None:
    from torchx.util.secrets import learn_environment

    parser = create_parser(subcmds)
    args = parser.parse_args(argv)
    ours = all(type(command).__module__.startswith("torchx.") for command in subcmds.values())
    _set_up_logging(getattr(args, "log_level", None), at_once=not ours)  # verbs of others may log by themselves
    if not hasattr(args, "func"):
        parser.print_help()
        return
    learn_environment(words=False)
    args.func(args)


def _set_up_logging(level: str | None, *, at_once: bool) -> None:
    """Show log records as ``torchx: warning: ...`` on stderr.

    Without an explicit level, and unless ``at_once``, the handler is installed when the first notice is due.
    """
    failures.show_tracebacks(level == "DEBUG")

    def install() -> None:
        from torchx.cli import log_records

        log_records.install(level or "WARNING")

    notices.before_first(install)
    if at_once or level is not None:
        notices.ready()


def _log_level(text: str) -> str:
    if text.upper() in LOG_LEVELS:
        return text.upper()
    hint = did_you_mean(text.upper(), LOG_LEVELS) or f"one of: {', '.join(LOG_LEVELS)}"
    raise UsageError(f"`--log_level`: `{text}` is not a log level", hint=hint)


def _reopen_closed_streams() -> None:
    """Open /dev/null in place of a closed standard stream (`>&-`), so that no file of ours gets its descriptor."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
            pass
        os.close(fd)
        sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _replace_unencodable_characters() -> None:
    """Write ``?`` for characters that the encoding of stdout lacks, instead of failing."""
    out = sys.stdout
    if out is sys.__stdout__ and getattr(out, "errors", "") in ("strict", "surrogateescape"):
        out.reconfigure(errors="replace")  # type: ignore[union-attr]  # sys.__stdout__ is a TextIOWrapper


if __name__ == "__main__":
    main()
