"""``torchx rerun``: launch a run on record again."""

from __future__ import annotations

import argparse
import os
from argparse import REMAINDER

from torchx.cli.argparse_util import CFG, CFG_ROW, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_run import launch, show_dryrun, what_was_run
from torchx.cli.failures import UsageError, note
from torchx.cli.log_targets import JOB_HELP, job_reference
from torchx.cli.questions import ask_a_person
from torchx.cli.run_args import DETACH, FULL, JSON, LOG, WAIT
from torchx.component_reader.finder import get_component
from torchx.runner import Runner
from torchx.runner.capsule.rerun import NOW, THEN, Rerun, inside
from torchx.runner.components import make_app
from torchx.runs import Run
from torchx.specs import AppDef

_HELP = """\
The job is made of what is on record of the run: the same roles, options and images. `--code now`, the default,
gives it the code as it is; `--code then` the code that the run had, by the digest of its image or by its commit
and the patch of what was not committed.

  torchx rerun @last
  torchx rerun @last --code then
  torchx rerun @last -- --lr 3e-4                       other arguments of the program
  torchx rerun @last --set num_replicas=8 --set env.LOGLEVEL=INFO
  torchx rerun @last --set roles.trainer.resource.gpu=4 -s kubernetes

A value that is masked on record is taken from where `[secrets]` says, or from this environment, or asked for."""


class CmdRerun(RunnerCommand):
    """launch a run on record again, as it was or with changes"""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declares the options. None has a default here: those behind the job are read in a second go."""
        subparser.epilog = _HELP
        subparser.usage = "torchx rerun [options] JOB [options] [-- arguments]"
        change = "change the job: `num_replicas=8` of each role, `roles.NAME.env.LR=0.1`; may be given more than once"
        rows = (
            ("--code", "then|now", "the code that the run had, or the code as it is (default: now)"),
            ("--set", "PATH=VALUE", change, {"action": "append"}),
            ("-s --scheduler", "NAME", "run it elsewhere; the options of the run do not apply there"),
            ("-cfg --scheduler_args", CFG, "options of the scheduler; they go before those of the run", CFG_ROW),
            ("--dryrun --dry-run", "", "show what would be submitted without submitting it"),
        )
        declare(subparser, (*rows, FULL, WAIT, LOG, DETACH, JSON), sparse=True)
        what = f"{JOB_HELP}; behind `--`, arguments instead of those of the run"
        subparser.add_argument("app_handle", nargs=REMAINDER, metavar="JOB", help=what)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        job, arguments = _read(args)
        given = vars(args)
        code = given.get("code", NOW)
        if code not in (THEN, NOW):
            raise UsageError(f"`--code {code}`", hint="write `--code then` or `--code now`")
        run = runner.recorded(job)
        wish = Rerun(
            scheduler=given.get("scheduler", ""),
            cfg_literals=given.get("cfg", []),
            code=code,
            changes=given.get("set", []),
            command=_command(runner, run, arguments) if run is not None and arguments is not None else None,
            ask=ask_a_person(),
        )
        plan = runner.rerun_plan(job, wish)
        for text in plan.notes:
            note(text)
        if given.get("dryrun"):
            with plan.surroundings():
                show_dryrun(runner, lambda: runner.rerun_dryrun(plan), given)
        else:
            launch(runner, plan.scheduler, lambda: runner.rerun_planned(plan), given)


def _read(args: argparse.Namespace) -> tuple[str, list[str] | None]:
    """The job, and what stands behind ``--`` (None: nothing); ``args`` gets the options that stand behind the job."""
    words = list(args.app_handle)
    at = words.index("--") if "--" in words else len(words)
    ours, new = words[:at], words[at + 1 :]
    if not ours:
        raise UsageError("no job is given", hint="`@last` is the newest run; `torchx list` lists them all")
    job = job_reference(ours[0])
    if ours[1:]:
        args._parser.parse_args(ours[1:], args)
        if args.app_handle:
            word = args.app_handle[0]
            raise UsageError(
                f"unexpected argument `{word}`", hint=f"arguments of the program stand behind `--`: `-- {word}`"
            )
    return job, new if at < len(words) else None


def _command(runner: Runner, run: Run, arguments: list[str]) -> AppDef:
    """The app that the component of a run makes with other arguments."""
    first: Run | None = run
    while first is not None and (before := first.tags.get("rerun_of")):
        first = runner.recorded(before)
    words = first.argv if first is not None else []
    if "run" not in words[1:4] or "--stdin" in words:
        raise UsageError(
            f"`{run.app_id}` was not launched by `torchx run`, so that its arguments cannot be replaced",
            hint="`--set roles.NAME.args.0=VALUE` replaces one",
        )
    # A component that is a file, and what config files say of it, is where the run was launched.
    with inside(run.cwd if os.path.isdir(run.cwd) else "."):
        component, old = what_was_run(words[words.index("run", 1) + 1 :])
        if "--" in old:
            kept = [*old[: old.index("--")], "--"]
        elif _takes_more(component):
            kept = [*old, "--"]
        else:
            kept = []
        return make_app(component, [*kept, *arguments], None)


def _takes_more(component: str) -> bool:
    """Whether a component hands arguments of any number on to its program."""
    import inspect

    kinds = [p.kind for p in inspect.signature(get_component(component).fn).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds
