"""The hidden verb ``__archive``, which keeps the logs of a run that has ended; see :mod:`.watching.archive`."""

from __future__ import annotations

import argparse

from torchx.cli.cmd_base import RunnerCommand
from torchx.runner import Runner


class CmdArchive(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("app_handle")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        runner.archive_logs(args.app_handle)
