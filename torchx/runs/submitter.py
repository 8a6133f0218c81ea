"""Identifies the process that submits a run, so that another process with a reused pid is not mistaken for it."""

from __future__ import annotations

import functools
import os

from torchx.supervisor.proctree import boot_id, start_ticks


def identity() -> str:
    """Return the identity of this process: ``host|boot|pid|start``."""
    return _identity(os.getpid())


def nobody() -> str:
    """Return the identity of a process of this host that does not exist."""
    return f"{os.uname().nodename}|gone|0|"


def is_elsewhere(submitter: str) -> bool:
    """Whether the process is of another host, so that it is not known whether it is alive.

    >>> is_elsewhere(identity()), is_elsewhere("other|boot|1|1")
    (False, True)
    """
    parts = submitter.rsplit("|", 3)
    return len(parts) == 4 and parts[0] != os.uname().nodename


def may_be_alive(submitter: str) -> bool:
    """Whether the process may be alive; False only if it is known to be gone.

    >>> may_be_alive(identity())
    True
    >>> may_be_alive(identity().rpartition("|")[0] + "|1")
    False
    """
    parts = submitter.rsplit("|", 3)
    if len(parts) != 4:
        return False
    if is_elsewhere(submitter):
        return True
    _, boot, pid, start = parts
    if boot != _boot():
        return False
    if not start:  # there is no /proc: check only the pid
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True
    return str(start_ticks(int(pid))) == start


@functools.lru_cache(maxsize=1)
def _identity(pid: int) -> str:
    return f"{os.uname().nodename}|{_boot()}|{pid}|{start_ticks(pid) or ''}"


def _boot() -> str:
    return boot_id()[:8]
