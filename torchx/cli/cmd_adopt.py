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
Records the job, so that `status`, `log`, `wait`, `watch`, `list` and notices work for it:

  torchx adopt 4711 --name bert --notify mail
  torchx wait @bert && torchx log @bert
  torchx adopt --undo @bert                  remove the record; the job is not affected

`cancel` and `delete` need `--force` for an adopted job. `@last` never refers to one."""


class CmdAdopt(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        add_job(subparser)
        subparser.add_argument("--name", metavar="NAME", help="name for @NAME (default: its native name)")
        subparser.add_argument("--undo", action="store_true", help="remove the job from the record again")
        declare(subparser, NOTICES, sparse=True)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if args.name is not None and (not args.name.isprintable() or set(args.name) & set(" @~/") or not args.name):
            raise UsageError(f"`{args.name}` is not a name", hint="letters, digits, `-`, `_` and `.`")
        if args.undo:
            handle, message = runner.disown(args.app_handle), "removed from the record; the job is not affected"
        else:
            wanted = notices_wanted(getattr(args, "notify", ""), getattr(args, "notify_on", ""))
            handle = runner.adopt(args.app_handle, args.scheduler, name=args.name or "", metadata=wanted)
            message = f"adopted: `torchx status @{args.name}`" if args.name else "adopted: `torchx status` shows it"
        print(handle)
        if is_tty(sys.stderr):
            note(message)
