"""``torchx doctor``: check what keeps jobs from running, and how to fix it."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap

from torchx.cli.argparse_util import CFG, JSON, ArgOnceAction, Row, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError
from torchx.cli.render import bold, document, gray
from torchx.errors import EXIT_BACKEND, EXIT_JOB_FAILED
from torchx.runner import Runner
from torchx.schedulers.kit.findings import Finding
from torchx.settings import default_image
from torchx.specs.wishes.timeouts import parse_timeout
from torchx.util.term import fit, has_color, is_tty, printable, width

_HELP = """\
Each finding is good, bad, todo (optional, and not set up), or `?` if it cannot be determined from here. A bad finding
is certain; below it is the fix.

  torchx doctor                            this machine: packages, config files, disk, record of runs
  torchx doctor -s slurm                   its commands, partitions, accounts; a trial of sbatch
  torchx doctor -s kubernetes --deep       rights, kinds, quotas, nodes; then run a small job
  torchx run --check -s slurm train.py     one job of yours; nothing is submitted

Exits with 1 if a finding is bad, else with 4 if the scheduler itself did not answer."""
_PROBE_S, _PATIENCE_S = 120.0, 1.0
_COLORS = {"good": "\033[32m", "bad": "\033[31m", "todo": "\033[36m", "unknown": "\033[33m"}


class CmdDoctor(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        timeout = "time limit of all checks (default: 15s), and of that job, including the queue (default: 2m)"
        several, once = {"action": "append", "default": []}, {"action": ArgOnceAction}
        rows: tuple[Row, ...] = (
            ("-s --scheduler", "NAME", "check this scheduler; repeatable", several),
            ("-cfg", CFG, "options of the scheduler", {**several, "dest": "cfg"}),
            ("--deep", "", "also run a job of one small task on it, and read its log"),
            ("--image", "NAME", "image of that job (default: that of components)", once),
            ("--timeout", "DURATION", timeout, once),
            JSON,
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if (args.deep or args.cfg or args.image) and not args.scheduler:
            raise UsageError("`--deep`, `--image` and `-cfg` need a scheduler", hint="name it: `-s slurm`")
        within_s = parse_timeout(args.timeout) if args.timeout else None
        ask = functools.partial(
            runner.doctor,
            deep=args.deep,
            image=args.image or default_image(),
            probe_timeout_s=within_s or _PROBE_S,
            within_s=within_s,
        )
        found = {}
        for name in args.scheduler or [""]:
            of_it = functools.partial(ask, name, runner.cfg_from_str(name, *args.cfg) if name else None)
            found[name] = report(name or "this machine", of_it, as_json=args.json)
        conclude(found, as_json=args.json)


def report(title: str, ask: Callable[..., Sequence[Finding]], *, as_json: bool = False) -> Sequence[Finding]:
    """Print findings as they come, and on a terminal what is waited for; ``ask`` takes a ``progress``.

    Returns:
        All findings.
    """
    if as_json:
        return ask()
    pages = _Page(title)
    try:
        found = ask(progress=pages.show)
    finally:
        pages.show((), ())
    pages.show(found[pages.shown :], ())
    return found


def conclude(found: Mapping[str, Sequence[Finding]], *, as_json: bool) -> None:
    """Print the sum of findings by scheduler (empty name: this machine), or all of them as a document.

    Exits with 1 if one is bad, else with 4 if a scheduler itself did not answer.
    """
    everything = [finding for findings in found.values() for finding in findings]
    bad = sum(finding.verdict == "bad" for finding in everything)
    if as_json:
        rows = [
            {"scheduler": name or None, "verdict": f.verdict, "what": f.what, "said": f.said, "fix": f.fix or None}
            for name, findings in found.items()
            for f in findings
        ]
        print(document({"bad": bad, "findings": rows}))
    else:
        counts = {word: sum(finding.verdict == word for finding in everything) for word in _COLORS}
        print(", ".join(f"{n} {word}" for word, n in counts.items() if n or word in ("good", "bad")))
    if bad:
        sys.exit(EXIT_JOB_FAILED)
    if any(finding.unreachable for finding in everything):
        sys.exit(EXIT_BACKEND)


class _Page:
    """The findings about one scheduler, on the terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._column = 0
        self._since = time.monotonic()
        self._waits = False  # whether the last line says what is waited for
        self.shown = 0

    def show(self, new: Sequence[Finding], waiting: Sequence[str]) -> None:
        """Print new findings, and on a terminal the names of the checks without an answer."""
        if self._waits:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        self._waits = False
        self._column = max([self._column, *map(len, waiting), *(len(finding.what) for finding in new)])
        if new and not self.shown:
            print(bold(self._title, color=has_color(sys.stdout)))
        for finding in new:
            _print(finding, self._column)
        self.shown += len(new)
        seconds = time.monotonic() - self._since
        if waiting and seconds > _PATIENCE_S and is_tty(sys.stderr):
            said = f"{seconds:.0f} s: waiting for the answers of {', '.join(waiting)}"
            print(fit(printable(said), width(sys.stderr) - 1, pad=False), end="", file=sys.stderr, flush=True)
            self._waits = True


def _print(finding: Finding, column: int) -> None:
    color = has_color(sys.stdout)
    room = max(width(sys.stdout) - column - 8, 30) if is_tty(sys.stdout) else 10_000
    word = "?" if finding.verdict == "unknown" else finding.verdict
    mark = f"{_COLORS[finding.verdict]}{word:<4}\033[0m" if color else f"{word:<4}"
    first, *rest = wrap(printable(finding.said), room, break_on_hyphens=False, break_long_words=False) or [""]
    print(f"  {mark} {printable(finding.what):<{column}}  {first}".rstrip())
    for line in rest:
        print(f"{' ' * (column + 9)}{line}")
    if finding.fix and finding.verdict != "good":
        print(f"{' ' * (column + 9)}{gray(printable(f'fix: {finding.fix}'), color=color)}", flush=True)  # to be copied
