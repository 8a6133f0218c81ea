"""``torchx wait``: wait until jobs have ended."""

from __future__ import annotations

import argparse
import sys
import time

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import progress
from torchx.cli.log_targets import JOB_HELP, job_reference, or_last, resolve_all
from torchx.cli.render import document, gray
from torchx.cli.waiting import fetch_results, show_progress
from torchx.errors import EXIT_INTERRUPTED, EXIT_TIMEOUT
from torchx.runner import Runner
from torchx.runner.show.json_output import exit_code_of, handle_fields, status_fields
from torchx.specs import AppStatus
from torchx.specs.api import UnknownAppException
from torchx.specs.states import state_text
from torchx.util.datetime import duration
from torchx.util.spans import parse_span
from torchx.util.term import fit, has_color, is_tty, printable, width

_MAX_PAUSE_S = 1.0
_TICK_S = 1.0


class CmdWait(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        add = subparser.add_argument
        add("app_handle", type=job_reference, nargs="*", metavar="JOB", help=JOB_HELP)
        add("--any", action="store_true", help="wait until one of them has ended, and exit with its result")
        add("--timeout", type=_seconds, metavar="TIME", help="wait at most this long: `90`, `90s`, `10m`, `2h`")
        add("--json", action="store_true", help="one JSON document, for programs")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Print handle and state of each job when it ends.

        Exits with 0 when all have succeeded, with 124 on a timeout, and otherwise with the code of the first failure.
        """
        handles = resolve_all(runner, args.app_handle or [or_last(runner, None)])
        ended: dict[str, AppStatus] = {}
        try:
            in_time = _wait(runner, handles, ended, first=args.any, timeout_s=args.timeout, quiet=args.json)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        for handle in ended:
            fetch_results(runner, handle)
        if args.json:
            print(document({"jobs": [{**handle_fields(h), **status_fields(status)} for h, status in ended.items()]}))
        code = next((code for code in map(exit_code_of, ended.values()) if code), 0)
        if code or not in_time:
            sys.exit(code if in_time else EXIT_TIMEOUT)


def _wait(
    runner: Runner,
    handles: list[str],
    ended: dict[str, AppStatus],
    *,
    first: bool,
    timeout_s: float | None,
    quiet: bool,
) -> bool:
    """Add the status of each job to ``ended`` when it ends; return False on a timeout."""
    began = time.monotonic()
    shows = is_tty(sys.stderr)

    def left(most_s: float) -> float:
        return most_s if timeout_s is None else min(most_s, max(began + timeout_s - time.monotonic(), 0))

    try:
        with runner.news(handles) as news:
            while True:
                open_ones = [handle for handle in handles if handle not in ended]
                tick = left(_TICK_S if shows else 60.0)
                # A scheduler that is notified of the end returns sooner than a poll; it can wait for one job at a time.
                alone = len(open_ones) == 1 and runner.tells_ends(open_ones[0])
                for handle in open_ones if alone else news.wait(open_ones, tick):
                    try:
                        status = runner.wait(handle, wait_interval=_MAX_PAUSE_S, timeout=tick if alone else 0)
                    except TimeoutError:
                        continue
                    if status is None:
                        raise UnknownAppException(handle)
                    ended[handle] = status
                    if not quiet:
                        _say(handle, status)
                if len(ended) == len(handles) or (first and ended):
                    return True
                if left(1.0) == 0:
                    return False
                if shows and len(handles) == 1 and (seen := runner.seen(handles[0])) is not None:
                    show_progress(seen, began, ctrl_c="stops waiting, the job continues")
                elif shows:
                    _show(time.monotonic() - began, len(ended), len(handles))
    finally:
        progress("")


def _say(handle: str, status: AppStatus) -> None:
    progress("")
    reason = status.msg if str(status.state) != "SUCCEEDED" else ""
    parts = [handle, state_text(status.state, color=has_color(sys.stdout)), printable(reason) if reason else ""]
    print("  ".join(filter(None, parts)) if is_tty(sys.stdout) else "\t".join(parts), flush=True)


def _show(seconds: float, ended: int, jobs: int) -> None:
    text = f"{ended} of {jobs} ended · {duration(seconds)} · Ctrl-C stops waiting, the jobs continue"
    progress(gray(fit(text, width(sys.stderr) - 1, pad=False), color=has_color(sys.stderr)))


def _seconds(text: str) -> float:
    seconds = float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else parse_span(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"`{text}` is not a length of time, such as `90`, `90s`, `10m`, `2h`")
    return seconds
