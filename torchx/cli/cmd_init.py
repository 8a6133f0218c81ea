"""``torchx init``: write the files of a new project."""

from __future__ import annotations

import argparse
import os

from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import note
from torchx.cli.render import document
from torchx.errors import ConfigError
from torchx.schedulers import get_scheduler_factories
from torchx.util.shlex import join

_FILES = {"train.py": "train.txt", "component.py": "component.txt", ".torchxconfig": "torchxconfig.txt"}
_HELP = """\
Writes train.py, a small training script; component.py, which describes its job; and .torchxconfig, which makes
`torchx run` in that folder launch the component:

  torchx init my_project && cd my_project
  torchx run                                           two workers on this machine
  torchx run component.py:train -j 2x8 -- --lr 0.3     other arguments
  torchx run -s slurm --dryrun                         what a cluster would get

Existing files are never overwritten.

`torchx init --skill` writes SKILL.md instead, by which coding agents learn to use torchx (the Agent Skills format)."""
_SKILL = {"SKILL.md": "skill.txt"}
_NEXT = """\
  torchx run                           train.py with two workers, on this machine
  torchx run -s slurm -j 2x8 --gpu 8   on a cluster, 2 nodes with 8 GPUs; add --dryrun to preview it
  torchx status · torchx log           how it ended, and what it wrote"""


class CmdInit(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        subparser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="default: the current folder")
        skill = "write SKILL.md, for coding agents, for example to .agents/skills/torchx"
        subparser.add_argument("--skill", action="store_true", help=skill)
        subparser.add_argument("--json", action="store_true", help="one JSON document, for programs")

    def run(self, args: argparse.Namespace) -> None:
        files = _SKILL if args.skill else _FILES
        there = [name for name in files if os.path.lexists(os.path.join(args.folder, name))]
        if there:
            raise ConfigError(
                f"`{os.path.join(args.folder, there[0])}` already exists", hint="write `torchx init NEW_DIR`"
            )
        os.makedirs(args.folder, exist_ok=True)
        for name, template in files.items():
            with open(os.path.join(os.path.dirname(__file__), "start", template), encoding="utf-8") as file:
                text = file.read()
            text = text.format(schedulers=", ".join(get_scheduler_factories())) if args.skill else text
            path = os.path.join(args.folder, name)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
            if not args.json:
                print(os.path.normpath(path))
        if args.json:
            print(document({"files": [os.path.normpath(os.path.join(args.folder, name)) for name in files]}))
        if args.skill:
            return
        from importlib.util import find_spec

        from torchx.config.trust import is_ours

        is_ours(path)

        note(f"\nNext{'' if args.folder == '.' else f': cd {join([args.folder])}, then'}:\n{_NEXT}")
        if find_spec("torch") is None:
            note("\ntrain.py needs PyTorch, which this Python does not have: pip install torch")
