"""``torchx metrics``: what replicas use."""

from __future__ import annotations

import sys
import time

from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import note
from torchx.cli.log_targets import ID_FORMAT, JOB_HELP, parse_target, select
from torchx.cli.render import document, gray, table_lines
from torchx.errors import EXIT_INTERRUPTED
from torchx.util.strings import size_text, sparkline
from torchx.util.term import has_color, is_tty, width

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from torchx.cli.log_targets import LogTarget
    from torchx.runner import Runner
    from torchx.schedulers.metrics import Gpu, ReplicaMetrics
    from torchx.specs import AppStatus

__all__ = ["CmdMetrics"]

_EVERY_S = 15.0
_HEADERS = ("REPLICA", "CPU", "MEMORY", "PEAK", "LIMIT", "GPU", "GPU MEMORY")
_LONGEST, _SHORTEST = 24, 6


class CmdMetrics(SubCommand):
    """what the replicas of a job use: processors, memory, GPUs; of a job that has ended, what they used"""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add = subparser.add_argument
        add("target", type=parse_target, metavar="JOB[/ROLE[/K,...]]", help=f"{ID_FORMAT}; JOB: {JOB_HELP}")
        add("-w", "--watch", action="store_true", help="show them live until the job has ended; in a pipe every 15 s")
        add("--json", action="store_true", help="a JSON document with all samples; with --watch one a line")

    def run(self, args: argparse.Namespace) -> None:
        """Prints a line for each replica."""
        from torchx.runner import get_runner

        with get_runner() as runner:
            handle = runner.resolve(args.target.reference)
            view = _View(runner, handle, args.target)
            try:
                if not args.watch:
                    view.print(as_json=args.json)
                elif is_tty(sys.stdout) and not args.json:
                    from torchx.cli.live_status import watch

                    watch(runner, [handle], lambda *_: view.page(), as_json=False, asks=True)
                    view.print(as_json=False)
                else:
                    view.follow(as_json=args.json)
            except KeyboardInterrupt:
                sys.exit(EXIT_INTERRUPTED)


class _View:
    """The metrics of one job, or of a part of it. What is seen of a scheduler that keeps nothing is remembered."""

    def __init__(self, runner: Runner, handle: str, target: LogTarget) -> None:
        self._runner = runner
        self._handle = handle
        self._target = target
        self._seen: dict[tuple[str, int], ReplicaMetrics] = {}
        self._status: AppStatus | None = None

    def look(self) -> list[ReplicaMetrics]:
        self._status = self._runner.status(self._handle)
        if self._status is not None and self._status.tasks is not None and (self._target.role or "").isdigit():
            self._handle, self._target = f"{self._handle}/{self._target.role}", self._target._replace(role=None)
            self._status = self._runner.status(self._handle)
        found = self._runner.metrics(self._handle)
        wanted = {*select([(one.role, one.replica) for one in found], self._target._replace(reference=self._handle))}
        chosen = [one for one in found if (one.role, one.replica) in wanted]
        for one in chosen:
            before = self._seen.get((one.role, one.replica))
            if before is not None and len(one.samples) == 1:
                one.samples = [*(s for s in before.samples if s.at < one.samples[0].at), *one.samples]
            self._seen[one.role, one.replica] = one
        return chosen

    def print(self, *, as_json: bool) -> None:
        """Once."""
        found = self.look()
        if as_json:
            from torchx.runner.documents import handle_fields, metrics_fields

            state = None if self._status is None else str(self._status.state)
            print(document({**handle_fields(self._handle), "state": state, "replicas": metrics_fields(found)}))
            return
        print("\n".join(self._lines(found)), flush=True)
        if why := self._nothing(found):
            note(why)

    def page(self) -> str:
        """As it stands on a terminal."""
        found = self.look()
        head = f"{self._handle}  {'' if self._status is None else self._status.state}"
        around = [gray(text, color=has_color(sys.stdout)) for text in (head, self._nothing(found)) if text]
        return "\n".join([around[0], *self._lines(found), *around[1:]])

    def follow(self, *, as_json: bool) -> None:
        """A table, or a document, every 15 s until the job has ended."""
        with self._runner.watch(self._handle) as changes:
            while True:
                self.print(as_json=as_json)
                sys.stdout.flush()
                due = time.monotonic() + _EVERY_S
                try:
                    while (left := due - time.monotonic()) > 0:
                        changes.within(left)
                except StopIteration:
                    self.print(as_json=as_json)
                    return

    def _nothing(self, found: list[ReplicaMetrics]) -> str:
        """Why there is nothing to see."""
        if any(one.memory_peak() is not None for one in found):
            return ""
        if self._status is not None and self._status.is_terminal():
            return "there are no samples of this job: it ended before the first one, or none were taken"
        return "no samples yet: the first one is taken about 15 s after a replica has started"

    def _lines(self, found: list[ReplicaMetrics]) -> list[str]:
        over = self._status is None or self._status.is_terminal()
        if not is_tty(sys.stdout):
            return ["\t".join(row) for row in [_HEADERS, *(_row(one, 0, over=over) for one in found)]]
        gpus = any(sample.gpus for one in found for sample in one.samples)
        headers = _HEADERS if gpus else _HEADERS[:5]
        plain = [_row(one, 0, over=over)[: len(headers)] for one in found]
        taken = sum(max(map(len, column)) + 2 for column in zip(headers, *plain, strict=True))
        bars = min((width(sys.stdout) - taken) // (3 if gpus else 2) - 1, _LONGEST)
        rows = [_row(one, bars if bars >= _SHORTEST else 0, over=over)[: len(headers)] for one in found]
        return table_lines(headers, rows, sys.stdout)


def _row(one: ReplicaMetrics, bars: int, *, over: bool) -> list[str]:
    """The cells of a replica: as it is now, or on average once the job is over; with lines of so many bars."""
    name = f"{one.role}/{one.replica}"
    attempts = one.summary()
    if not attempts:
        return [name, *["-"] * (len(_HEADERS) - 1)]
    samples = [s for s in one.samples if s.attempt == one.samples[-1].attempt]
    last = samples[-1] if samples else None
    short = attempts[-1] if attempts else None
    gpus = last.gpus if last else []
    cpu = short.cpu if over and short else last.cpu if last else None
    gpu = short.gpu if (over or last is None) and short else _percent(gpus)
    memory = sum(g.memory for g in gpus), sum(g.memory_total for g in gpus)
    cells = [
        name,
        "-" if cpu is None else f"{'avg ' if over else ''}{cpu:.1f}{f' of {one.cpus:g}' if one.cpus else ''}",
        "-" if last is None or over else size_text(last.memory),
        size_text(one.memory_peak() or 0),
        size_text(one.memory_limit) if one.memory_limit else "-",
        "-" if gpu is None else f"{'avg ' if over else ''}{gpu:.0f} %",
        f"{size_text(memory[0])} of {size_text(memory[1])}" if gpus else "-",
    ]
    if bars and len(samples) > 1:
        lines = {
            1: sparkline([s.cpu or 0.0 for s in samples], bars),
            3 if over else 2: sparkline([float(s.memory) for s in samples], bars),
            5: sparkline([_percent(s.gpus) or 0.0 for s in samples], bars, most=100.0) if gpus else "",
        }
        for column, line in lines.items():
            cells[column] = f"{cells[column]} {line}".rstrip()
    return cells


def _percent(gpus: list[Gpu]) -> float | None:
    return sum(g.percent for g in gpus) / len(gpus) if gpus else None
