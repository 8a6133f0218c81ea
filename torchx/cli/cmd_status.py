"""``torchx status``: show the state of a job, and why it failed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from torchx.cli.argparse_util import JSON, Row, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import error
from torchx.cli.log_targets import JOB_HELP, OR_LAST, job_reference, or_last, resolve_all
from torchx.cli.render import document, gray
from torchx.errors import EXIT_BACKEND, NotFoundError, TorchXError
from torchx.runner import Runner
from torchx.runner.show.json_output import exit_code_of, failures_fields, handle_fields, status_fields
from torchx.settings import FIRST_SAMPLE_S, torchx_home
from torchx.specs import AppStatus
from torchx.specs.api import UnknownAppException, parse_app_handle
from torchx.specs.handles import FOREIGN
from torchx.util.datetime import ago, duration, local_time
from torchx.util.reexports import reexports
from torchx.util.strings import did_you_mean
from torchx.util.term import has_color, is_tty, iso, printable

if TYPE_CHECKING:
    from torchx.runs import Run

reexports(__name__)


class CmdStatus(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        watched = "update the page live until the jobs have ended; in a pipe print each change, then the page"
        rows: tuple[Row, ...] = (
            ("app_handle", "JOB", JOB_HELP, {"type": job_reference, **OR_LAST}),
            ("more", "JOB", "further jobs", {"type": job_reference, "nargs": "*"}),
            ("--roles", "ROLE,...", "only these roles", {"type": parse_list_arg}),
            ("-w --watch", "", watched),
            JSON,
            ("--exit-code --exit_code", "", "exit 0 if it succeeded, 1 if not, 75 if it has not ended"),
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Print a page for each job.

        Without ``--exit-code`` the exit code does not depend on the state of the job. It is 3 when there is no such
        job, and 4 when the scheduler cannot be asked and the last known state is not final. For several jobs it is the
        first that is not 0.
        """
        references = [or_last(runner, args.app_handle), *args.more]
        alone = len(references) == 1
        codes: list[int] = []
        documents: list[dict[str, Any]] = []
        handles = resolve_all(runner, references, None if alone else codes)
        if args.watch and handles:
            from torchx.cli.live_status import watch

            watch(
                runner,
                handles,
                lambda handle, seen: _page(runner, handle, *_find(runner, handle, args.roles, seen), args.roles)[0],
                as_json=args.json,
            )
        for handle in handles:
            try:
                found = _find(runner, handle, args.roles)
            except TorchXError as e:
                if alone:
                    raise
                codes.append(e.exit_code)
                error(str(e), hint=e.hint)
                continue
            status = found[0]
            codes.append(exit_code_of(status) if args.exit_code else 0)
            if status.error is not None and not status.is_terminal():
                codes.append(EXIT_BACKEND)
            if args.json:
                documents.append(status_document(handle, *found, args.roles))
                if status.tasks is not None:
                    documents[-1]["tasks"]["failures"] = failures_fields(runner.sweep_failures(handle, status.tasks))
            else:
                _print_page(*_page(runner, handle, *found, args.roles), alone=alone)
        if args.json:
            print(document(documents[0] if alone else {"jobs": documents}))
        if code := next(filter(None, codes), 0):
            sys.exit(code)


def _find(
    runner: Runner, handle: str, roles: list[str] | None, seen: AppStatus | None = None
) -> tuple[AppStatus, Run | None]:
    """Return the status of a job (``seen`` if given), and its record if the page needs it."""
    status = runner.status(handle) if seen is None else seen
    if status is None:
        raise UnknownAppException(handle)
    _check_roles(status, roles, handle)
    run = None if _knows_times(status) else runner.recorded(handle)
    fill(runner, handle, status, run)
    return status, run


def fill(runner: Runner, handle: str, status: AppStatus, run: Run | None) -> None:
    """Add to a status what its job uses, and how far it is."""
    launched, ended = _times(status, run)
    is_long = launched is not None and (ended or time.time()) - launched >= FIRST_SAMPLE_S
    if status.roles and (is_long or handle.count("/") > 3):  # shorter jobs have no samples; tasks of a sweep may
        runner.fill_metrics(handle, status, run)
        runner.fill_pace(handle, status)


