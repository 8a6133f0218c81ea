"""``torchx export``: a job as files with which it is run without torchx."""

from __future__ import annotations

import argparse
import os
from typing import Any

from torchx.cli.argparse_util import CFG, CFG_ROW, JSON, ArgOnceAction, Row, declare
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
_CODE = {"choices": ("then", "now"), "default": "now"}


class CmdExport(RunnerCommand):
    """a job as files for sbatch, kubectl, ... that need no torchx"""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        once = {"action": ArgOnceAction}
        rows: tuple[Row, ...] = (
            ("app_handle", "JOB", JOB_HELP, {"type": job_reference}),
            ("-o --output", "DIR", "a new folder", {**once, "required": True}),
            ("--format", "NAME", "default: that of the run", {**once, "choices": [*FORMATS]}),
            ("--code", "{then,now}", "the code that the run had, or as it is (default: now)", _CODE),
            ("--set", "PATH=VALUE", "change the job, as in `torchx rerun`", {"action": "append", "default": []}),
            ("-cfg", CFG, "options of the scheduler", {**CFG_ROW, "default": []}),
            JSON,
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        run = runner.recorded(args.app_handle)
        scheduler = FORMATS.get(args.format, "")
        if run is not None and scheduler in (run.scheduler, f"{run.scheduler}_cwd"):
            scheduler = ""  # with the options of the run
        given = {"cfg_literals": args.cfg, "code": args.code, "changes": args.set, "ask": ask_a_person()}
        plan = runner.rerun_plan(args.app_handle, Rerun(scheduler=scheduler, export=True, **given))
        for text in plan.notes:
            note(text)
        folder = os.path.abspath(os.path.expanduser(args.output))  # of here, not of where the run was launched
        with plan.surroundings(), NamesOnly():
            info = runner.rerun_dryrun(plan)
            export_to(runner, info, folder, workspace=f"file://{plan.cwd}", as_json=args.json)


def export_to(runner: Runner, info: AppDryRunInfo[Any], folder: str, *, workspace: str, as_json: bool) -> None:
    """Writes the folder, and says what is in it."""
    folder = os.path.abspath(os.path.expanduser(folder))
    exported = runner.export(info, folder, workspace)
    runner.discard(info)
    if as_json:
        about = {"files": [*exported.about], "secrets": exported.secrets}
        print(document({"folder": folder, "scheduler": info._scheduler, **about}))
        return
    for text in exported.notes:
        note(text)
    if exported.secrets:
        note(f"export before it is run: {', '.join(exported.secrets)}")
    print(printable(f"{folder}/run.sh"))
