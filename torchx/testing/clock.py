"""A clock that only a test advances."""

from __future__ import annotations


class FakeClock:
    """Replaces ``time.time``, ``time.monotonic`` and ``time.sleep``. Sleeping advances the clock.

    Args:
        now: seconds since the epoch.

    >>> clock = FakeClock(now=100.0)
    >>> clock.sleep(2.5)
    >>> clock.time(), clock.slept
    (102.5, [2.5])
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advances the clock and returns at once."""
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advances the clock, which never runs backwards."""
        if seconds < 0:
            raise ValueError(f"a clock cannot be moved by `{seconds}` s")
        self.now += seconds
