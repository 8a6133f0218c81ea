"""``torchx export``: a job as files with which it is run without torchx."""

from __future__ import annotations

import argparse
import os

from torchx.cli.argparse_util import ArgOnceAction
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import note
from torchx.cli.log_targets import JOB_HELP, job_reference
from torchx.cli.questions import ask_a_person
from torchx.cli.render import document
from torchx.runner import Runner
from torchx.runner.capsule.export import FORMATS
from torchx.runner.capsule.rerun import Rerun
from torchx.specs import AppDryRunInfo
from torchx.specs.images import NamesOnly
from torchx.util.any import Any
from torchx.util.term import printable

__all__ = ["CmdExport", "export_to"]

_HELP = """\
The folder has the job as its scheduler would get it from torchx, written by the same code; the code of the job;
`run.sh`, which starts it; and a README. It may be moved, and no torchx is needed to run it. Values of secrets are
not in it: `run.sh` takes them from its environment.

  torchx export @last -o job/                      for the scheduler that it ran on
  torchx export @last --format sbatch -cfg partition=gpu -o job/ && job/run.sh
  torchx run -s slurm --export job/ train.py       without a run before

Formats: sh (bash alone), sbatch (Slurm), bsub (LSF), k8s (kubectl), compose (docker compose), batch (AWS Batch)."""


class CmdExport(RunnerCommand):
    """a job as files for sbatch, kubectl, ... that need no torchx"""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        subparser.add_argument("app_handle", type=job_reference, metavar="JOB", help=JOB_HELP)
        once = ArgOnceAction
        subparser.add_argument("-o", "--output", action=once, required=True, metavar="DIR", help="a new folder")
        subparser.add_argument(
            "--format", action=once, choices=[*FORMATS], metavar="NAME", help="default: that of the run"
        )
        subparser.add_argument(
            "--code",
            choices=("then", "now"),
            default="now",
            help="the code that the run had, or as it is (default: now)",
        )
        subparser.add_argument(
            "--set", action="append", default=[], metavar="PATH=VALUE", help="change the job, as in `torchx rerun`"
        )
        subparser.add_argument(
            "-cfg", dest="cfg", action="append", default=[], metavar="K=V,...", help="options of the scheduler"
        )
        subparser.add_argument("--json", action="store_true", help="one JSON document, for programs")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        run = runner.recorded(args.app_handle)
        scheduler = FORMATS.get(args.format, "")
        if run is not None and scheduler in (run.scheduler, f"{run.scheduler}_cwd"):
            scheduler = ""  # with the options of the run
        wish = Rerun(
            scheduler=scheduler,
            cfg_literals=args.cfg,
            code=args.code,
            changes=args.set,
            export=True,
            ask=ask_a_person(),
        )
        plan = runner.rerun_plan(args.app_handle, wish)
        for text in plan.notes:
            note(text)
        folder = _absolute(args.output)
        with plan.surroundings(), NamesOnly():
            info = runner.rerun_dryrun(plan)
            export_to(runner, info, folder, workspace=f"file://{plan.cwd}", as_json=args.json)


def export_to(runner: Runner, info: AppDryRunInfo[Any], folder: str, *, workspace: str, as_json: bool) -> None:
    """Writes the folder, and says what is in it."""
    folder = _absolute(folder)
    exported = runner.export(info, folder, workspace)
    runner.discard(info)
    if as_json:
        print(
            document(
                {
                    "folder": folder,
                    "scheduler": info._scheduler,
                    "files": [*exported.about],
                    "secrets": exported.secrets,
                }
            )
        )
        return
    for text in exported.notes:
        note(text)
    if exported.secrets:
        note(f"export before it is run: {', '.join(exported.secrets)}")
    print(printable(f"{folder}/run.sh"))


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))
