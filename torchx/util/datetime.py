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
    """Format how long ago a Unix time was, in the largest unit that gives at least 2.

    >>> ago(0, now=30), ago(0, now=5400), ago(0, now=3 * 3600 + 5), ago(0, now=86400 * 3)
    ('30 s ago', '90 min ago', '3 h ago', '3 d ago')
    """
    past = max((time.time() if now is None else now) - seconds, 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if past >= 2 * size:
            return f"{past // size:.0f} {unit} ago"
    return f"{int(past)} s ago" if past >= 1 else "just now"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(0.31), duration(42), duration(187), duration(7500), duration(200_000)
    ('0.3 s', '42 s', '3 min 7 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = int(seconds)
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"