def parse_list_arg(arg: str) -> list[str] | None:
    """Split a comma-separated list; return None when it is empty.

    >>> parse_list_arg("trainer, reader"), parse_list_arg("")
    (['trainer', 'reader'], None)
    """
    return [word.strip() for word in arg.split(",") if word.strip()] or None


def _check_roles(status: AppStatus, wanted: list[str] | None, handle: str) -> None:
    known = [role.role for role in status.roles]
    for role in wanted or ():
        if role not in known:
            hint = did_you_mean(role, known) or (f"its roles: {', '.join(known)}" if known else "it reports no roles")
            raise NotFoundError(f"`{handle}` has no role `{role}`", hint=hint)


def status_document(handle: str, status: AppStatus, run: Run | None, roles: list[str] | None) -> dict[str, Any]:
    """Return the document of ``torchx status --json``, except for the failures of a sweep's tasks."""
    launched, ended = _times(status, run)
    times = {"created_at": iso(launched), "ended_at": iso(ended), "as_of": iso(status.as_of)}
    asked = {"scheduler_error": None if status.error is None else str(status.error), "notices": _unsent(handle)}
    return {**handle_fields(handle), **status_fields(status, roles=roles), **times, **asked}


def _unsent(handle: str) -> list[str]:
    """Return why notices could not be sent."""
    if not os.path.isdir(torchx_home("notices")):
        return []
    from torchx.runner.notices.plans import problems

    return problems(handle)


def _page(
    runner: Runner, handle: str, status: AppStatus, run: Run | None, roles: list[str] | None = None
) -> tuple[str, list[str]]:
    """Return the page of a job, and commands to suggest below it."""
    app_id = parse_app_handle(handle).app_id
    lines = [f"app:      {handle}", *_time_lines(status, run)]
    if "/" in app_id or status.tasks is not None:
        from torchx.cli import sweep_page

        lines[1:1] = sweep_page.values_line(runner, handle, app_id)
    if status.tasks is not None:
        lines += sweep_page.lines(runner, handle, status, status.tasks, launched=_times(status, run)[0])
        more = sweep_page.next_steps(app_id, status, status.tasks)
    else:
        lines.append(status.format(roles, color=has_color(sys.stdout)))
        if str(status.state) == "FAILED":
            from torchx.cli.waiting import more_memory

            lines += more_memory(runner, handle, status)
        more = [f"torchx log {'' if status.is_terminal() else '-f '}{app_id}", f"torchx describe {app_id}"]
    if unsent := _unsent(handle):
        lines += [f"notices:  {printable(problem)}" for problem in unsent]
    return "\n".join(lines), more


def _print_page(page: str, more: list[str], *, alone: bool) -> None:
    print(page + "\n" * (not alone))
    if alone and is_tty(sys.stdout):
        print(gray("\n" + " · ".join(more), color=has_color(sys.stdout)))


def _knows_times(status: AppStatus) -> bool:
    """Whether the status has the times. Opening the record would double the time that the page of a local job takes."""
    return status.created_at is not None and (status.ended_at is not None or not status.is_terminal())


def _times(status: AppStatus, run: Run | None) -> tuple[float | None, float | None]:
    """Return the Unix times at which the job was launched and ended."""
    launched = status.created_at or (run.created_at if run and run.session != FOREIGN else status.started_at)
    ended = status.ended_at or (run.ended_at if run else None)
    return launched, ended if status.is_terminal() else None


def _time_lines(status: AppStatus, run: Run | None) -> list[str]:
    launched, ended = _times(status, run)
    adopted = run is not None and run.session == FOREIGN
    lines = [f"adopted:  {local_time(run.created_at)} by {run.user}"] if run is not None and adopted else []
    if launched is not None:
        by = f" by {run.user}" if run is not None and run.user and not adopted else ""
        lines.append(f"{'started: ' if adopted else 'launched:'} {local_time(launched)} ({ago(launched)}){by}")
    if ended is not None:
        took = f", after {duration(ended - launched)}" if launched is not None else ""
        lines.append(f"ended:    {local_time(ended)}{took}")
    return lines
