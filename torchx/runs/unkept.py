"""Runs that have ended and whose logs are not in the archive yet; see :mod:`torchx.runner.watching.keeping`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.runs.registry import RunRegistry

_RUN = "run_id = (SELECT max(id) FROM runs WHERE handle = ?)"


@dataclass(frozen=True)
class Unkept:
    """A run whose logs are not in the archive.

    Attributes:
        handle: app handle.
        why: why the last attempt failed; empty: none has ended.
        tried_at: Unix time of the last attempt that failed; 0 if there is none.
        final: there is nothing left to keep: no other attempt is made.
        told: the user has seen ``why``.
    """

    handle: str
    why: str
    tried_at: float
    final: bool
    told: bool


def add(registry: RunRegistry, handle: str) -> None:
    """Record that the logs of a run are to be kept."""
    sql = "INSERT OR IGNORE INTO unkept (run_id) SELECT max(id) FROM runs WHERE handle = ? HAVING max(id) IS NOT NULL"
    registry.store().execute(sql, (handle,))


def read(registry: RunRegistry) -> list[Unkept]:
    """Return all such runs, oldest first."""
    sql = "SELECT handle, why, tried_at, final, told FROM unkept JOIN runs ON runs.id = run_id ORDER BY run_id"
    return [Unkept(*row) for row in registry.store().rows(sql)]


def why(registry: RunRegistry, handle: str) -> str:
    """Return why the logs of a run are not in the archive; empty if they are there, or were not to be kept."""
    rows = registry.store().rows(f"SELECT why FROM unkept WHERE {_RUN}", (handle,))  # noqa: S608  # ours
    return str(rows[0][0]) if rows else ""


def failed(registry: RunRegistry, handle: str, why: str, *, final: bool) -> None:
    """Record why the logs of a run could not be kept."""
    sql = f"UPDATE unkept SET why = ?, tried_at = ?, final = ?, told = 0 WHERE {_RUN}"  # noqa: S608  # ours
    registry.store().execute(sql, (why, time.time(), final, handle))


def told(registry: RunRegistry, handle: str) -> None:
    """Record that the user has seen why."""
    registry.store().execute(f"UPDATE unkept SET told = 1 WHERE {_RUN}", (handle,))  # noqa: S608  # ours


def done(registry: RunRegistry, handle: str) -> None:
    """Record that the logs of a run are in the archive."""
    registry.store().execute(f"DELETE FROM unkept WHERE {_RUN}", (handle,))  # noqa: S608  # ours
