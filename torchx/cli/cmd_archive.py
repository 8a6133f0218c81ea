"""The hidden verb ``__archive``: keeps the logs of runs that have ended; see :mod:`torchx.runner.watching.keeping`."""

from __future__ import annotations

import argparse

from torchx.cli.cmd_base import RunnerCommand
from torchx.runner import Runner
from torchx.runner.watching.keeping import work


class CmdArchive(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("lock", type=int)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        work(runner.archive_logs, args.lock)
