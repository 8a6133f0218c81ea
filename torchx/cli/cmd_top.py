"""``torchx top``: show runs full screen in the terminal."""

from __future__ import annotations

import argparse
import os
import sys

from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import UsageError
from torchx.errors import MissingDependencyError, install_extra
from torchx.util.term import is_tty

__all__ = ["CmdTop"]


class CmdTop(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = "Press `?` for the keys, and `q` to quit. Jobs continue to run."

    def run(self, args: argparse.Namespace) -> None:  # noqa: ARG002  # a verb's signature
        if not (is_tty(sys.stdin) and is_tty(sys.stdout)) or os.environ.get("TERM", "") in ("", "dumb"):
            raise UsageError("`torchx top` needs a terminal", hint="in a pipe, use `torchx list` or `torchx watch`")
        try:
            from torchx.ui.top.app import Top
        except ImportError as e:
            name = str(e.name).partition(".")[0]
            raise MissingDependencyError(f"`torchx top` needs the package `{name}`", hint=install_extra("top")) from e
        from torchx.runner import get_runner

        with get_runner() as runner:
            Top(runner).run()
