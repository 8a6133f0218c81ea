"""Asks the program named in a job's request whether to restart the failed job."""

from __future__ import annotations

_PATIENCE_S = 60.0


def may_start_again(argv: list[str], env: dict[str, str]) -> bool:
    """Runs the program. True if it exits with 0 within a minute.

    >>> may_start_again(["/bin/true"], {}), may_start_again(["/bin/false"], {}), may_start_again(["/no/such"], {})
    (True, False, False)
    """
    import subprocess  # not at the head: most jobs have no such program

    null = subprocess.DEVNULL
    try:
        done = subprocess.run(argv, env=env, stdin=null, stdout=null, stderr=null, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
