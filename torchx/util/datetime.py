"""Points in time as schedulers count them."""

from __future__ import annotations

import time


def get_past_epoch_time(days_past: int) -> int:
    """The time ``days_past`` days ago, in milliseconds since the epoch.

    >>> get_past_epoch_time(1) < get_past_epoch_time(0)
    True
    """
    return int((time.time() - days_past * 86_400) * 1000)
