"""What every verb of the command line is."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx.runner import Runner


class SubCommand(ABC):
    """One verb: ``torchx <verb>``. A plugin registers its class in the entry-point group ``torchx.cli.cmds``.

    The first line of the class's docstring is its line in ``torchx --help``.

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
        """Declares the verb's options and arguments."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> None:
        """Runs the verb. An error of :mod:`torchx.errors` becomes one line and its exit code."""


class RunnerCommand(SubCommand):
    """A verb that asks a Runner, which is closed when it is done."""

    def run(self, args: argparse.Namespace) -> None:
        """Makes the Runner; it is not imported before, so that a page of help costs little."""
        from torchx.runner import get_runner

        with get_runner() as runner:
            self.work(runner, args)

    @abstractmethod
    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """What the verb does."""
