"""``torchx list``: list recorded runs, or the jobs of a scheduler."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.cli.argparse_util import CFG, CFG_ROW, JSON, Row, declare, parse_moment
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError, note, warn
from torchx.cli.render import document, fits, table
from torchx.runner import Runner
from torchx.runner.show.json_output import run_fields
from torchx.runs import Run, RunQuery
from torchx.specs.api import AppState
from torchx.util.datetime import ago, duration
from torchx.util.records import replace
from torchx.util.reexports import reexports
from torchx.util.strings import did_you_mean
from torchx.util.term import is_tty, iso

if TYPE_CHECKING:
    from torchx.schedulers.api import ListAppResponse

reexports(__name__)

HANDLE_HEADER = "APP HANDLE"
NAME_HEADER = "APP NAME"
STATUS_HEADER = "APP STATUS"
_DEFAULT_LIMIT = 50


class CmdList(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        since = "only runs launched since then: `10m` (ago), `2h`, `3d`, or 2026-11-21"
        limit = f"show the newest N, 0 for all (default: {_DEFAULT_LIMIT}; all with --state, --name or --since)"
        cfg_text = "with -s: options of the scheduler that select its jobs, such as a namespace"
        all_runs = {"action": "store_const", "const": 0, "dest": "limit"}
        rows: tuple[Row, ...] = (
            ("-s --scheduler", "NAME", "list all jobs of this scheduler instead, whoever launched them"),
            ("-cfg --scheduler_args --scheduler-args", CFG, cfg_text, CFG_ROW),
            ("--state", "STATE,...", "only jobs in one of these states, as running,failed", {"type": parse_states}),
            ("--name", "NAME", "only jobs of this name; `*` and `?` are wildcards"),
            ("--since", "TIME", since, {"type": parse_moment}),
            ("--mine", "", "only my runs, if several users share the record"),
            ("--by-agent", "", "only runs that an agent launched, through `torchx mcp`"),
            ("--wasteful", "", "runs that asked for much more than they used, the worst first, and what would do"),
            ("--limit", "N", limit, {"type": _limit}),
            ("--all", "", "show all runs, as --limit 0", all_runs),
            ("--no-refresh --no_refresh", "", "show the last known states without asking the schedulers"),
            JSON,
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if args.scheduler is None and args.cfg:
            raise UsageError("`-cfg` needs `-s`", hint="name a scheduler with -s")
        if args.scheduler is not None and (args.since or args.mine or args.by_agent or args.wasteful):
            raise UsageError(
                "`--since`, `--mine`, `--by-agent` and `--wasteful` select recorded runs, `-s` a scheduler's",
                hint="omit -s; `--name` and `--state` work with both",
            )
        if args.scheduler is not None:
            _list_jobs(runner, args)
        else:
            _list_runs(runner, args)


def parse_states(text: str) -> list[AppState]:
    """Parse state names, in upper or lower case; raise UsageError for an unknown one.

    >>> parse_states("running,FAILED")
    [RUNNING (3), FAILED (5)]
    """
    states = []
    for word in text.split(","):
        name = word.strip().upper()
        if name not in AppState.__members__:
            names = [state.name for state in AppState]
            hint = did_you_mean(name, names) or f"one of: {', '.join(names)}"
            raise UsageError(f"`--state`: `{word.strip()}` is not a state", hint=hint)
        states.append(AppState[name])
    return states


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UsageError(f"`--limit`: `{text}` is not a number of runs", hint="0 shows all")
    return int(text)


def _list_runs(runner: Runner, args: argparse.Namespace) -> None:
    query = RunQuery(states=args.state, name=args.name, since=args.since, mine=args.mine, by_agent=args.by_agent)
    if args.wasteful:
        _list_wasteful(runner, query, args)
        return
    limit = args.limit if args.limit is not None else 0 if _is_filtered(query) else _DEFAULT_LIMIT
    # One more than shown, to find out whether there are more.
    query.limit = limit + 1 if limit else None
    runs = runner.runs(query, refresh=not args.no_refresh)
    more = bool(limit) and len(runs) > limit
    runs = runs[:limit] if limit else runs
    if args.json:
        print(document({"runs": [run_fields(run) for run in runs], "more": more, "limit": limit or None}))
        return
    if runs or not is_tty(sys.stdout):
        _print_runs(runs)
    _say_the_rest(runs, query, cut=more and args.limit is None)


def _list_wasteful(runner: Runner, query: RunQuery, args: argparse.Namespace) -> None:
    if not args.no_refresh:
        runner.runs(replace(query, states=()))
    found = runner.wasteful(query)[: args.limit or (None if args.limit == 0 else _DEFAULT_LIMIT)]
    if args.json:
        print(document({"wasteful": [waste.to_json() for waste in found]}))
        return
    rows_of = [
        [w.run.handle, w.run.name, *(f"{hours:,.1f}" for hours in (w.gpu_hours, w.cpu_hours, w.gib_hours)), w.options]
        for w in found
    ]
    unused = ["UNUSED GPU HOURS", "CPU HOURS", "GIB HOURS"]
    table([HANDLE_HEADER, NAME_HEADER, *unused, "WOULD DO"], rows_of, shrink=[1])


def _print_runs(runs: Sequence[Run]) -> None:
    rows = []
    tty = is_tty(sys.stdout)
    for run in runs:
        launched = ago(run.created_at) if tty else iso(run.created_at) or ""
        took = "" if run.ended_at is None else duration(run.ended_at - run.created_at)
        rows.append([run.handle or "(being submitted)", run.name, str(run.state), launched, took])
    headers = [HANDLE_HEADER, NAME_HEADER, STATUS_HEADER, "LAUNCHED", "TOOK"]
    if tty and not fits([headers, *rows], shrink=[1]):
        # App ids are valid references too, and a wrapped table is hard to read.
        headers[0] = "APP ID"
        rows = [[run.app_id or row[0], *row[1:]] for run, row in zip(runs, rows, strict=True)]
    table(headers, rows, shrink=[1], state_column=2)


def _say_the_rest(runs: Sequence[Run], query: RunQuery, *, cut: bool) -> None:
    for text in dict.fromkeys(run.note for run in runs if run.note):
        warn(text)
    if cut:  # not requested by `--limit`, so also programs have to see it
        note(f"only the newest {len(runs)} runs are shown: --all shows all; --state, --name, --since those that match")
    if not runs and is_tty(sys.stdout):
        filtered = query.mine or _is_filtered(query)
        note("no run on record matches" if filtered else "no run on record yet: torchx run utils.echo --msg hello")


def _is_filtered(query: RunQuery) -> bool:
    """Whether the user has selected runs; then all that match are shown."""
    return query.by_agent or any(value is not None for value in (query.states, query.name, query.since))


def _list_jobs(runner: Runner, args: argparse.Namespace) -> None:
    cfg = runner.cfg_from_str(args.scheduler, *args.cfg) if args.cfg else None
    jobs = [job for job in runner.list(args.scheduler, cfg) if _matches(job, args.name, args.state)]
    jobs = jobs[: args.limit] if args.limit else jobs
    if args.json:
        fields = [
            {"handle": j.app_handle, "scheduler": args.scheduler, "app_id": j.app_id, "name": j.name or None}
            | {"state": str(j.state)}
            for j in jobs
        ]
        print(document({"jobs": fields}))
        return
    rows = [[job.app_handle, job.name, str(job.state)] for job in jobs]
    table([HANDLE_HEADER, NAME_HEADER, STATUS_HEADER], rows, shrink=[1], state_column=2)


def _matches(job: ListAppResponse, name: str | None, states: list[AppState] | None) -> bool:
    from fnmatch import fnmatchcase

    right_state = states is None or job.state in states
    return right_state and (name is None or fnmatchcase(job.name or job.app_id, name))
