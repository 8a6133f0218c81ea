"""``torchx init``: write the files of a new project."""

from __future__ import annotations

import argparse
import os

from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import note
from torchx.errors import ConfigError

_FILES = {"train.py": "train.txt", "component.py": "component.txt", ".torchxconfig": "torchxconfig.txt"}
_HELP = """\
Writes train.py, a small training script; component.py, which describes its job; and .torchxconfig, which makes
`torchx run` in that folder launch the component:

  torchx init my_project && cd my_project
  torchx run                                           two workers on this machine
  torchx run component.py:train -j 2x8 -- --lr 0.3     other arguments
  torchx run -s slurm --dryrun                         what a cluster would get

Existing files are never overwritten."""


class CmdInit(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        subparser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="default: the current folder")

    def run(self, args: argparse.Namespace) -> None:
        there = [name for name in _FILES if os.path.lexists(os.path.join(args.folder, name))]
        if there:
            raise ConfigError(
                f"`{os.path.join(args.folder, there[0])}` already exists", hint="write `torchx init NEW_DIR`"
            )
        os.makedirs(args.folder, exist_ok=True)
        for name, template in _FILES.items():
            with open(os.path.join(os.path.dirname(__file__), "start", template), encoding="utf-8") as file:
                text = file.read()
            path = os.path.join(args.folder, name)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
            print(os.path.normpath(path))
        note(f"{'' if args.folder == '.' else f'cd {args.folder} · '}torchx run · torchx run --dryrun -s slurm")
