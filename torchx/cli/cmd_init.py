"""``torchx init``: write the files of a new project."""

from __future__ import annotations

import argparse
import os

from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import note
from torchx.errors import ConfigError
from torchx.util.shlex import join

_FILES = {"train.py": "train.txt", "component.py": "component.txt", ".torchxconfig": "torchxconfig.txt"}
_HELP = """\
Writes train.py, a small training script; component.py, which describes its job; and .torchxconfig, which makes
`torchx run` in that folder launch the component:

  torchx init my_project && cd my_project
  torchx run                                           two workers on this machine
  torchx run component.py:train -j 2x8 -- --lr 0.3     other arguments
  torchx run -s slurm --dryrun                         what a cluster would get

Existing files are never overwritten."""
_NEXT = """\
  torchx run                           train.py with two workers, on this machine
  torchx run -s slurm -j 2x8 --gpu 8   on a cluster, 2 nodes with 8 GPUs; add --dryrun to preview it
  torchx status · torchx log           how it ended, and what it wrote"""


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
        from importlib.util import find_spec

        note(f"\nNext{'' if args.folder == '.' else f': cd {join([args.folder])}, then'}:\n{_NEXT}")
        if find_spec("torch") is None:
            note("\ntrain.py needs PyTorch, which this Python does not have: pip install torch")
