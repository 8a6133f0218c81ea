"""``torchx export``: write a job as files that run it without torchx."""

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

_HELP = """\
The folder holds the job as torchx would submit it, the code of the job, `run.sh`, which starts it, and a README.
It can be moved, and does not need torchx; only you can read it. It holds no secret values: `run.sh` reads them from its
environment. Files that secrets are read from, and `.env` files, are left out of the code.

  torchx export @last -o job/                      for the scheduler that it ran on
  torchx export @last --format sbatch -cfg partition=gpu -o job/ && job/run.sh
  torchx run -s slurm --export job/ train.py       without a previous run

Formats: sh (bash alone), sbatch (Slurm), bsub (LSF), k8s (kubectl), compose (docker compose), batch (AWS Batch)."""
_CODE = {"choices": ("then", "now"), "default": "now"}


class CmdExport(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        once = {"action": ArgOnceAction}
        formats = {**once, "choices": [*FORMATS]}
        rows: tuple[Row, ...] = (
            ("app_handle", "JOB", JOB_HELP, {"type": job_reference}),
            ("-o --output", "DIR", "a new folder", {**once, "required": True}),
            ("--format", "NAME", f"one of {', '.join(FORMATS)} (default: that of the run)", formats),
            ("--code", "{then,now}", "the code of the run, or the current code (default: now)", _CODE),
            ("--set", "PATH=VALUE", "change the job, as in `torchx rerun`", {"action": "append", "default": []}),
            ("-cfg", CFG, "options of the scheduler", {**CFG_ROW, "default": []}),
            JSON,
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        run = runner.recorded(args.app_handle)
        scheduler = FORMATS.get(args.format, "")
        if run is not None and scheduler in (run.scheduler, f"{run.scheduler}_cwd"):
            scheduler = ""  # keeps the options of the run
        given = {"cfg_literals": args.cfg, "code": args.code, "changes": args.set, "ask": ask_a_person()}
        plan = runner.rerun_plan(args.app_handle, Rerun(scheduler=scheduler, export=True, **given))
        for text in plan.notes:
            note(text)
        folder = os.path.abspath(os.path.expanduser(args.output))  # before `surroundings` changes the directory
        with plan.surroundings(), NamesOnly():
            info = runner.rerun_dryrun(plan)
            export_to(runner, info, folder, workspace=f"file://{plan.cwd}", as_json=args.json)


def export_to(runner: Runner, info: AppDryRunInfo[Any], folder: str, *, workspace: str, as_json: bool) -> None:
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
        note(f"before running it, export: {', '.join(exported.secrets)}")
    print(printable(f"{folder}/run.sh"))
