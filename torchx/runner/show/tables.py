"""Rows, timelines and usage tables of runs, for ``torchx top``, ``torchx ui`` and commands that print tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchx.runs import Run
from torchx.schedulers.kit.metrics import Gpu, ReplicaMetrics
from torchx.specs.api import AppStatus
from torchx.specs.tasks import progress
from torchx.util.datetime import duration
from torchx.util.strings import size_text, sparkline

Row = dict[str, Any]

USAGE = ("REPLICA", "CPU", "MEMORY", "PEAK", "LIMIT", "GPU", "GPU MEMORY")
_LONGEST, _SHORTEST = 24, 4  # lengths of a sparkline
_TOLERANCE = 0.01  # of the whole time: replicas of a gang do not begin and end at exactly the same time


def run_row(run: Run) -> Row:
    """Return a run as a row of a list; missing values are None or empty.

    ``created`` and ``ended`` are Unix times in seconds; ``tasks`` is the progress of a sweep, as recorded by a poller.
    """
    return {
        **{"handle": run.handle, "name": run.name or run.app_id, "app_id": run.app_id, "scheduler": run.scheduler},
        **{"state": str(run.state), "msg": run.msg, "tasks": progress(run.msg), "note": run.note, "user": run.user},
        **{"created": run.created_at, "ended": run.ended_at if run.is_terminal() else None, "order": run.id},
    }


# -- the timeline ----------------------------------------------------------------------------------


def timeline(status: AppStatus, launched: float | None) -> dict[str, Any]:
    """Attempt and replicas as bars: the range ``from``, ``to``, and the ``bars``, each with a name, state and text.

    Times are Unix times in seconds; ``to`` is None if the job or replica still runs. Adjacent replicas in the same
    state that began and ended together are merged into one bar, ``trainer/0-7``.
    """
    bars: list[dict[str, Any]] = []
    for i, attempt in enumerate(status.attempts, 1):
        words = " · ".join(filter(None, (attempt.kind, attempt.cause, attempt.why)))
        planned = attempt.total and attempt.kind == "timeout"  # a piece of a chain
        state = "SUCCEEDED" if attempt.kind == "ok" else "CANCELLED" if planned else "FAILED"
        bars.append(
            _bar(f"{'piece' if attempt.total else 'attempt'} {i}", attempt.started, attempt.ended or None, state, words)
        )
    replicas = [replica for role in status.roles for replica in role.replicas]
    for replica in replicas:
        where = replica.hostname or replica.hostaddr or ""
        if replica.ready_at and replica.started_at:
            where = f"{where} ready after {duration(replica.ready_at - replica.started_at)}".strip()
        bars.append(
            _bar(f"{replica.role}/{replica.id}", replica.started_at, replica.ended_at, str(replica.state), where)
        )
    bars = [bar for bar in bars if bar["from"]]
    begin = min([bar["from"] for bar in bars] + [launched] * (launched is not None), default=0.0)
    ends = [bar["to"] for bar in bars]
    end = max([*filter(None, ends), *(bar["from"] for bar in bars)], default=begin)
    over = status.is_terminal()
    tolerance_s = ((end if over else time.time()) - begin) * _TOLERANCE
    return {"from": begin, "to": end if over else None, "bars": _merged(bars, tolerance_s)}


def _bar(name: str, begin: float | None, end: float | None, state: str, text: str) -> dict[str, Any]:
    return {"name": name, "from": begin, "to": end, "state": state, "text": text}


def _merged(bars: Iterable[dict[str, Any]], tolerance_s: float) -> list[dict[str, Any]]:
    groups: list[list[dict[str, Any]]] = []
    for bar in bars:
        if groups and _is_alike(groups[-1][0], bar, tolerance_s):
            groups[-1].append(bar)
        else:
            groups.append([bar])
    return [
        group[0]
        if len(group) == 1
        else {
            **group[0],
            "name": f"{group[0]['name']}-{group[-1]['name'].rpartition('/')[2]}",
            "text": f"{len(group)} replicas",
        }
        for group in groups
    ]


def _is_alike(first: dict[str, Any], bar: dict[str, Any], tolerance_s: float) -> bool:
    role, slash, _ = bar["name"].rpartition("/")
    if not slash or (role, bar["state"]) != (first["name"].rpartition("/")[0], first["state"]):
        return False
    pairs = [(first[key], bar[key]) for key in ("from", "to")]
    return all(a is b if a is None or b is None else abs(a - b) <= tolerance_s for a, b in pairs)


# -- usage -----------------------------------------------------------------------------------------


def replica_metrics(
    found: Iterable[ReplicaMetrics], seen: Mapping[tuple[str, int], ReplicaMetrics]
) -> dict[tuple[str, int], ReplicaMetrics]:
    """Usage by role and number. If a scheduler reports only the current sample, those in ``seen`` are kept, too."""
    now = {}
    for one in found:
        before = seen.get((one.role, one.replica))
        if before is not None and len(one.samples) == 1:
            one.samples = [*(s for s in before.samples if s.at < one.samples[0].at), *one.samples]
        now[one.role, one.replica] = one
    return now


def usage_table(found: Sequence[ReplicaMetrics], room: int, *, over: bool) -> list[list[str]]:
    """Return a row of cells for each replica, below the headings, with sparklines if there is room.

    Args:
        room: width of the table in characters, with two between cells.
        over: the job has ended: show the average instead of the current usage.
    """
    gpus = any(sample.gpus for one in found for sample in one.samples)
    count = len(USAGE) if gpus else 5
    plain = usage_rows(found, 0, over=over)
    taken = sum(max(map(len, column)) + 2 for column in list(zip(*plain, strict=True))[:count])
    bars = min((room - taken) // (3 if gpus else 2) - 1, _LONGEST)
    return [row[:count] for row in (usage_rows(found, bars, over=over) if bars >= _SHORTEST else plain)]


def usage_rows(found: Sequence[ReplicaMetrics], bars: int, *, over: bool) -> list[list[str]]:
    """Return the headings, and the cells of each replica, with sparklines of the length ``bars``."""
    return [list(USAGE), *(_usage(one, bars, over=over) for one in found)]


def _usage(one: ReplicaMetrics, bars: int, *, over: bool) -> list[str]:
    """Return the cells of a replica: its current usage, or the average once the job has ended."""
    name = f"{one.role}/{one.replica}"
    attempts = one.summary()
    if not attempts:
        return [name, *["-"] * (len(USAGE) - 1)]
    samples = [s for s in one.samples if s.attempt == one.samples[-1].attempt]
    last = samples[-1] if samples else None
    short = attempts[-1]
    gpus = last.gpus if last else []
    cpu = short.cpu if over else last.cpu if last else None
    gpu = short.gpu if over or last is None else _percent(gpus)
    memory = sum(g.memory for g in gpus), sum(g.memory_total for g in gpus)
    cells = [
        name,
        "-" if cpu is None else f"{'avg ' if over else ''}{cpu:.1f}{f' of {one.cpus:g}' if one.cpus else ''}",
        "-" if last is None or over else size_text(last.memory),
        size_text(one.memory_peak() or 0),
        size_text(one.memory_limit) if one.memory_limit else "-",
        "-" if gpu is None else f"{'avg ' if over else ''}{gpu:.0f} %",
        f"{size_text(memory[0])} of {size_text(memory[1])}" if gpus else "-",
    ]
    if bars and len(samples) > 1:
        lines = {
            1: sparkline([s.cpu or 0.0 for s in samples], bars),
            3 if over else 2: sparkline([float(s.memory) for s in samples], bars),
            5: sparkline([_percent(s.gpus) or 0.0 for s in samples], bars, most=100.0) if gpus else "",
        }
        for column, line in lines.items():
            cells[column] = f"{cells[column]} {line}".rstrip()
    return cells


def _percent(gpus: Sequence[Gpu]) -> float | None:
    return sum(g.percent for g in gpus) / len(gpus) if gpus else None
