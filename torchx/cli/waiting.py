"""``torchx run --wait``: progress of the job, and handling of Ctrl-C."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from torchx.cli.failures import note, progress, warn
from torchx.cli.render import document, gray
from torchx.errors import EXIT_INTERRUPTED, TorchXError
from torchx.runner import Runner
from torchx.runner.show.json_output import exit_code_of, handle_fields, status_fields
from torchx.runner.watching.tee import tee_logs
from torchx.specs import AppStatus
from torchx.specs.api import UnknownAppException, parse_app_handle
from torchx.specs.states import is_cancelling, is_started, state_text
from torchx.specs.tasks import progress as task_progress
from torchx.specs.wishes.fetch import FETCH
from torchx.util.datetime import duration
from torchx.util.term import fit, has_color, is_tty, printable, width

_TICK_S = 1.0
_POLL_S = 1.0


def wait_for(runner: Runner, handle: str, *, with_logs: bool, as_json: bool, cancels: bool = True) -> None:
    """Print the handle, alone on a line of stdout (unless ``as_json``), and wait until the job has ended.

    Exits with 1 if the job failed or was cancelled, 7 if it no longer exists, 130 after Ctrl-C, which with ``cancels``
    cancels the job, and otherwise only detaches.
    """
    started = time.monotonic()
    tee = None
    interrupted = False
    try:
        if not as_json:
            print(handle, flush=True)
        if with_logs:
            if is_tty(sys.stderr):
                _until_started(runner, handle, since=started, ctrl_c="cancels" if cancels else "detaches")
            tee = tee_logs(sys.stderr, handle, None, runner, should_tail=True, colorize=has_color(sys.stderr))
        status = _wait(runner, handle, shows=tee is None and is_tty(sys.stderr), since=started)
    except KeyboardInterrupt:
        if not cancels:
            app_id = handle.rpartition("/")[2]
            note(f"\ndetached, the job continues · torchx log -f {app_id} · torchx cancel {app_id}")
            sys.exit(EXIT_INTERRUPTED)
        interrupted = True
        status = cancel(runner, handle, since=started, shows=tee is None and is_tty(sys.stderr))
    if tee is not None:
        tee.join()
        if isinstance(tee.error, TorchXError):
            warn(f"the logs cannot be shown: {tee.error}")
        elif tee.error is not None:
            raise tee.error
    if status is None:
        raise UnknownAppException(handle)
    if as_json:
        print(document({**handle_fields(handle), **status_fields(status)}), flush=True)
    say_how_it_ended(runner, handle, status, time.monotonic() - started)
    fetch_results(runner, handle)
    if interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if code := exit_code_of(status):
        sys.exit(code)


def _until_started(runner: Runner, handle: str, *, since: float, ctrl_c: str) -> None:
    """Show the state of a job, and why it waits, until it runs or has ended: until there can be logs."""
    pause = 0.05
    try:
        while True:
            try:
                runner.wait(handle, wait_interval=_POLL_S, timeout=pause)
                return
            except TimeoutError:
                status = runner.seen(handle)
            if status is not None and is_started(status.state):
                return
            if status is not None and pause >= _TICK_S:
                show_progress(status, since, ctrl_c=ctrl_c)
            pause = min(2 * pause, _TICK_S)
    finally:
        progress("")


def fetch_results(runner: Runner, handle: str) -> None:
    """Copy the results here that the job names, if it names any."""
    run = runner.recorded(handle)
    if run is not None and FETCH in (run.app.get("metadata") or {}):
        from torchx.cli.cmd_cp import fetch_at_end

        fetch_at_end(runner, handle)


def _wait(runner: Runner, handle: str, *, shows: bool, since: float, ctrl_c: str = "cancels") -> AppStatus | None:
    if not shows:
        return runner.wait(handle, wait_interval=_POLL_S)
    try:
        while True:
            try:
                return runner.wait(handle, wait_interval=_POLL_S, timeout=_TICK_S)
            except TimeoutError:
                if (status := runner.seen(handle)) is not None:
                    show_progress(status, since, ctrl_c=ctrl_c)
    finally:
        progress("")


def show_progress(status: AppStatus, since: float, *, ctrl_c: str = "cancels") -> None:
    """Show the state of a job, its running replicas, and why it waits, on the progress line."""
    color = has_color(sys.stderr)
    parts = []
    if status.tasks is not None:
        parts = [f"tasks {task_progress(status.tasks.summary())}"]
    for role in status.roles if status.tasks is None else ():
        running = sum(str(r.state) == "RUNNING" for r in role.replicas)
        parts.append(f"{role.role} {running}/{len(role.replicas)}")
    what = status.msg if is_cancelling(status.state, status.msg) else f"Ctrl-C {ctrl_c}"
    waits = f": {printable(status.msg)}" if status.msg and not is_started(status.state) else ""
    line = " · ".join([duration(time.monotonic() - since) + waits, what, *parts])
    # A line that wraps could not be cleared.
    line = fit(line, width(sys.stderr) - len(str(status.state)) - 2, pad=False)
    progress(f"{state_text(status.state, color=color)} {gray(line, color=color)}")


def cancel(runner: Runner, handle: str, *, since: float, shows: bool) -> AppStatus | None:
    """Cancel the job and wait for its end; a second Ctrl-C leaves at once."""
    try:
        start = "" if shows else "\n"  # the terminal echoes `^C` after the job's output
        note(f"{start}cancelling the job; Ctrl-C again leaves at once" if is_tty(sys.stderr) else "cancelling the job")
        runner.cancel(handle)
        return _wait(runner, handle, shows=shows, since=since, ctrl_c="leaves")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def say_how_it_ended(runner: Runner, handle: str, status: AppStatus, seconds: float) -> None:
    """Print the status page of a failed job; for others a line, on a terminal."""
    color = has_color(sys.stderr)
    if str(status.state) in ("SUCCEEDED", "CANCELLED"):
        if is_tty(sys.stderr):
            print(state_text(status.state, color=color), f"in {duration(seconds)}", file=sys.stderr)
        return
    print("\n".join([status.format(color=color), *more_memory(runner, handle, status)]), file=sys.stderr)
    app_id = handle.rpartition("/")[2]
    note(f"logs: torchx log {app_id} · this page: torchx status {app_id}")


def more_memory(runner: Runner, handle: str, status: AppStatus) -> list[str]:
    """Return the line with options that give the job twice the memory; none if that is not what it lacks."""
    from torchx.specs.failures import parse_failure

    failure = parse_failure(status.structured_error_msg) if str(status.state) == "FAILED" else None
    if failure is None or failure.kind != "oom" or "shared memory" in failure.message:
        return []
    found = None
    with suppress(TorchXError):  # the page is useful without
        capabilities = runner._scheduler(parse_app_handle(handle).scheduler_backend).capabilities
        if not capabilities.resources:
            return []
        found = runner.describe(handle)
        asked = [role.resource.memMB for role in found.roles if role.name == failure.role] if found else []
        factor = status.attempts[-1].memory if status.attempts else 1
        retry = ", or --retry 'oom:1:mem*2'" if "mem" in capabilities.retry_actions else ""
        return [f"more:     --mem {_size_option(2 * asked[0] * factor) if asked and asked[0] > 0 else 'SIZE'}{retry}"]
    return []


def _size_option(mib: float) -> str:
    """Return the size as ``--mem`` takes it.

    >>> _size_option(2048), _size_option(1000)
    ('2G', '1000M')
    """
    return f"{mib / 1024:.0f}G" if mib % 1024 == 0 else f"{mib:.0f}M"
