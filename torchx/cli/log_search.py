"""``torchx log --search``: lines in the logs of all runs on record, live or in the archive."""

from __future__ import annotations

import argparse
import sys

from torchx.cli.failures import UsageError, note
from torchx.errors import EXIT_JOB_FAILED, TorchXError
from torchx.runner import Runner
from torchx.runs import Run, RunQuery
from torchx.schedulers.kit.logs import LogQuery
from torchx.util.redaction import redact
from torchx.util.secrets import learn_environment
from torchx.util.term import is_tty, iso, printable

_OTHERS = ("identifier", "regex", "follow", "tail", "until", "streams", "rank", "timestamps", "previous", "archive")


def search(runner: Runner, args: argparse.Namespace) -> None:
    """Print each line that matches, with its run and replica; exit with 1 if none does.

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
    count = 0
    for role, k in runner.log_replicas(run.handle):
        [lines] = runner.open_logs(run.handle, [(role, k)], query)
        for line in lines:
            text = redact(line.rstrip("\r\n"))
            if bar and not count:
                sys.stderr.write("\r\033[K")
            count += 1
            if as_json:
                import json

                where = {"handle": run.handle, "launched_at": iso(run.created_at), "role": role, "replica": k}
                print(json.dumps({**where, "line": text}, ensure_ascii=False))
            else:
                print(f"{run.handle}/{role}/{k} {printable(text)}", flush=True)
    return count
