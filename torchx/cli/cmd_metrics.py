"""``torchx metrics``: show what replicas use."""

from __future__ import annotations

import argparse
import sys
import time

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import note
from torchx.cli.log_targets import ID_FORMAT, JOB_HELP, LogTarget, or_last, parse_target, select
from torchx.cli.render import document, gray, table_lines
from torchx.runner import Runner
from torchx.runner.show.json_output import handle_fields, metrics_fields
from torchx.runner.show.tables import replica_metrics, usage_rows, usage_table
from torchx.schedulers.kit.metrics import ReplicaMetrics
from torchx.specs import AppStatus
from torchx.util.records import replace
from torchx.util.term import has_color, is_tty, width

_EVERY_S = 15.0


class CmdMetrics(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        add = subparser.add_argument
        add("target", type=parse_target, metavar="JOB[/ROLE[/K,...]]", help=f"{ID_FORMAT}; JOB: {JOB_HELP}", nargs="?")
        add("-w", "--watch", action="store_true", help="update live until the job has ended; in a pipe every 15 s")
        add("--json", action="store_true", help="a JSON document with all samples; with --watch one per line")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        target = args.target or parse_target(or_last(runner, None))
        handle = runner.resolve(target.reference)
        view = _View(runner, handle, target)
        if not args.watch:
            view.print(as_json=args.json)
        elif is_tty(sys.stdout) and not args.json:
            from torchx.cli.live_status import watch

            watch(runner, [handle], lambda *_: view.page(), as_json=False, asks=True)
            view.print(as_json=False)
        else:
            view.follow(as_json=args.json)


class _View:
    """The metrics of a job or a part of it. Accumulates samples, because some schedulers keep none."""

    def __init__(self, runner: Runner, handle: str, target: LogTarget) -> None:
        self._runner = runner
        self._handle = handle
        self._target = target
        self._seen: dict[tuple[str, int], ReplicaMetrics] = {}
        self._status: AppStatus | None = None

    def look(self) -> list[ReplicaMetrics]:
        self._status = self._runner.status(self._handle)
        if self._status is not None and self._status.tasks is not None and (self._target.role or "").isdigit():
            self._handle, self._target = f"{self._handle}/{self._target.role}", replace(self._target, role=None)
            self._status = self._runner.status(self._handle)
        found = self._runner.metrics(self._handle)
        wanted = {*select([(one.role, one.replica) for one in found], replace(self._target, reference=self._handle))}
        chosen = [one for one in found if (one.role, one.replica) in wanted]
        self._seen.update(replica_metrics(chosen, self._seen))
        return chosen

    def print(self, *, as_json: bool) -> None:
        found = self.look()
        if as_json:
            state = None if self._status is None else str(self._status.state)
            print(document({**handle_fields(self._handle), "state": state, "replicas": metrics_fields(found)}))
            return
        print("\n".join(self._lines(found)), flush=True)
        if why := self._nothing(found):
            note(why)

    def page(self) -> str:
        found = self.look()
        head = f"{self._handle}  {'' if self._status is None else self._status.state}"
        around = [gray(text, color=has_color(sys.stdout)) for text in (head, self._nothing(found)) if text]
        return "\n".join([around[0], *self._lines(found), *around[1:]])

    def follow(self, *, as_json: bool) -> None:
        """Print a table, or a document, every 15 s until the job has ended."""
        with self._runner.watch(self._handle) as changes:
            while True:
                self.print(as_json=as_json)
                sys.stdout.flush()
                due = time.monotonic() + _EVERY_S
                try:
                    while (left := due - time.monotonic()) > 0:
                        changes.within(left)
                except StopIteration:
                    if self._status is None or not self._status.is_terminal():
                        self.print(as_json=as_json)
                    return

    def _nothing(self, found: list[ReplicaMetrics]) -> str:
        """Return why there are no samples; empty if there are some."""
        if any(one.memory_peak() is not None for one in found):
            return ""
        if self._status is not None and self._status.is_terminal():
            return "there are no samples of this job: it ended before the first one, or none were taken"
        return "no samples yet: the first one is taken some seconds after a replica has started"

    def _lines(self, found: list[ReplicaMetrics]) -> list[str]:
        over = self._status is None or self._status.is_terminal()
        if not is_tty(sys.stdout):
            return ["\t".join(row) for row in usage_rows(found, 0, over=over)]
        headers, *rows = usage_table(found, width(sys.stdout), over=over)
        return table_lines(headers, rows)
