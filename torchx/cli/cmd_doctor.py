"""``torchx doctor``: check what keeps jobs from running, and how to fix it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from textwrap import wrap

from torchx.cli.argparse_util import CFG, JSON, ArgOnceAction, Row, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError
from torchx.cli.render import bold, document, gray
from torchx.runner import Runner
from torchx.schedulers.kit.findings import Finding
from torchx.settings import default_image
from torchx.specs.wishes.timeouts import parse_timeout
from torchx.util.term import has_color, is_tty, printable, width

_HELP = """\
Each finding is good, bad, or `?` if it cannot be determined from here. A bad finding is certain; below it is the fix.

  torchx doctor                            this machine: packages, config files, disk, record of runs
  torchx doctor -s slurm                   its commands, partitions, accounts; a trial of sbatch
  torchx doctor -s kubernetes --deep       rights, kinds, quotas, nodes; then run a small job
  torchx run --check -s slurm train.py     one job of yours; nothing is submitted

Exits with 1 if a finding is bad."""
_COLORS = {"good": "\033[32m", "bad": "\033[31m", "unknown": "\033[33m"}


class CmdDoctor(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        timeout = "time limit of that job, including the queue (default: 2m)"
        several, once = {"action": "append", "default": []}, {"action": ArgOnceAction}
        rows: tuple[Row, ...] = (
            ("-s --scheduler", "NAME", "check this scheduler; repeatable", several),
            ("-cfg", CFG, "options of the scheduler", {**several, "dest": "cfg"}),
            ("--deep", "", "also run a job of one small task on it, and read its log"),
            ("--image", "NAME", "image of that job (default: that of components)", once),
            ("--timeout", "DURATION", timeout, {**once, "default": "2m"}),
            JSON,
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if (args.deep or args.cfg or args.image) and not args.scheduler:
            raise UsageError("`--deep`, `--image` and `-cfg` need a scheduler", hint="name it: `-s slurm`")
        found = {} if args.scheduler else {"": runner.doctor()}
        for name in args.scheduler:
            found[name] = runner.doctor(
                name,
                runner.cfg_from_str(name, *args.cfg),
                deep=args.deep,
                image=args.image or default_image(),
                probe_timeout_s=parse_timeout(args.timeout),
            )
        show(found, as_json=args.json)


def show(found: Mapping[str, Sequence[Finding]], *, as_json: bool) -> None:
    """Print findings by scheduler (empty name: this machine), and exits with 1 if one is bad."""
    everything = [finding for findings in found.values() for finding in findings]
    bad = sum(finding.verdict == "bad" for finding in everything)
    if as_json:
        rows = [
            {"scheduler": name or None, **vars(finding), "fix": finding.fix or None}
            for name, findings in found.items()
            for finding in findings
        ]
        print(document({"bad": bad, "findings": rows}))
    else:
        for name, findings in found.items():
            _print(name or "this machine", findings)
        unknown = sum(finding.verdict == "unknown" for finding in everything)
        print(f"{len(everything) - bad - unknown} good, {bad} bad, {unknown} cannot be told from here")
    if bad:
        sys.exit(1)


def _print(title: str, findings: Sequence[Finding]) -> None:
    color, column = has_color(sys.stdout), max((len(finding.what) for finding in findings), default=0)
    room = max(width(sys.stdout) - column - 8, 30) if is_tty(sys.stdout) else 10_000
    print(bold(title, color=color))
    for finding in findings:
        word = "?" if finding.verdict == "unknown" else finding.verdict
        mark = f"{_COLORS[finding.verdict]}{word:<4}\033[0m" if color else f"{word:<4}"
        first, *rest = wrap(printable(finding.said), room, break_on_hyphens=False, break_long_words=False) or [""]
        print(f"  {mark} {printable(finding.what):<{column}}  {first}".rstrip())
        for line in rest:
            print(f"{' ' * (column + 9)}{line}")
        if finding.fix and finding.verdict != "good":
            print(f"{' ' * (column + 9)}{gray(printable(f'fix: {finding.fix}'), color=color)}")  # whole: to be copied
