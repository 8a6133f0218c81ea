"""``torchx run utils.session``: an interactive job, with a shell in it once it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress

from torchx.cli.attach import attach, terminal
from torchx.cli.cmd_exec import SHELL
from torchx.cli.failures import note, progress
from torchx.cli.waiting import cancel, say_how_it_ended, show_progress
from torchx.errors import EXIT_INTERRUPTED, BackendError, NotFoundError
from torchx.runner import Runner
from torchx.runner.show.json_output import exit_code_of
from torchx.schedulers.kit.inside import InsideProcess
from torchx.specs import AppStatus
from torchx.specs.api import UnknownAppException
from torchx.util.term import is_tty

_PAUSES_S = (0.1, 1.0)
_RECORD_S = 3.0
_BY_SIGNAL = 128


def hold(runner: Runner, scheduler: str, submit: Callable[[], str]) -> None:
    """Submit the job. On a terminal, opens a shell in it, and when that ends, cancels the job and exits with its code.

    Nothing is submitted if the scheduler cannot open a shell in its jobs.
    """
    runner.check_open(scheduler)
    handle = submit()
    app_id = handle.rpartition("/")[2]
    print(handle, flush=True)
    if not (is_tty(sys.stdin) and is_tty(sys.stdout) and is_tty(sys.stderr)):
        note(f"once it runs, `torchx shell {app_id}` opens a shell in it; `torchx cancel {app_id}` ends it")
        return
    since = time.monotonic()
    try:
        process = _shell(runner, handle, since)
    except KeyboardInterrupt:
        cancel(runner, handle, since=since, shows=True)
        sys.exit(EXIT_INTERRUPTED)
    try:
        code = attach(process, stdin=True, tty=True)
    except BackendError as e:
        _exit_if_over(runner, handle, since)
        e.hint = f"the session still runs: `torchx shell {app_id}` opens a shell, `torchx cancel {app_id}` ends it"
        raise
    except SystemExit:  # the terminal was closed
        runner.cancel(handle)
        raise
    if code >= _BY_SIGNAL:  # perhaps the job was ended, by its time limit say: its state follows a moment later
        with suppress(TimeoutError):
            runner.wait(handle, wait_interval=_RECORD_S / 10, timeout=_RECORD_S)
    _exit_if_over(runner, handle, since)
    runner.cancel(handle)
    note(f"the session `{app_id}` has ended")
    sys.exit(code)


def _shell(runner: Runner, handle: str, since: float) -> InsideProcess:
    pause_s, longest_s = _PAUSES_S
    while True:
        status = _exit_if_over(runner, handle, since)
        if str(status.state) == "RUNNING":
            progress("")
            with suppress(NotFoundError):  # the replica is starting, or has just ended
                return runner.open(handle, SHELL, tty=terminal())
        show_progress(status, since)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)


def _exit_if_over(runner: Runner, handle: str, since: float) -> AppStatus:
    """Return the status of a job that has not ended. Otherwise shows it and exits as ``torchx run --wait`` does."""
    status = runner.status(handle)
    if status is None:
        raise UnknownAppException(handle)
    if not status.is_terminal():
        return status
    progress("")
    say_how_it_ended(runner, handle, status, time.monotonic() - since)
    sys.exit(exit_code_of(status))
