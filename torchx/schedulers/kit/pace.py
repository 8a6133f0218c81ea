"""Reads the steps that the ranks of a job report, and finds the rank for which the others wait.

:mod:`torchx.distributed.pace` writes them: to a file of each replica, or as lines of its output.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx.settings import STEPS_LINE, STEPS_SLOT
from torchx.specs.pace import JobPace, SlowRank
from torchx.util.records import dataclass, field
from torchx.util.strings import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx.schedulers.kit.files import Files

_FACTOR, _HALF_FACTOR = 1.8, 1.4  # of a straggler: over the whole time, and in each half of it
_SHARE = 0.25  # the time of the job that a straggler costs, at least
_FEW_STEPS = 8
_STALLED_STEPS = 10
_END = 1e11  # in Unix time
_WORD = re.compile(r"""(\w+)=["']?([-+]?\d{1,3}(?:,\d{3})+|[-+.\w]+)""")
_TORCHRUN = re.compile(r"\[\D*(\d+)\]:")  # the prefix of lines of a rank


@dataclass
class Rank:
    """The reports of one rank; ``points`` are Unix time, step, and seconds outside of collectives, oldest first."""

    rank: int
    role: str = ""
    replica: int = 0
    world: int = 0
    total: int | None = None
    at: float = 0.0  # Unix time of the last step
    began: float = 0.0
    slow_s: float = 300.0
    metrics: dict[str, float] = field(default_factory=dict)
    points: list[tuple[float, int, float]] = field(default_factory=list)

    def seen(self, moment: float) -> tuple[float, float]:
        """Return step and own seconds at a time, between points."""
        before = self.points[0]
        for point in self.points:
            if point[0] >= moment:
                share = (moment - before[0]) / (point[0] - before[0]) if point[0] > before[0] else 1.0
                return before[1] + share * (point[1] - before[1]), before[2] + share * (point[2] - before[2])
            before = point
        return before[1], before[2]


def parse_file(role: str, replica: int, data: bytes) -> list[Rank]:
    """Parse the file of a replica; skips slots that are empty, or were being written.

    >>> [one.rank for one in parse_file("w", 0, b'{"rank": 3, "points": [[5.0, 7, 1.5]]}' + b"\\n" + b"\\0" * 5000)]
    [3]
    """
    import json

    found = []
    for at in range(0, len(data), STEPS_SLOT):
        try:
            row = json.loads(data[at : at + STEPS_SLOT].rstrip(b"\0"))
            points = [(float(t), int(step), float(busy)) for t, step, busy in row["points"] if whole(step) is not None]
            metrics = {str(k): float(v) for k, v in (row.get("metrics") or {}).items()}
            one = Rank(int(row["rank"]), role, replica, points=points, metrics=metrics)
            one.total = whole(row.get("total")) or None
            for name, value in row.items():
                if name in ("world", "at", "began", "slow_s") and isinstance(value, (int, float)):
                    setattr(one, name, value)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
            continue
        if one.points:
            found.append(one)
    return found


def read_files(files: Files, paths: Mapping[tuple[str, int], str]) -> list[Rank]:
    """Read the files of replicas, given by role and number, in one query."""
    texts = files.grown(dict.fromkeys(paths.values(), 0)) if paths else {}
    return [one for at, path in paths.items() for one in parse_file(*at, texts.get(path, b""))]


def parse_lines(role: str, replica: int, lines: Iterable[tuple[float, str]]) -> list[Rank]:
    """Parse lines of output, with the times at which they were written.

    >>> parse_lines("w", 0, [(5.0, "[trainer3]:::torchx progress step=7 total=100")])[0].points
    [(5.0, 7, 0.0)]
    """
    found: dict[int, Rank] = {}
    for written, line in lines:
        head, mark, rest = line.partition(STEPS_LINE)
        if not mark:
            continue
        words = {name: value.replace(",", "") for name, value in _WORD.findall(rest)}
        step, total = whole(words.pop("step", None)), whole(words.pop("total", None))
        if step is None:
            continue
        numbered = _TORCHRUN.search(head)
        number = whole(words.pop("rank", numbered[1] if numbered else None))
        number = replica if number is None else number
        point = (written, step, 0.0)
        if "busy" in words:  # by `torchx.distributed`
            point = (_seconds(words.pop("t", ""), written), step, _seconds(words.pop("busy"), 0.0))
        one = found.setdefault(number, Rank(number, role, replica, began=point[0]))
        one.total, one.world = total or one.total, whole(words.pop("world", None)) or 0
        one.slow_s = _seconds(words.pop("slow_s", ""), one.slow_s)
        one.metrics = {name: value for name, text in words.items() if (value := _number(text)) is not None}
        if one.points and point[1] < one.points[-1][1]:  # another attempt
            one.points = []
        if not one.points or point[1] > one.points[-1][1]:
            one.at = point[0]
        one.points.append(point)
    return [one for one in found.values() if one.points]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(text: str, default: float) -> float:
    found = _number(text)
    return found if found is not None and 0 <= found < _END else default


