"""``torchx usage``: show how many GPU-hours the runs on record have used."""

from __future__ import annotations

import argparse
import csv
import sys

from torchx.cli.argparse_util import JSON, Row, declare, parse_moment
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError, note
from torchx.cli.render import document, table
from torchx.runner import Runner
from torchx.runner.show.usage import Bill, bill, usage_fields
from torchx.runs.usage import GROUPS

_HELP = """\
  torchx usage --since 7d                by name of the run
  torchx usage --since 30d --by user --csv

Hours are what runs asked for, multiplied by the time that they ran. Prices come from the config file:

  [prices]
  currency = EUR
  gpu_hour = 2.50
  slurm.gpu_hour = 1.10"""


class CmdUsage(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        since = "only what was used since then: `7d` (ago), or 2026-11-21"
        rows: tuple[Row, ...] = (
            ("--since", "TIME", since, {"type": parse_moment}),
            ("--by", "|".join(GROUPS), "a row for each of these (default: name)", {"choices": GROUPS}),
            ("--csv", "", "comma-separated values"),
            ("--no-refresh --no_refresh", "", "do not ask the schedulers about unfinished runs"),
            JSON,
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if args.csv and args.json:
            raise UsageError("`--csv` and `--json` are two formats", hint="omit one of them")
        by = args.by or "name"
        found = bill(runner.usage(by, args.since, refresh=not args.no_refresh), by)
        if args.json:
            print(document(usage_fields(found, by, args.since)))
            return
        if args.csv:
            csv.writer(sys.stdout, lineterminator="\n").writerows(_rows(found, by, plain=True))
        else:
            headers, *rows = _rows(found, by, plain=False)
            table(headers, rows, shrink=[0])
        if unseen := found.total.unseen:
            counts = "run counts" if unseen == 1 else "runs count"
            note(f"{unseen:,} {counts} from the submission, because nobody saw the start")


def _rows(found: Bill, by: str, *, plain: bool) -> list[list[str]]:
    """Return the headers, a row for each group, and their sum; ``plain`` for programs."""
    number = "{:.3f}" if plain else "{:,.1f}"
    rows = [[by.upper(), "RUNS", "GPU HOURS", "CPU HOURS"]]
    for line in [*found.lines, *([] if plain else [found.total])]:
        rows.append([line.key, f"{line.runs}" if plain else f"{line.runs:,}"])
        rows[-1] += [number.format(line.gpu_hours), number.format(line.cpu_hours)]
    if found.currency is not None:
        rows[0].append(f"COST {found.currency}".rstrip())
        costs = [line.cost or 0.0 for line in (*found.lines, found.total)]
        for row, cost in zip(rows[1:], costs, strict=False):
            row.append(f"{cost:.2f}" if plain else f"{cost:,.2f}")
    return rows
