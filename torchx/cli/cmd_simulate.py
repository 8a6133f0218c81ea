"""``torchx simulate``: inject a fault into a job."""

from __future__ import annotations

import argparse
import sys

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import note
from torchx.cli.log_targets import JOB_HELP, parse_target, select
from torchx.cli.questions import YES_HELP, agreed
from torchx.cli.render import document
from torchx.runner import Runner
from torchx.runner.inside.simulations import what_follows
from torchx.runner.show.json_output import handle_fields
from torchx.schedulers.kit.simulations import FAULTS
from torchx.util.term import is_tty

_HELP = """\
Injects a real fault into a running job of yours, so that you see whether it survives:

{faults}

  torchx run --retry standard dist.ddp -j 2x4 --script train.py
  torchx simulate preempt @last
  torchx simulate kill @last/train/1
  torchx status @last                                   the attempts, and what was changed for each

A fault that the scheduler cannot inject is an error."""


class CmdSimulate(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP.format(faults="\n".join(f"  {name:9} {what}" for name, what in FAULTS.items()))
        add = subparser.add_argument
        add("fault", choices=list(FAULTS), metavar="FAULT", help=f"one of {', '.join(FAULTS)}")
        add("target", metavar="JOB[/ROLE/K]", help=f"{JOB_HELP}; default: its first replica, or the whole job")
        add("-y", "--yes", action="store_true", help=YES_HELP)
        add("--json", action="store_true", help="one JSON document, for programs")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        target = parse_target(args.target)
        handle = runner.resolve(target.reference)
        chosen = select(runner.log_replicas(handle), target) if target.role is not None else None
        found = runner.simulate(handle, args.fault, chosen)
        run = runner.recorded(handle)
        follows = f"; {what_follows(run, args.fault)}" if run else ""
        note(f"{handle}: {found.says}{follows}")
        if args.yes or not (is_tty(sys.stdin) and is_tty(sys.stderr)) or agreed(f"simulate `{args.fault}`"):
            found.make()
            done = True
        else:
            note("nothing was done")
            done = False
        if args.json:
            print(document({**handle_fields(handle), "fault": args.fault, "said": found.says, "done": done}))
