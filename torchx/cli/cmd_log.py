"""``torchx log``: print the logs of a job."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import ArgumentTypeError
from contextlib import nullcontext
from typing import TYPE_CHECKING, TextIO

from torchx.cli.argparse_util import Row, declare, parse_moment
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError, note
from torchx.cli.log_targets import ID_FORMAT, OR_LAST, find_role_replicas, or_last, parse_target, select
from torchx.errors import ConfigError, NotFoundError
from torchx.runner import Runner, get_runner
from torchx.runner.show.json_output import exit_code_of
from torchx.runner.watching.tee import live_on, log_openers, replica_formats, wait_until_started
from torchx.schedulers.kit.logs import LogQuery, Stream, compile_regex
from torchx.specs.api import UnknownAppException, is_started
from torchx.util.colors import ENDC, GREEN
from torchx.util.log_streams import JsonFormat, LineFormat, Sink, copy_in_turn, copy_together
from torchx.util.records import replace
from torchx.util.redaction import redact
from torchx.util.reexports import reexports
from torchx.util.secrets import learn_environment
from torchx.util.term import has_color, is_tty

if TYPE_CHECKING:
    from queue import Queue

reexports(__name__)

__all__ = [
    "ENDC",
    "GREEN",
    "ID_FORMAT",
    "CmdLog",
    "LogQuery",
    "find_role_replicas",
    "get_logs",
    "print_log_lines",
    "show_logs",
    "validate",
]

_FLAGS = r"\(\?[aiLmsux]+\)"
_JOB_HELP = "a job or parts of it, such as `@last`, `my-app/trainer`, `local_cwd://torchx/my-app/trainer/0,2-4`"
FOLLOW = ""  # the value of `--tail` without a number
_TAIL = {"nargs": "?", "const": FOLLOW}
_STREAMS = ("stdout", "stderr", "combined")


class CmdLog(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        since = "only lines written since then: `10m` (ago), `2h`, or 2026-11-21T08:00[Z]"
        streams = "stdout, stderr, or combined: both, in the order of writing"
        archive = "keep a copy on this machine, to show when the job's pods are gone (Kubernetes)"
        rows: tuple[Row, ...] = (
            # Optional only for argparse, which parses `--tail JOB` as a number of lines; see _untangle.
            ("identifier", "JOB[/ROLE[/REPLICAS]]", _JOB_HELP, OR_LAST),
            ("--regex", "REGEX", "only lines that match this regular expression", {"type": _regex}),
            ("-f --follow", "", "keep printing until the job has ended"),
            ("-t --tail", "N", "the last N lines of each replica; without N, like --follow", _TAIL),
            ("--since", "TIME", since, {"type": parse_moment}),
            ("--until", "TIME", "only lines written before then", {"type": parse_moment}),
            ("--streams --stream", "NAME", streams, {"choices": _STREAMS}),
            ("--json", "", 'one JSON object per line: {"role", "replica", "line"}'),
            ("--raw", "", "on a terminal: keep all control sequences, not only colours"),
            ("--rank", "N", "only lines of this torchrun worker, which begin with `[N]:`", {"type": _rank}),
            ("--timestamps", "", "print the time of each line, in UTC, before it"),
            ("--previous", "", "print the output of the attempt before the last restart"),
            ("--exit-code --exit_code", "", "exit with the job's result, as `torchx status --exit-code`"),
            ("--archive", "", archive),
            (
                "--search",
                "REGEX",
                "search the logs of all recorded runs, newest first, with --since",
                {"type": _searched},
            ),
            ("--no-prefix --no_prefix", "", "omit the ROLE/REPLICA prefix"),
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if args.search is not None:
            from torchx.cli.log_search import search

            search(runner, args)
            return
        named, tail = _untangle(args.identifier, args.tail)
        identifier = or_last(runner, named)
        query = LogQuery(
            regex=_of_rank(args.rank, args.regex),
            since=args.since,
            until=args.until,
            stream=Stream(args.streams) if args.streams else None,
            follow=args.follow or tail == FOLLOW,
            last=None if tail in (None, FOLLOW) else _number(tail),
            keep=args.archive,
            timestamps=args.timestamps,
            previous=args.previous,
        )
        if query.keep and (query.since, query.until, query.last, query.previous) != (None, None, None, False):
            hint = "omit `--since`, `--until`, `--previous` and the number of lines"
            raise UsageError("`--archive` keeps whole logs", hint=hint)
        if query.follow and query.previous:
            raise UsageError("`--previous` shows an attempt that has ended", hint="omit `--follow`")
        validate(identifier)
        show_logs(sys.stdout, identifier, runner, query=query, json=args.json, prefix=not args.no_prefix, raw=args.raw)
        if args.exit_code:
            handle = runner.resolve(parse_target(identifier).reference)
            status = runner.wait(handle, wait_interval=1) if query.follow else runner.status(handle)
            if status is None:
                raise UnknownAppException(handle)
            sys.exit(exit_code_of(status))


def validate(job_identifier: str) -> None:
    """Check the form of a job's identifier; raise HandleError, see :func:`parse_target`.

    >>> validate("local_cwd://torchx/echo-x1/echo/0,2-4")
    """
    parse_target(job_identifier)


def get_logs(  # noqa: PLR0917  # public signature
    file: TextIO,
    identifier: str,
    regex: str | None,
    should_tail: bool = False,
    runner: Runner | None = None,
    streams: Stream | None = None,
) -> None:
    """Copy the log lines of replicas to ``file``, each prefixed with ``role/replica``.

    Args:
        file: the output.
        identifier: see :func:`validate`; without a role, all roles.
        regex: only lines that match this regular expression.
        should_tail: follow the log until the job has ended.
        runner: default: a new one.
        streams: default: that of the scheduler.

    Raises:
        HandleError: the identifier is malformed.
        NotFoundError: there is no such job, role or replica.
    """
    query = LogQuery.of(regex=regex, since=None, until=None, should_tail=should_tail, streams=streams)
    with get_runner() if runner is None else nullcontext(runner) as chosen:
        show_logs(file, identifier, chosen, query=query)


def print_log_lines(  # noqa: PLR0917  # public signature
    file: TextIO,
    runner: Runner,
    app_handle: str,
    role_name: str,
    replica_id: int,
    regex: str,
    should_tail: bool,
    exceptions: Queue[Exception],
    streams: Stream | None,
) -> None:
    """Copy the log lines of one replica to ``file``, in a thread: puts an exception into ``exceptions``."""
    try:
        color = has_color(file)
        prefix = f"\033[32m{role_name}/{replica_id}\033[0m " if color else f"{role_name}/{replica_id} "
        for line in runner.log_lines(
            app_handle, role_name, replica_id, regex=regex, should_tail=should_tail, streams=streams
        ):
            file.write(_prefix_line(prefix, redact(line)))
            file.flush()
    except Exception as e:
        exceptions.put(e)


def _prefix_line(prefix: str, line: str) -> str:
    """Prefixes a line. Other programs import this function."""
    return LineFormat(prefix).chunk(line.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def show_logs(
    file: TextIO,
    identifier: str,
    runner: Runner,
    *,
    query: LogQuery,
    json: bool = False,
    prefix: bool = True,
    raw: bool = False,
) -> None:
    """Copy the log lines that a query selects to ``file``: :func:`get_logs` with all options of ``torchx log``."""
    target = parse_target(identifier)
    handle = runner.resolve(target.reference)
    if query.follow:
        _wait_until_started(runner, handle)
    replicas = runner.log_replicas(handle)
    if not replicas:
        raise NotFoundError(f"`{handle}` has no replicas", hint=f"`torchx status {handle}` shows its state")
    learn_environment()
    chosen = select(replicas, replace(target, reference=handle))
    formats = replica_formats(replicas, color=has_color(file))
    if json:
        shows: list[LineFormat] = [JsonFormat(role, k, timed=query.timestamps) for role, k in chosen]
    else:
        query = live_on(file, query, chosen)
        shows = [formats[place] if prefix else LineFormat("") for place in chosen]
    sources = list(zip(shows, log_openers(runner, handle, chosen, query), strict=True))
    sink = Sink(file, raw=raw)
    if query.follow and sources:
        copy_together(sources, sink, note)
    else:
        copy_in_turn(sources, sink, some=query.previous)


def _wait_until_started(runner: Runner, handle: str) -> None:
    queued = runner.status(handle) if is_tty(sys.stderr) else None
    if queued is not None and not is_started(queued.state):
        note(f"{handle} is {queued.state}: waiting until it runs")
    status = wait_until_started(runner, handle)
    if status is None:
        raise UnknownAppException(handle)
    if status.error is not None:  # the logs would fail in the same way
        raise status.error


def _untangle(identifier: str | None, tail: str | None) -> tuple[str | None, str | None]:
    """Return the job and the value of ``--tail``. In ``--tail JOB`` argparse takes the job for the number of lines.

    >>> _untangle(None, "@last"), _untangle("@last", "5"), _untangle(None, "5")
    (('@last', ''), ('@last', '5'), (None, '5'))
    """
    if identifier is None and tail and not tail.isdecimal():
        return tail, FOLLOW
    return identifier, tail


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ArgumentTypeError(f"`{text}` is not the number of a rank")
    return int(text)


def _of_rank(rank: int | None, regex: re.Pattern[str] | None) -> re.Pattern[str] | None:
    """Restricts an expression to the lines that torchrun has prefixed with this rank.

    >>> bool(_of_rank(3, re.compile("(?i)LOSS")).search("[3]:loss 1")), bool(_of_rank(3, None).search("[13]:loss 1"))
    (True, False)
    """
    if rank is None:
        return regex
    head = rf"^(?=\[\D*{rank}\]:)"
    if regex is None:
        return re.compile(head)
    flags = re.match(_FLAGS, regex.pattern)  # global flags are only allowed at the beginning
    start = flags.group() if flags else ""
    end = "\n" if regex.flags & re.VERBOSE else ""  # the expression may end with a comment
    return re.compile(f"{start}{head}(?=.*?(?:{regex.pattern[len(start) :]}{end}))")


def _number(text: str | None) -> int:
    if not (text and text.isascii() and text.isdigit() and len(text) < 20):
        raise UsageError(f"`--tail`: `{text}` is not a number of lines", hint="without a number it follows, as `-f`")
    return min(int(text), sys.maxsize)


def _searched(text: str) -> re.Pattern[str]:
    try:
        return compile_regex(text)
    except ConfigError as e:
        raise ConfigError(f"`--search`: {e}", hint=e.hint) from None


def _regex(text: str) -> re.Pattern[str] | None:
    """Return None for an empty expression: it selects all lines, as they come."""
    try:
        return compile_regex(text) if text else None
    except ConfigError as e:
        raise ConfigError(f"`--regex`: {e}", hint=e.hint) from None
