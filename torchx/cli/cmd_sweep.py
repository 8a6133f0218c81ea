"""``torchx sweep``: launch a component once for each set of values, as one job."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torchx.cli import spec_page
from torchx.cli.argparse_util import Row
from torchx.cli.cmd_run import CmdRun, asked
from torchx.cli.failures import UsageError, note
from torchx.cli.points import MOST_TASKS, read_points
from torchx.cli.render import document
from torchx.cli.run_args import TorchXRunArgs
from torchx.runner import Runner, get_runner
from torchx.runner.documents import handle_fields
from torchx.runner.sweeps import check_job, submit
from torchx.specs import AppDryRunInfo
from torchx.specs.images import NamesOnly
from torchx.specs.tasks import TaskList
from torchx.util.term import is_tty

_HELP = """\
Runs a task for each point of the grid, or each row of the file. `{name}` in the arguments is replaced by a value:

  torchx sweep --grid lr=1e-4,3e-4 --grid seed=0..99 train.py --lr {lr} --seed {seed}
  torchx sweep --from params.csv --max-parallel 8 utils.python --script train.py -- --lr {lr}
  torchx sweep --retry-failed @last

Names are the columns of the .csv, or the keys of the .jsonl. Write `{{name}}` for the literal text `{name}`, and quote
values with commas: `--grid 'shape="8,8","16,16"'`. Options of torchx go before the component.
The command returns at once. A task is a job like any other: `torchx status SWEEP`, `torchx log SWEEP/17`,
`torchx cancel SWEEP` or `SWEEP/17`. A failed task does not end the others.
If the scheduler has no job arrays, or they cannot run these tasks, each task is a separate job; on a cluster, this
machine then submits them as limits permit."""


_POINTS: tuple[Row, ...] = (
    ("--grid", "NAME=V,V,...", "values, or a range such as 0..99; several are combined", {"action": "append"}),
    ("--from", "FILE", "rows of values, .csv or .jsonl", {"dest": "file"}),
    ("--max-parallel", "N", "run at most N tasks at a time", {"type": int}),
    ("--max-tasks", "N", f"reject a sweep of more tasks (default {MOST_TASKS:,})", {"type": int}),
    ("--retry-failed", "SWEEP", "launch the failed, cancelled and lost tasks of a sweep again; give no component"),
)


class CmdSweep(CmdRun):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        subparser.usage = "torchx sweep [options] COMPONENT|SCRIPT.py|-- PROGRAM [arguments with {name}]"
        self.declare(subparser, _POINTS)

    def go(self, runner: Runner, run_args: TorchXRunArgs, args: argparse.Namespace) -> None:
        tasks = _tasks(args)
        runner.check_sweep(tasks)
        if run_args.dryrun:
            with NamesOnly():
                info = asked(runner, "dryrun", run_args, sweep=True)
            _show(runner, info, tasks, args)
        else:
            _submit(runner, asked(runner, "dryrun", run_args, sweep=True), tasks, args)

    def _run(self, args: argparse.Namespace) -> None:
        if hasattr(args, "retry_failed"):
            _retry(args)
        else:
            super()._run(args)


def _show(runner: Runner, info: AppDryRunInfo[Any], tasks: TaskList, args: argparse.Namespace) -> None:
    try:
        check_job(info._app, tasks)
        as_json = getattr(args, "json", False)
        spec_page.show_dryrun(info, as_json=as_json, full=getattr(args, "full", False))
        note(f"{len(tasks.points):,} tasks; the first: {tasks.text(0)}; the last: {tasks.text(-1)}")
    finally:
        runner.discard(info)


def _tasks(args: argparse.Namespace) -> TaskList:
    width = getattr(args, "max_parallel", 0)
    if width < 1 and hasattr(args, "max_parallel"):
        raise UsageError(f"`--max-parallel {width}` lets no task run", hint="give 1 or more")
    given = vars(args)
    names, points = read_points(given.get("grid", []), given.get("file"), given.get("max_tasks", MOST_TASKS))
    return TaskList(names=names, points=points, max_parallel=width)


def _retry(args: argparse.Namespace) -> None:
    for name in ("grid", "file", "component_name_and_args"):
        if getattr(args, name, None):
            raise UsageError("`--retry-failed` takes the component and its values from the sweep", hint="omit the rest")
    with get_runner() as runner:
        handle = runner.resolve(args.retry_failed)
        info, tasks = runner.retry_sweep(handle, max_parallel=getattr(args, "max_parallel", None))
        _submit(runner, info, tasks, args)


def _submit(runner: Runner, info: AppDryRunInfo[Any], tasks: TaskList, args: argparse.Namespace) -> None:
    """Submits a sweep, and prints its handle, alone on the last line of stdout, where programs read it."""
    handle, count = submit(runner, info, tasks, typed=True), len(tasks.points)
    if getattr(args, "json", False):
        print(document({**handle_fields(handle), "tasks": count}))
        return
    if is_tty(sys.stderr):
        note(f"Launched {count:,} tasks · torchx status @last · torchx log @last/0")
    print(handle, flush=True)
