"""``torchx cp`` and ``fetch``: copy files into and out of a replica; out of it also when it has ended."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_exec import Replica, find_replica
from torchx.cli.failures import UsageError, note, progress, warn
from torchx.cli.log_targets import JOB_HELP, job_reference, or_last
from torchx.cli.render import document
from torchx.errors import HandleError, NotFoundError, TorchXError
from torchx.runner import Runner
from torchx.runner.show.json_output import handle_fields
from torchx.util.strings import size_text
from torchx.util.term import is_tty
from torchx.workspace.private import is_private_name

if TYPE_CHECKING:
    from torchx.runner.inside.copy import Copied

_EVERY_S = 0.2


class CmdCp(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        source = "PATH on this machine, or JOB[/ROLE[/REPLICA]]:PATH in a replica; without JOB, of @last"
        subparser.add_argument("source", metavar="SOURCE", help=source)
        subparser.add_argument("target", metavar="TARGET", help="likewise; an existing folder, or the new name")
        subparser.add_argument("--json", action="store_true", help="one JSON document, for programs")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        tty = is_tty(sys.stderr)
        source, target = _in_replica(runner, args.source), _in_replica(runner, args.target)
        if (source is None) == (target is None):
            raise UsageError(
                "both files are on this machine" if source is None else "both files are in replicas",
                hint="write one of them as JOB[/ROLE[/REPLICA]]:PATH, for example `@last/trainer/0:ckpt/`",
            )
        handle, (role, k), path = source or target  # type: ignore[misc]  # one of them is not None

        ends = (path, args.target) if source else (args.source, path)
        show: Callable[[int], None] = _Progress().add if tty else lambda _: None
        done = runner.copy(handle, ends[0], ends[1], role, k, into=not source, progress=show)
        if tty:
            note(_summary(done))
        if args.json:
            where = {**handle_fields(handle), "role": role, "replica": k}
            count = {"files": done.files, "bytes": done.bytes, "skipped": done.skipped, "left_out": done.left_out}
            print(document({**where, **count}))
        _say_left_out(done.left_out)


class CmdFetch(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("job", type=job_reference, metavar="JOB", help=JOB_HELP)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        handle = runner.resolve(args.job)
        if not fetch(runner, handle):
            raise UsageError(
                f"`{handle}` names no results to fetch",
                hint="`torchx run --fetch runs/` does; `torchx cp JOB:PATH .` copies any file",
            )


def fetch(runner: Runner, handle: str) -> bool:
    """Copy the results that a job names, and say what was copied; return whether it names any."""
    show: Callable[[int], None] = _Progress().add if is_tty(sys.stderr) else lambda _: None

    def say(source: str, done: Copied) -> None:
        progress("")
        note(f"fetched {source}: {_summary(done)}")
        _say_left_out(done.left_out, hidden=is_private_name)

    return bool(runner.fetch(handle, show, say))


def fetch_at_end(runner: Runner, handle: str) -> None:
    """Do the same for a job that has ended; what goes wrong is a warning, for the job itself may be fine."""
    try:
        fetch(runner, handle)
    except TorchXError as e:
        warn(f"some results of {handle} were not fetched: {e}; `torchx fetch {handle}` tries again")


def _summary(done: Copied) -> str:
    again = f", {done.skipped} were there" if done.skipped else ""
    return f"{done.files} file{'s' * (done.files != 1)}, {size_text(done.bytes)}{again}"


def _say_left_out(names: Iterable[str], *, hidden: Callable[[str], bool] = lambda _: False) -> None:
    for name in names:
        why = "it is a link that may lead out of the folder, or no file, or something else is in its place"
        warn(f"`{name}` was left out: {'it may contain credentials' if hidden(name) else why}")


class _Progress:
    """Bytes and throughput on the progress line."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._bytes = 0

    def add(self, count: int) -> None:
        self._bytes += count
        now = time.monotonic()
        if now >= self._last + _EVERY_S:
            self._last = now
            progress(f"{size_text(self._bytes)}, {size_text(self._bytes / (now - self._began))}/s")


def _in_replica(runner: Runner, text: str) -> tuple[str, Replica, str] | None:
    """Return handle, replica and path of a file in a replica; None for a local one. Job names may contain colons."""
    if text.startswith(("/", "./", "../", "~")) or ":" not in text.replace("://", "", 1):
        return None
    text = f"{or_last(runner, None)}{text}" if text.startswith(":") else text
    problem: NotFoundError | HandleError | None = None
    begin = text.find("://") + 3 if "://" in text else 0
    while (at := text.find(":", begin)) >= 0:
        begin = at + 1
        try:
            return *find_replica(runner, text[:at]), text[begin:] or "."
        except (NotFoundError, HandleError) as e:
            problem = problem or e
    assert problem is not None  # there was a colon
    raise problem
