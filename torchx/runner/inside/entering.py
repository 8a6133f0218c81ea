"""Runs processes inside replicas, by the abilities of the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchx.errors import NotSupportedError
from torchx.runner.jobs.views import View
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.abilities import Archives, Forwards, RunsInside, SharesFiles
from torchx.schedulers.kit.inside import Duplex, InsideProcess, Tty


def enter(
    backend: Scheduler[Any], app_id: str, replica: tuple[str, int], argv: Sequence[str], tty: Tty | None
) -> InsideProcess:
    """Start ``argv`` inside a replica; raise NotSupportedError if the backend cannot."""
    backend, app_id, replica = job_of(backend, app_id, replica)
    return able(backend).enter(app_id, *replica, list(argv), tty)


def job_of(
    backend: Scheduler[Any], app_id: str, replica: tuple[str, int]
) -> tuple[Scheduler[Any], str, tuple[str, int]]:
    """Return the scheduler, app id and replica by which a replica is really known;
    the following functions need these.
    """
    return backend.job_of(app_id, replica) if isinstance(backend, View) else (backend, app_id, replica)


def able(backend: Scheduler[Any]) -> RunsInside:
    """Return the backend, which can run commands inside replicas; raises NotSupportedError if it cannot."""
    if not isinstance(backend, RunsInside):
        raise NotSupportedError(
            f"scheduler `{backend.backend}` cannot run a command inside a replica",
            hint="`torchx log -f` shows its output, `torchx status` its host",
        )
    return backend


def archives(
    backend: Scheduler[Any], app_id: str, replica: tuple[str, int]
) -> Callable[[str, bool], InsideProcess] | None:
    """Return the backend's own API to copy files, called with a path and the direction; None if it has none."""
    if not isinstance(backend, Archives):
        return None
    return lambda path, into: backend.archive(app_id, *replica, path, into=into)


def shares_files(backend: Scheduler[Any], app_id: str) -> bool:
    """Whether the replica uses the files of this machine."""
    return isinstance(backend, SharesFiles) and backend.shares_files(app_id)


def port_opener(backend: Scheduler[Any], app_id: str, replica: tuple[str, int]) -> Callable[[int], Duplex] | None:
    """Return the backend's own API to connect to ports of a replica; None if it has none,
    or is not permitted to use it.
    """
    return backend.port_opener(app_id, *replica) if isinstance(backend, Forwards) else None
