"""``torchx __complete``: the back end of the completion scripts."""

from __future__ import annotations

import argparse
import os
import shlex

from torchx.cli.cmd_base import SubCommand
from torchx.cli.completion import candidates


class CmdComplete(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("shell", choices=["bash", "zsh", "fish"])
        subparser.add_argument("words", nargs=argparse.REMAINDER, help="words after `torchx`; the last is completed")

    def run(self, args: argparse.Namespace) -> None:
        """Prints a candidate per line; for zsh and fish followed by a tab and a description."""
        bash = args.shell == "bash"
        words = args.words[1:] if args.words[:1] == ["--"] else args.words
        if bash and not words:
            words = split_line(os.environ.get("TORCHX_COMP_LINE", ""))[1:]
        words = words or [""]
        try:
            found = candidates(words)
        except Exception:  # the user only pressed Tab: errors are reported when the line is run
            if os.environ.get("TORCHX_DEBUG"):
                raise
            return
        cut = len(_typed_before_break(words[-1])) if bash else 0
        for value, description in found:
            print(_quoted(value[cut:]) if bash else f"{value}\t{description}" if description else value)


def split_line(line: str) -> list[str]:
    """Splits an unfinished shell line into words; the last one is empty after a blank.

    >>> split_line("torchx log 'a b' --x")
    ['torchx', 'log', 'a b', '--x']
    >>> split_line("torchx log ")
    ['torchx', 'log', '']
    """
    for closing in ("", "'", '"'):  # the last word may have an open quote
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        if not closing and (not line or line[-1] in " \t") and not line.endswith("\\ "):
            words.append("")
        return words
    return line.split()


def _typed_before_break(word: str) -> str:
    """Returns the part of a word that bash keeps on the line, because `:` and `=` separate words there."""
    breaks = os.environ.get("TORCHX_COMP_BREAKS", ":=")
    last = max((word.rfind(c) for c in ":=" if c in breaks), default=-1)
    return word[: last + 1]


def _quoted(value: str) -> str:
    return value if all(c.isalnum() or c in "@%+=:,./-_" for c in value) else shlex.quote(value)
