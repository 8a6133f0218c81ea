"""``torchx watch``: print a line for each state change of any run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError, note, warn
from torchx.cli.log_targets import JOB_HELP, job_reference, resolve_all
from torchx.cli.render import gray
from torchx.cli.waiting import fetch_results
from torchx.runner import Runner
from torchx.runner.show.json_output import handle_fields
from torchx.runner.watching.changes import Watch
from torchx.runs import Change
from torchx.specs.api import is_terminal
from torchx.specs.states import state_text
from torchx.util.redaction import redact
from torchx.util.term import fit, has_color, is_tty, iso, printable, width

_LOOK_S = 5.0  # interval at which unreachable schedulers are reported


class CmdWatch(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        add = subparser.add_argument
        add("jobs", type=job_reference, nargs="*", metavar="JOB", help=f"{JOB_HELP}; default: all runs")
        add("--mine", action="store_true", help="only my runs, if several users share the record")
        add("--json", action="store_true", help="a JSON document on each line, for programs")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Print the current states, then each change, until Ctrl-C or until all named jobs have ended."""
        if args.jobs and args.mine:
            raise UsageError("`--mine` and named jobs exclude each other", hint="omit one of them")
        with runner.watch(*resolve_all(runner, args.jobs), mine=args.mine, tasks=args.json) as watch:
            if not args.jobs and is_tty(sys.stderr):
                note("watching all runs; Ctrl-C stops, the jobs continue")
            print_changes(watch, as_json=args.json, ended=partial(fetch_results, runner))


def print_changes(watch: Watch, *, as_json: bool = False, ended: Callable[[str], object] = lambda _: None) -> None:
    """Print a line for each change until the watch ends; call ``ended`` with the handle of a job whose end it sees.

    Warns once when a scheduler cannot be asked.
    """
    warned: dict[str, str] = {}
    while True:
        try:
            change = watch.within(_LOOK_S)
        except StopIteration:
            return
        if change is not None:
            print(change_document(change) if as_json else _line(change), flush=True)
            if is_terminal(change.state) and change.was is not None:
                ended(change.handle)
        problems = watch.problems()
        for scheduler in problems.keys() - warned.keys():
            warn(f"{problems[scheduler]}; retrying")
        warned = problems


def change_document(change: Change) -> str:
    import json

    fields = {
        **handle_fields(change.handle),
        "name": change.name,
        "was": None if change.was is None else str(change.was),
        "state": str(change.state),
        "msg": change.msg or None,
        "at": iso(change.at),
    }
    return redact(json.dumps(fields))


def _line(change: Change) -> str:
    """Format time, handle, states and message: in columns on a terminal, separated by tabs elsewhere."""
    if not is_tty(sys.stdout):
        was = "" if change.was is None else str(change.was)
        return "\t".join([iso(change.at) or "", change.handle, was, str(change.state), printable(change.msg)])
    color = has_color(sys.stdout)
    clock = time.strftime("%H:%M:%S", time.localtime(change.at))
    state = str(change.state)
    text = state_text(change.state, color=color) + " " * (9 - len(state))
    head = f"{clock}  {change.handle}  {state:<9}"
    room = width(sys.stdout) - len(head) - 2
    why = fit(printable(change.msg), room, pad=False) if change.msg and room > 10 else ""
    line = f"{gray(clock, color=color)}  {printable(change.handle)}  {text}"
    return f"{line}  {gray(why, color=color)}" if why else line.rstrip()
