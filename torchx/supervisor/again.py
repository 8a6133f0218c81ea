"""Asks the program named in a job's request whether to restart the failed job."""

from __future__ import annotations

import os
import time

_PATIENCE_S = 60.0


def may_start_again(argv: list[str], env: dict[str, str]) -> bool:
    """Runs the program. True if it exits with 0 within a minute.

    >>> may_start_again(["/bin/true"], {}), may_start_again(["/bin/false"], {}), may_start_again(["/no/such"], {})
    (True, False, False)
    """
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    try:
        pid = os.posix_spawn(argv[0], argv, env, file_actions=null)
    except OSError:
        return False
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.005)
