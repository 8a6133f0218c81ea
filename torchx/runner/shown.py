"""What pages show of runs, whoever draws them: ``torchx top``, ``torchx ui``, and the verbs that print tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchx.runs import Run
from torchx.schedulers.metrics import Gpu, ReplicaMetrics
from torchx.specs.api import AppStatus
from torchx.specs.tasks import progress
from torchx.util.strings import size_text, sparkline

Row = dict[str, Any]


__all__ = ["USAGE", "replica_metrics", "run_row", "timeline", "usage_rows", "usage_table"]

USAGE = ("REPLICA", "CPU", "MEMORY", "PEAK", "LIMIT", "GPU", "GPU MEMORY")
_LONGEST, _SHORTEST = 24, 4  # of a line of bars
_ALIKE = 0.01  # of the whole time: replicas of a gang begin and end together, but not in the same instant


def run_row(run: Run) -> Row:
    """A run as a line of a list; what it lacks is None or empty.

    ``created`` and ``ended`` are Unix times in seconds; ``tasks`` says how far a sweep is, as the poller has seen it.
    """
    msg = "" if run.msg == "<NONE>" else run.msg
    return {
        **{"handle": run.handle, "name": run.name or run.app_id, "app_id": run.app_id, "scheduler": run.scheduler},
        **{"state": str(run.state), "msg": msg, "tasks": progress(msg), "note": run.note, "user": run.user},
        **{"created": run.created_at, "ended": run.ended_at if run.is_terminal() else None, "order": run.id},
    }


# -- when what happened ----------------------------------------------------------------------------


def timeline(status: AppStatus, launched: float | None) -> dict[str, Any]:
    """Attempts and replicas as bars: ``from`` and ``to`` of all, and the ``bars``, each with a name, a state, a text.

    Times are Unix times in seconds; ``to`` is None of what goes on. Replicas next to each other that are in the same
    state, and began and ended together, are one bar, ``trainer/0-7``.
    """
    bars: list[dict[str, Any]] = []
    for i, attempt in enumerate(status.attempts, 1):
        words = " · ".join(filter(None, (attempt.kind, attempt.cause, attempt.why)))
        state = "SUCCEEDED" if attempt.kind == "ok" else "FAILED"
        bars.append(_bar(f"attempt {i}", attempt.started, attempt.ended or None, state, words))
    replicas = [replica for role in status.roles for replica in role.replicas]
    for replica in replicas:
        where = replica.hostname or replica.hostaddr or ""
        bars.append(
            _bar(f"{replica.role}/{replica.id}", replica.started_at, replica.ended_at, str(replica.state), where)
        )
    bars = [bar for bar in bars if bar["from"]]
    begin = min([bar["from"] for bar in bars] + [launched] * (launched is not None), default=0.0)
    ends = [bar["to"] for bar in bars]
    end = max([*filter(None, ends), *(bar["from"] for bar in bars)], default=begin)
    over = status.is_terminal()
    near = ((end if over else time.time()) - begin) * _ALIKE
    return {"from": begin, "to": end if over else None, "bars": _together(bars, near)}


def _bar(name: str, begin: float | None, end: float | None, state: str, text: str) -> dict[str, Any]:
    return {"name": name, "from": begin, "to": end, "state": state, "text": text}


def _together(bars: Iterable[dict[str, Any]], near: float) -> list[dict[str, Any]]:
    groups: list[list[dict[str, Any]]] = []
    for bar in bars:
        if groups and _alike(groups[-1][0], bar, near):
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


def _alike(first: dict[str, Any], bar: dict[str, Any], near: float) -> bool:
    role, slash, _ = bar["name"].rpartition("/")
    if not slash or (role, bar["state"]) != (first["name"].rpartition("/")[0], first["state"]):
        return False
    pairs = [(first[key], bar[key]) for key in ("from", "to")]
    return all(a is b if a is None or b is None else abs(a - b) <= near for a, b in pairs)


# -- what it uses ----------------------------------------------------------------------------------


def replica_metrics(
    found: Iterable[ReplicaMetrics], seen: Mapping[tuple[str, int], ReplicaMetrics]
) -> dict[tuple[str, int], ReplicaMetrics]:
    """What was found by role and number. Of a scheduler that knows this moment alone, what was seen before is kept."""
    now = {}
    for one in found:
        before = seen.get((one.role, one.replica))
        if before is not None and len(one.samples) == 1:
            one.samples = [*(s for s in before.samples if s.at < one.samples[0].at), *one.samples]
        now[one.role, one.replica] = one
    return now


def usage_table(found: Sequence[ReplicaMetrics], room: int, *, over: bool) -> list[list[str]]:
    """A line for each replica below headings, in so many columns, two between cells: with bars where there is room.

    Args:
        over: the job has ended: an average is shown instead of what is used now.
    """
    gpus = any(sample.gpus for one in found for sample in one.samples)
    count = len(USAGE) if gpus else 5
    plain = usage_rows(found, 0, over=over)
    taken = sum(max(map(len, column)) + 2 for column in list(zip(*plain, strict=True))[:count])
    bars = min((room - taken) // (3 if gpus else 2) - 1, _LONGEST)
    return [row[:count] for row in (usage_rows(found, bars, over=over) if bars >= _SHORTEST else plain)]


def usage_rows(found: Sequence[ReplicaMetrics], bars: int, *, over: bool) -> list[list[str]]:
    """The headings, and the cells of each replica, with lines of so many bars."""
    return [list(USAGE), *(_usage(one, bars, over=over) for one in found)]


def _usage(one: ReplicaMetrics, bars: int, *, over: bool) -> list[str]:
    """The cells of a replica: as it is now, or on average once the job is over."""
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
