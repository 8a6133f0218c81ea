"""``torchx delete``: remove jobs with their logs and records."""

from __future__ import annotations

import argparse

from torchx.cli.argparse_util import JSON
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_cancel import for_each_job
from torchx.cli.failures import UsageError
from torchx.cli.log_targets import JOB_HELP, job_reference
from torchx.runner import Runner


class CmdDelete(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("app_handle", type=job_reference, nargs="+", metavar="JOB", help=JOB_HELP)
        subparser.add_argument("-f", "--force", action="store_true", help="also jobs that still run, and adopted jobs")
        subparser.add_argument("--json", action="store_true", help=JSON[2])

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        for_each_job(
            runner, args.app_handle, lambda handle: _delete(runner, handle, force=args.force), as_json=args.json
        )


def _delete(runner: Runner, handle: str, *, force: bool) -> str:
    status = None if force else runner.status(handle)
    if status is not None and not status.is_terminal() and not status.gone:
        raise UsageError(
            f"`{handle}` is {status.state}, and only jobs that have ended are deleted",
            hint="`torchx cancel` ends it and keeps its logs; `torchx delete --force` ends it and removes them",
        )
    runner.delete(handle, force=True) if force else runner.delete(handle)  # an override may lack `force`
    return f"deleted {handle}"
