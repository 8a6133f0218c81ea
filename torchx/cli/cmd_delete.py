"""``torchx delete``: remove jobs, their logs and their records."""

from __future__ import annotations

from torchx.cli.cmd_base import SubCommand
from torchx.cli.cmd_cancel import for_each_job
from torchx.cli.log_targets import JOB_HELP, job_reference

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

__all__ = ["CmdDelete"]


class CmdDelete(SubCommand):
    """remove jobs, their logs and their records; one that still runs is cancelled first"""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        subparser.add_argument("app_handle", type=job_reference, nargs="+", metavar="JOB", help=JOB_HELP)

    def run(self, args: argparse.Namespace) -> None:
        """Deletes each."""
        for_each_job(args.app_handle, lambda runner, handle: runner.delete(handle), "deleted")
