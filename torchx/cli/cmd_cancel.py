"""``torchx cancel``: end jobs."""

from __future__ import annotations

import sys

from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import error, note
from torchx.cli.log_targets import JOB_HELP, job_reference
from torchx.errors import TorchXError
from torchx.util.term import is_tty

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from torchx.runner import Runner
else:
    from torchx.util.reexports import reexports

    __getattr__ = reexports(__name__)

__all__ = ["CmdCancel", "for_each_job"]


class CmdCancel(SubCommand):
    """end jobs; their logs and records stay"""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        subparser.add_argument("app_handle", type=job_reference, nargs="+", metavar="JOB", help=JOB_HELP)

    def run(self, args: argparse.Namespace) -> None:
        """Cancels each; quiet about those that have ended already."""
        for_each_job(args.app_handle, lambda runner, handle: runner.cancel(handle), "cancelling")


def for_each_job(references: list[str], act: Callable[[Runner, str], None], doing: str) -> None:
    """Applies an action to several jobs; a failure with one of them does not stop the others.

    Args:
        doing: what is said to people.

    Raises:
        SystemExit: one failed; with its exit code.
    """
    from torchx.runner import get_runner

    failed = 0
    with get_runner() as runner:
        # All references first: `@last` and prefixes must not change their meaning half way.
        handles = []
        for reference in dict.fromkeys(references):
            try:
                handles.append(runner.resolve(reference))
            except TorchXError as e:
                failed = failed or e.exit_code
                error(str(e), hint=e.hint)
        for handle in dict.fromkeys(handles):
            try:
                act(runner, handle)
            except TorchXError as e:
                failed = failed or e.exit_code
                error(str(e), hint=e.hint)
            else:
                if is_tty(sys.stderr):
                    note(f"{doing} {handle}")
    if failed:
        sys.exit(failed)
