"""``torchx rerun``: launch a run on record again."""

from __future__ import annotations

import argparse
import os
from argparse import REMAINDER

from torchx.cli.argparse_util import CFG, CFG_ROW, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_run import launch, parsed, show_dryrun, what_to_run
from torchx.cli.failures import UsageError, note
from torchx.cli.log_targets import JOB_HELP, job_reference
from torchx.cli.questions import ask_a_person
from torchx.cli.run_args import DETACH, FULL, JSON, LOG, WAIT, YES
from torchx.component_reader.arguments import in_mib
from torchx.component_reader.finder import get_component
from torchx.runner import Runner
from torchx.runner.capsule.rerun import NOW, THEN, Rerun, inside
from torchx.runner.ground.components import make_app
from torchx.runs import Run
from torchx.specs import AppDef
from torchx.specs.wishes.timeouts import TIMEOUT

_FIT_PATHS = {"mem": "resource.memMB", "cpu": "resource.cpu"}
_HELP = """\
Launches the job from the record of the run, with the same roles, options and images. It runs the current code; with
`--code then` the code of the run, found by its image digest, or by its commit and the recorded patch.

  torchx rerun @last
  torchx rerun @last --code then
  torchx rerun @last -- --lr 3e-4                       other arguments of the program
  torchx rerun @last --set num_replicas=8 --set env.LOGLEVEL=INFO
  torchx rerun @last --set roles.trainer.resource.gpu=4 -s kubernetes

Masked values come from `[secrets]` in .torchxconfig, from this environment, or from a prompt."""


class CmdRerun(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declare the options, without defaults: `_read` parses those after the job in a second pass."""
        subparser.epilog = _HELP
        subparser.usage = "torchx rerun [options] JOB [options] [-- arguments]"
        change = "change the job: `num_replicas=8` for all roles, `roles.NAME.env.LR=0.1`; repeatable"
        rows = (
            ("--code", "then|now", "the code of the run, or the current code (default: now)", {"choices": (THEN, NOW)}),
            ("--set", "PATH=VALUE", change, {"action": "append"}),
            (
                "--fit",
                "",
                "ask for what the run used, with a margin, if it asked for much more",
            ),
            ("-s --scheduler", "NAME", "run it on another scheduler, without the scheduler options of the run"),
            ("-cfg --scheduler_args", CFG, "options of the scheduler; they override those of the run", CFG_ROW),
            ("--dryrun --dry-run", "", "show what would be submitted without submitting it"),
        )
        declare(subparser, (*rows, FULL, WAIT, LOG, DETACH, YES, JSON), sparse=True)
        what = f"{JOB_HELP}; after `--`, arguments that replace those of the run"
        subparser.add_argument("app_handle", nargs=REMAINDER, metavar="JOB", help=what)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        job, arguments = _read(args)
        given = vars(args)
        run = runner.recorded(job)
        wish = Rerun(
            scheduler=given.get("scheduler", ""),
            cfg_literals=given.get("cfg", []),
            code=given.get("code", NOW),
            changes=[*(_fitting(runner, job) if given.get("fit") else ()), *given.get("set", [])],
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
    """Return the job, and the words after ``--`` (None without it). Adds options after the job to ``args``."""
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
            raise UsageError(f"unexpected argument `{word}`", hint=f"program arguments go after `--`: `-- {word}`")
    return job, new if at < len(words) else None


def _fitting(runner: Runner, job: str) -> list[str]:
    """Return the changes by which a run asks for what it used, with a margin, and say which."""
    handle = runner.resolve(job)
    status = runner.status(handle)
    if status is None or str(status.state) != "SUCCEEDED":
        state = "not known" if status is None else str(status.state)
        raise UsageError(f"`--fit`: `{handle}` is {state}", hint="only a run that has succeeded used what it needs")
    runner.fill_metrics(handle, status, runner.recorded(handle))
    if not status.usage:
        raise UsageError(f"`--fit`: what `{handle}` used is not known", hint="`torchx metrics` shows what was sampled")
    changes, run = [], runner.recorded(handle)
    limited = run is not None and TIMEOUT in run.app.get("metadata", {})  # else by an option of the scheduler
    for usage in status.usage:
        if enough := usage.enough():
            note(f"{usage.role}: {' '.join(f'--{name} {value}' for name, value in enough.items())} (used {usage})")
        for name, value in enough.items():
            if name != "timeout":
                amount = in_mib(value) if name == "mem" else value
                changes.append(f"roles.{usage.role}.{_FIT_PATHS[name]}={amount}")
            elif limited:
                changes.append(f"metadata.{TIMEOUT}={value}")
    if not changes:
        note("the run used about what it asked for: nothing is changed")
    return changes


def _command(runner: Runner, run: Run, arguments: list[str]) -> AppDef:
    """Call the component of a run with other arguments, and return its AppDef."""
    first: Run | None = run
    while first is not None and (before := first.tags.get("rerun_of")):
        first = runner.recorded(before)
    words = first.argv if first is not None else []
    if "run" not in words[1:4] or "--stdin" in words:
        raise UsageError(
            f"`{run.app_id}` was not launched by `torchx run`, so its arguments cannot be replaced",
            hint="`--set roles.NAME.args.0=VALUE` replaces one",
        )
    # Component files and config files are relative to the directory of the launch.
    with inside(run.cwd if os.path.isdir(run.cwd) else "."):
        component, old = what_to_run(parsed(words[words.index("run", 1) + 1 :]))
        if "--" in old:
            kept = [*old[: old.index("--")], "--"]
        elif _takes_more(component):
            kept = [*old, "--"]
        else:
            kept = []
        return make_app(component, [*kept, *arguments], None)


def _takes_more(component: str) -> bool:
    """Whether a component passes any number of arguments to its program."""
    import inspect

    kinds = [p.kind for p in inspect.signature(get_component(component).fn).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds
