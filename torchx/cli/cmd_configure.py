"""``torchx configure``: write a ``.torchxconfig`` to fill in."""

from __future__ import annotations

import argparse
import io
import os
import sys

from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import note
from torchx.config import CONFIG_FILE, dump, load_files
from torchx.errors import ConfigError
from torchx.util.reexports import reexports

reexports(__name__)


class CmdConfigure(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        add = subparser.add_argument
        add("-s", "--schedulers", metavar="NAME,...", help="only these schedulers")
        add("-a", "--all", action="store_true", help="all options, not only the required ones")
        add("-p", "--print", action="store_true", help="print to stdout instead of writing the file")
        add("-t", "--trust", action="store_true", help="let the .torchxconfig here run the programs that it names")
        add("-f", "--force", action="store_true", help="overwrite an existing file")

    def run(self, args: argparse.Namespace) -> None:
        path = os.path.join(os.getcwd(), CONFIG_FILE)
        if args.trust:
            from torchx.config.trust import trust

            load_files()
            trust(path)
            print(path)
            return
        names = [name.strip() for name in args.schedulers.split(",") if name.strip()] if args.schedulers else None
        text = io.StringIO()
        dump(text, schedulers=names, required_only=not args.all)
        if args.print:
            print(text.getvalue().rstrip("\n"))
            return
        try:
            # `x` checks and creates atomically; a check before could race with another writer.
            with open(path, "w" if args.force else "x", encoding="utf-8") as file:
                file.write(text.getvalue())
        except FileExistsError:
            raise ConfigError(
                f"`{path}` already exists", hint="`--print` shows the new content, `--force` overwrites the file"
            ) from None
        if sys.stderr.isatty():
            note("fill in the values marked FIXME; `torchx runopts` explains the options")
        print(path)
