"""Base classes of the verbs of the command line."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx.runner import Runner


class SubCommand(ABC):
    """A verb: ``torchx <verb>``. A plugin registers its class in the entry-point group ``torchx.cli.cmds``.

    The first line of the docstring of a plugin's class is its description in ``torchx <verb> --help``.

    >>> class CmdHello(SubCommand):
    ...     '''says hello'''
    ...     def add_arguments(self, subparser):
    ...         subparser.add_argument("name")
    ...     def run(self, args):
    ...         print("hello", args.name)
    >>> from torchx.cli.main import run_main
    >>> run_main({"hello": CmdHello()}, ["hello", "world"])
    hello world
    """

    @abstractmethod
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declare the verb's options and arguments."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> None:
        """Run the verb. The command line reports an error of :mod:`torchx.errors` in one line."""


class RunnerCommand(SubCommand):
    """A verb that needs a Runner, which is closed afterwards."""

    def run(self, args: argparse.Namespace) -> None:
        """Create the Runner and call :meth:`work`."""
        from torchx.runner import get_runner  # here, so that `--help` does not pay for the import

        with get_runner() as runner:
            self.work(runner, args)

    @abstractmethod
    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Do the work of the verb."""
