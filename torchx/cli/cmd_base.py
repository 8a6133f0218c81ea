"""What every verb of the command line is."""

from __future__ import annotations

from abc import ABC, abstractmethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


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
