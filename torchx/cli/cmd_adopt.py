"""``torchx adopt``: put a job on record that torchx did not launch."""

from __future__ import annotations

import argparse
import sys

from torchx.cli.argparse_util import declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_why import add_job
from torchx.cli.failures import UsageError, note
from torchx.cli.run_args import NOTICES, notices_wanted
from torchx.runner import Runner
from torchx.util.term import is_tty

_HELP = """\
From then on `status`, `log`, `wait`, `watch` and `list` know the job, and it can be heard of:

  torchx adopt 4711 --name bert --notify mail
  torchx wait @bert && torchx log @bert
  torchx adopt --undo @bert                  off the record; nothing happens to the job

`cancel` and `delete` leave it alone, unless they are told to by `--force`; `@last` never means it."""


class CmdAdopt(RunnerCommand):
    """put a job on record that torchx did not launch, for status, log, wait, watch and notices"""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        add_job(subparser)
        subparser.add_argument("--name", metavar="NAME", help="for @NAME (default: as its system calls it)")
        subparser.add_argument("--undo", action="store_true", help="take it off the record again")
        declare(subparser, NOTICES, sparse=True)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if args.name is not None and (not args.name.isprintable() or set(args.name) & set(" @~/") or not args.name):
            raise UsageError(f"`{args.name}` is not a name", hint="letters, digits, `-`, `_` and `.`")
        if args.undo:
            handle, said = runner.disown(args.app_handle), "off the record; it goes on as it was"
        else:
            wanted = notices_wanted(getattr(args, "notify", ""), getattr(args, "notify_on", ""))
            handle = runner.adopt(args.app_handle, args.scheduler, name=args.name or "", metadata=wanted)
            said = f"adopted: `torchx status @{args.name}`" if args.name else "adopted: `torchx status` knows it"
        print(handle)
        if is_tty(sys.stderr):
            note(said)
