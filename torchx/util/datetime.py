"""Times and durations, for schedulers and for people."""

from __future__ import annotations

import time


def get_past_epoch_time(days_past: int) -> int:
    """Return the time ``days_past`` days ago, in milliseconds since the epoch.

    >>> get_past_epoch_time(1) < get_past_epoch_time(0)
    True
    """
    return int((time.time() - days_past * 86_400) * 1000)


def local_time(seconds: float) -> str:
    """Format a Unix time as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def ago(seconds: float, *, now: float | None = None) -> str:
    """Format how long ago a Unix time was, in the largest unit.

    >>> ago(0, now=30), ago(0, now=72), ago(0, now=7000), ago(0, now=13 * 3600 + 300), ago(0, now=86400 * 3)
    ('30 s ago', '1 min ago', '1 h ago', '13 h ago', '3 d ago')
    """
    past = int(max((time.time() if now is None else now) - seconds, 0))
    if not past:
        return "just now"
    number, unit, *_ = _in_units(past)
    return f"{number} {unit} ago"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(0.31), duration(42), duration(187), duration(7500), duration(200_000)
    ('0.3 s', '42 s', '3 min 7 s', '2 h 5 min', '2 d 7 h')
    """
    return f"{max(seconds, 0):.1f} s" if seconds < 10 else " ".join(_in_units(int(seconds)))


def _in_units(seconds: int) -> list[str]:
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // small
            return [str(seconds // size), unit, *([str(rest), smaller] if rest else [])]
    return [str(seconds), "s"]
