"""``torchx cancel``: end jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from torchx.cli.argparse_util import JSON
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_list import parse_states
from torchx.cli.failures import UsageError, error, note
from torchx.cli.log_targets import JOB_HELP, job_reference, resolve_all
from torchx.cli.questions import YES_HELP, agreed
from torchx.cli.render import document
from torchx.errors import TorchXError
from torchx.runner import Runner
from torchx.runner.show.json_output import handle_fields
from torchx.runs import Run, RunQuery
from torchx.specs.api import AppState, is_terminal
from torchx.specs.handles import FOREIGN
from torchx.specs.states import CANCELLING, is_cancelling
from torchx.util.datetime import ago
from torchx.util.term import is_tty


class CmdCancel(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        add = subparser.add_argument
        add("app_handle", type=job_reference, nargs="*", metavar="JOB", help=JOB_HELP)
        add("--all", action="store_true", help="all my runs that have not ended")
        add("--name", metavar="NAME", help="my runs of this name; `*` and `?` are wildcards")
        add("--state", type=parse_states, metavar="STATE,...", help="my runs in one of these states, such as pending")
        add("-f", "--force", action="store_true", help="also adopted jobs, which torchx did not launch")
        add("-y", "--yes", action="store_true", help=YES_HELP)
        add("--json", action="store_true", help=JSON[2])

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Cancel each job. A job that has already ended is not an error."""
        several = args.all or args.name is not None or args.state is not None
        if several and args.app_handle:
            hint = "omit one or the other"
            raise UsageError("jobs and `--all`, `--name`, `--state` exclude each other", hint=hint)
        if not (several or args.app_handle):
            hint = "`@last` is the newest run, `--all` selects all of yours; `torchx list` lists them all"
            raise UsageError("no job is given", hint=hint)
        references = _chosen(runner, args) if several else args.app_handle
        for_each_job(runner, references, lambda handle: _cancel(runner, handle, force=args.force), as_json=args.json)


def for_each_job(runner: Runner, references: list[str], act: Callable[[str], str], *, as_json: bool = False) -> None:
    """Apply an action, which returns a message for the terminal, to several jobs; one that fails stops no other.

    Exits with the code of the first failure.
    """
    failed: list[int] = []
    told: list[dict[str, Any]] = []
    for handle in resolve_all(runner, references, failed):
        try:
            message = act(handle)
        except TorchXError as e:
            failed.append(e.exit_code)
            error(str(e), hint=e.hint)
            told.append({**handle_fields(handle), "done": False, "error": str(e)})
        else:
            told.append({**handle_fields(handle), "done": True, "error": None})
            if is_tty(sys.stderr):
                note(message)
    if as_json:
        print(document(told[0] if len(references) == 1 and told else {"jobs": told}))
    if failed:
        sys.exit(failed[0])


def _cancel(runner: Runner, handle: str, *, force: bool) -> str:
    runner.cancel(handle, force=True) if force else runner.cancel(handle)  # an override may lack `force`
    return _outcome(runner, handle) if is_tty(sys.stderr) else ""


def _outcome(runner: Runner, handle: str) -> str:
    """Whether the job has ended already, or when its processes are killed, if that is known."""
    run = runner.recorded(handle)
    grace_s = run.cfg.get("cancel_grace_s", {}).get("value") if run is not None else None
    killed = f", SIGKILL in {grace_s:g} s" if grace_s else ""
    with suppress(TorchXError):
        status = runner.status(handle)
        if status is None or status.is_terminal():
            return f"cancelled {handle}"
        if not killed and is_cancelling(status.state, status.msg):
            killed = status.msg.removeprefix(CANCELLING)
    return f"{CANCELLING} {handle}{killed}{' if it is still running' if killed else ''}"


def _chosen(runner: Runner, args: argparse.Namespace) -> list[str]:
    """Return the handles of my matching runs that have not ended; empty when the user declines."""
    states = [state for state in args.state or list(AppState) if not is_terminal(state)]
    runs = [run for run in runner.runs(RunQuery(states=states, name=args.name, mine=True)) if run.handle]
    adopted = [] if args.force else [run for run in runs if run.session == FOREIGN]
    if adopted:
        note(f"skipping adopted jobs (use --force): {', '.join(run.handle for run in adopted)}")
        runs = [run for run in runs if run not in adopted]
    if not runs:
        note("no matching run is active")
    elif not args.yes and is_tty(sys.stdin) and is_tty(sys.stderr) and not _agreed(runs):
        return []
    return [run.handle for run in runs]


def _agreed(runs: Sequence[Run]) -> bool:
    for run in runs:
        note(f"  {run.handle}  {run.state}, launched {ago(run.created_at)}")
    return agreed(f"cancel {'these ' + str(len(runs)) + ' jobs' if len(runs) > 1 else 'this job'}")