def pace_of(ranks: Sequence[Rank], hosts: Mapping[tuple[str, int], str], now: float = 0.0) -> JobPace | None:
    """Return how far a job is, and its slowest rank; None without reports. ``hosts``: by role and replica.

    ``now``: the time, if the job runs: programs without torchx report only when they have done a step.
    """
    if not ranks:
        return None
    began = max(one.began for one in ranks)
    world = max(ranks, key=lambda one: one.points[-1][0]).world
    # Others are of an earlier attempt.
    ranks = sorted((r for r in ranks if r.points[-1][0] >= began and r.world == world), key=lambda r: (r.role, r.rank))
    if not ranks:
        return None
    first, at = ranks[0], max(one.points[-1][0] for one in ranks)
    last = min(ranks, key=lambda one: one.points[-1][1])
    step = last.points[-1][1]
    found = JobPace(step, first.total, len(ranks), at, _rate(last), metrics=first.metrics)
    quiet_s = (max(at, now) if at else 0.0) - max(one.at for one in ranks)
    usual_s = 1 / found.rate if found.rate else 0.0
    over = first.total is not None and step >= first.total
    if quiet_s > max(first.slow_s, _STALLED_STEPS * usual_s) and not over:
        found.stalled_s, found.rate = quiet_s, None
    if found.rate and first.total is not None:
        found.left_s = max(first.total - step, 0) / found.rate
    found.slow = None if over else _slowest(ranks)
    if found.slow is not None:
        found.slow.host = hosts.get((found.slow.role, found.slow.replica), "")
    return found


def _rate(one: Rank) -> float | None:
    """Return the steps per second over twice the time of a straggler, or over longer if there were none."""
    until, last, _ = one.points[-1]
    recent = [p for p in one.points if p[0] >= until - 2 * one.slow_s]
    for points in (recent, one.points):
        began, step, _ = points[0]
        if last > step and until > began:
            return (last - step) / (until - began)
    return None


def _slowest(ranks: Sequence[Rank]) -> SlowRank | None:
    if len(ranks) < 2:
        return None
    length = ranks[0].slow_s
    end = _median([one.points[-1][0] for one in ranks])
    start = end - length
    if any(one.points[0][0] > start + 0.5 for one in ranks):  # too early to say
        return None
    own, lowest, cost, few = _own(ranks, start, end)
    slow = max(range(len(ranks)), key=own.__getitem__)
    if own[slow] < _FACTOR * lowest or cost[slow] < _SHARE or own[slow] <= 0:
        return None
    halves = ((start, end - length / 2), (end - length / 2, end))
    if not few and not all(_is_slow(ranks, slow, *half) for half in halves):
        return None
    since = start
    while since - length / 4 >= ranks[slow].points[0][0] and _is_slow(ranks, slow, since - length / 4, since):
        since -= length / 4
    one, factor = ranks[slow], own[slow] / lowest if lowest > own[slow] / 100 else 100.0
    return SlowRank(one.rank, one.role, one.replica, factor=round(factor, 1), since=round(since, 1))


def _is_slow(ranks: Sequence[Rank], slow: int, start: float, end: float) -> bool:
    own, lowest, _, _ = _own(ranks, start, end)
    return own[slow] >= _HALF_FACTOR * lowest and own[slow] > 0


def _own(ranks: Sequence[Rank], start: float, end: float) -> tuple[list[float], float, list[float], bool]:
    """Return the own time of each rank between two times, its median, the share that each costs the job more than the
    median, and whether there were few steps. It is per step if the ranks do not wait for each other.
    """
    ends = [(one.seen(start), one.seen(end)) for one in ranks]
    steps = [after[0] - before[0] for before, after in ends]
    own = [max(after[1] - before[1], 0.0) for before, after in ends]
    if max(steps) - min(steps) > 1 + max(steps) / 10:
        own = [seconds / max(n, 1.0) for seconds, n in zip(own, steps, strict=True)]
    else:
        steps = [1.0] * len(ranks)
    lowest = _median(own)
    cost = [(seconds - lowest) * n / (end - start) for seconds, n in zip(own, steps, strict=True)]
    return own, lowest, cost, max(after[0] - before[0] for before, after in ends) < _FEW_STEPS


def _median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def times_of(lines: Iterable[str]) -> Iterable[tuple[float, str]]:
    """Split lines with timestamps, of a :class:`~torchx.schedulers.kit.logs.LogQuery`, into times and lines."""
    from datetime import datetime

    for line in lines:
        moment, _, text = line.partition(" ")
        try:
            yield datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp(), text
        except ValueError:
            yield 0.0, text
