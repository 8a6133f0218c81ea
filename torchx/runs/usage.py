"""What runs have used: GPU-hours and CPU-hours, from the sizes and the times in the run registry."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError
from torchx.runs.records import size_of
from torchx.util.foreign import loads
from torchx.util.records import dataclass

if TYPE_CHECKING:
    import sqlite3

    from torchx.runs.registry import RunRegistry

GROUPS = ("name", "user", "scheduler", "day")
"""What usage can be grouped by. A run that lasts several days is part of each of them."""

_DAY = "CAST((begun + :zone) / 86400 AS INTEGER)"
_MIDNIGHT = f"(({_DAY} + 1) * 86400 - :zone)"
# A run that nobody saw start counts from its submission, if it ran at all. The attempts of a run, or the tasks of a
# sweep, are busy for another time than that from its start to its end.
_SUM = """
    WITH RECURSIVE run AS (
        SELECT name, user, scheduler, gpus, cpus, busy_s, started_at IS NULL AND busy_s IS NULL AS unseen,
            coalesce(started_at, CASE WHEN state IN ('RUNNING', 'SUCCEEDED', 'FAILED') THEN created_at END) AS begun,
            coalesce(ended_at, CASE unfinished WHEN 1 THEN :now ELSE updated_at END) AS ended
        FROM runs NOT INDEXED WHERE phase = 1
    ), piece AS (
        SELECT name, user, scheduler, gpus, cpus, coalesce(busy_s / (ended - begun), 1.0) / 3600 AS hours, unseen,
            1 AS first, max(begun, :since) AS begun, ended
        FROM run WHERE begun < ended AND ended > :since
        {more}
    )
    SELECT {key}, scheduler, sum(first), sum(gpus * hours * ({until} - begun)), sum(cpus * hours * ({until} - begun)),
        sum(unseen) FROM piece GROUP BY 1, 2 ORDER BY 1
"""
_NEXT_DAY = f"""
        UNION ALL SELECT name, user, scheduler, gpus, cpus, hours, 0, 0, {_MIDNIGHT}, ended FROM piece
        WHERE {_MIDNIGHT} < ended
"""  # noqa: S608  # ours
_SIZELESS = "SELECT id, app FROM runs JOIN specs ON run_id = id WHERE phase = 1 AND gpus IS NULL"


@dataclass
class Used:
    """What the runs of one group used on one scheduler.

    Attributes:
        key: name, user, scheduler, or local date as 2026-11-29.
        runs: how many; by day, how many began on it.
        gpu_hours, cpu_hours: what they asked for, multiplied by the time that they ran.
        unseen: how many count from their submission, because nobody saw them start.
    """

    key: str
    scheduler: str
    runs: int
    gpu_hours: float
    cpu_hours: float
    unseen: int


def worked(registry: RunRegistry, handle: str, busy_s: float) -> None:
    """Record for how long the attempts of a run, or the tasks of a sweep, ran together."""
    registry.store().execute("UPDATE runs SET busy_s = ? WHERE handle = ?", (busy_s, handle))


def used(registry: RunRegistry, by: str, since: float | None, *, now: float | None = None) -> list[Used]:
    """Return what all runs on record have used since then, by one of :data:`GROUPS` and scheduler."""
    if by not in GROUPS:
        raise SpecError(f"usage cannot be grouped by `{by}`", hint=f"one of: {', '.join(GROUPS)}")
    store = registry.store()
    if found := store.rows(_SIZELESS):
        sizes = [(*_size(text), run_id) for run_id, text in found]
        store.write(lambda db: _fill(db, sizes), None)
    days = by == "day"
    query = _SUM.format(
        key=_DAY if days else by,
        more=_NEXT_DAY if days else "",
        until=f"min(ended, {_MIDNIGHT})" if days else "ended",
    )
    values = {"now": time.time() if now is None else now, "since": since or 0.0, "zone": time.localtime().tm_gmtoff}
    nothing: list[tuple[Any, ...]] = []
    rows = store.read(lambda db: db.execute(query, values).fetchall(), nothing)
    return [
        Used(_date(row[0]) if days else row[0], row[1], row[2], row[3] or 0.0, row[4] or 0.0, row[5]) for row in rows
    ]


def _size(text: str) -> tuple[float, float]:
    """Return the size of a run that an older torchx recorded."""
    try:
        return size_of(loads(text))
    except (ValueError, TypeError, AttributeError):
        return 0.0, 0.0


def _fill(db: sqlite3.Connection, sizes: list[tuple[float, float, int]]) -> None:
    db.executemany("UPDATE runs SET gpus = ?, cpus = ? WHERE id = ?", sizes)


def _date(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * 86400))
