"""``torchx cp``: copy files into and out of a running replica."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_exec import Replica, find_replica
from torchx.cli.failures import UsageError, note, progress, warn
from torchx.cli.log_targets import or_last
from torchx.errors import HandleError, NotFoundError
from torchx.runner import Runner
from torchx.util.term import is_tty

_EVERY_S = 0.2
_MB = 1_000_000


class CmdCp(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        source = "PATH on this machine, or JOB[/ROLE[/REPLICA]]:PATH in a replica; without JOB, of @last"
        subparser.add_argument("source", metavar="SOURCE", help=source)
        subparser.add_argument("target", metavar="TARGET", help="likewise; an existing folder, or the new name")

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
            again = f", {done.skipped} were there" if done.skipped else ""
            note(f"{done.files} file{'s' * (done.files != 1)}, {done.bytes / _MB:.1f} MB{again}")
        for name in done.left_out:
            why = "it is a link that may lead out of the folder, or no file, or something else is in its place"
            warn(f"`{name}` was left out: {why}")


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
            progress(f"{self._bytes / _MB:.1f} MB, {self._bytes / _MB / (now - self._began):.1f} MB/s")


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
