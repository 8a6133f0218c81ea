"""``torchx log --search``: lines in the logs of all runs on record, live or in the archive."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator

from torchx.cli.failures import UsageError, note
from torchx.errors import EXIT_JOB_FAILED, NotSupportedError, TorchXError
from torchx.runner import Runner
from torchx.runs import Run, RunQuery
from torchx.schedulers.kit.logs import LogQuery
from torchx.util.records import replace
from torchx.util.redaction import redact
from torchx.util.secrets import learn_environment
from torchx.util.term import is_tty, iso, printable

_OTHERS = ("identifier", "regex", "follow", "tail", "until", "streams", "rank", "timestamps", "previous", "archive")


def search(runner: Runner, args: argparse.Namespace) -> None:
    """Print each line that matches, with its run, replica and time; exit with 1 if none does.

    Runs launched since ``--since`` are searched, newest first. A line is printed when it is found: memory is bounded.
    """
    for name in (*_OTHERS, "exit_code"):
        if getattr(args, name):
            what = getattr(args, name) if name == "identifier" else f"--{name.replace('_', '-')}"
            hint = "it searches all recorded runs, with `--since` and `--json`; for one job: `torchx log JOB --regex`"
            raise UsageError(f"`--search` and `{what}` cannot be combined", hint=hint)
    learn_environment()
    runs = [run for run in runner.runs(RunQuery(since=args.since), refresh=False) if run.handle]
    found, unread, bar = 0, 0, is_tty(sys.stderr)
    try:
        for number, run in enumerate(runs, 1):
            if bar:
                sys.stderr.write(f"\r\033[Ksearching run {number:,} of {len(runs):,}: {found:,} lines found")
                sys.stderr.flush()
            try:
                found += _search_run(runner, run, LogQuery(regex=args.search), as_json=args.json, bar=bar)
            except TorchXError:
                unread += 1
    finally:
        if bar:
            sys.stderr.write("\r\033[K")
    if unread:
        note(f"{unread:,} of {len(runs):,} runs have no logs any more; `keep = end` in `[logs]` keeps them")
    if not found:
        sys.exit(EXIT_JOB_FAILED)


def _search_run(runner: Runner, run: Run, query: LogQuery, *, as_json: bool, bar: bool) -> int:
    count, launched = 0, iso(run.created_at) or ""
    for role, k in runner.log_replicas(run.handle):
        for at, line in _timed(runner, run.handle, (role, k), query):
            text = redact(line)
            if bar and not count:
                sys.stderr.write("\r\033[K")
            count += 1
            if as_json:
                import json

                where = {"handle": run.handle, "launched_at": launched, "role": role, "replica": k}
                print(json.dumps({**where, "time": at, "line": text}, ensure_ascii=False))
            else:
                print(f"{run.handle}/{role}/{k} {at or launched} {printable(text)}", flush=True)
    return count


def _timed(runner: Runner, handle: str, replica: tuple[str, int], query: LogQuery) -> Iterator[tuple[str | None, str]]:
    """Yield each line that matches, and when it was written, if that is known.

    Of a progress bar, whose states are separated by carriage returns, the first state that matches is yielded.
    """
    try:
        [lines] = runner.open_logs(handle, [replica], replace(query, timestamps=True))
    except NotSupportedError:
        [lines] = runner.open_logs(handle, [replica], query)
        yield from ((None, line.rstrip("\r\n")) for line in lines)
        return
    found = re.compile("") if query.regex is None else query.regex
    for line in lines:
        states = [state.partition(" ") for state in line.rstrip("\r\n").split("\r")]
        stamp, _, text = next((state for state in states if found.search(state[2])), states[0])
        yield None if stamp == "-" else stamp, text
