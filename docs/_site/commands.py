"""The command line, from its parsers."""

from __future__ import annotations

import argparse

from _site.markdown import definition, fence, sentence


def page() -> str:
    """Returns each verb in the order of ``torchx --help``, with its arguments."""
    from torchx.cli import commands
    from torchx.cli.main import create_parser, get_default_sub_cmds

    verbs = {name: command for name, command in get_default_sub_cmds().items() if not name.startswith("_")}
    parsers = _choices(create_parser(verbs))
    parts = []
    for name in verbs:
        parts.append(f"## `torchx {name}`\n\n{sentence(commands.VERBS[name].help)}\n")
        parts.append(_arguments(parsers[name]))
        for nested, parser in _choices(parsers[name]).items():
            parts.append(f"### `torchx {name} {nested}`\n\n{sentence(parser.description or '')}\n")
            parts.append(_arguments(parser))
    return "\n".join(parts)


def exit_codes() -> str:
    from torchx.cli.failures import EXIT_CODES

    return fence("text", EXIT_CODES.partition("\n")[2])


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _arguments(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=88)
    rows = [fence("text", parser.format_usage().removeprefix("usage: ").replace("\n       ", "\n"))]
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        rows.append(definition(_term(action), _help(parser, action)))
    return "\n".join(rows)


def _term(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    value = value if isinstance(value, str) else " ".join(value)
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(
        f"`{flag} {value}`" if value and action.nargs != 0 else f"`{flag}`" for flag in action.option_strings
    )


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    said = sentence((action.help or "") % {**vars(action), "prog": parser.prog})
    if action.choices:
        said += " One of " + ", ".join(f"`{choice}`" for choice in action.choices) + "."
    return said
