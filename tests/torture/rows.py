"""A row of the table: a sweep, what it does, and what came of it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Round(NamedTuple):
    """One attempt of a sweep that sends signals.

    Attributes:
        problem: what did not hold; empty if all did.
        reached: the processes that a signal reached. Where there is none, nothing was tried, and the round does not count.
        tried: how many attempts it stands for.
    """

    problem: str
    reached: tuple[str, ...]
    tried: int = 1


Sweep = Callable[[random.Random, Path], Iterator["str | Round"]]


class Row(NamedTuple):
    """A sweep: ``share`` is its part of the time, in shares of an ordinary one."""

    name: str
    what: str
    sweep: Sweep
    share: int = 1


class Result(NamedTuple):
    """What came of a sweep.

    Attributes:
        tried: the attempts that count.
        wrong: what did not hold, each with the number of the attempt and the seconds until then.
        reached: how many processes of each kind a signal reached.
        idle: rounds that do not count.
    """

    tried: int
    wrong: list[str]
    reached: Counter[str]
    idle: int

    def notes(self) -> str:
        """``12 guardians, 9 replicas; 2 rounds reached none``."""
        text = ", ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in sorted(self.reached.items()))
        return text + f"; {self.idle} round{'s' * (self.idle != 1)} reached none, not counted" * (self.idle > 0)


def attempts(row: Row, place: Path, *, seed: int, count: int | None = None, seconds: float = 0.0) -> Result:
    """Make so many attempts of a sweep, or for so long."""
    place.mkdir()
    began = time.monotonic()
    tried = idle = 0
    wrong: list[str] = []
    reached: Counter[str] = Counter()
    for made in row.sweep(random.Random(seed), place):
        outcome = made if isinstance(made, Round) else Round(made, ("",))
        if outcome.reached or outcome.problem:
            tried += outcome.tried
        else:
            idle += 1
        reached.update(filter(None, outcome.reached))
        spent = time.monotonic() - began
        if outcome.problem:
            wrong.append(f"attempt {tried}, after {spent:.0f} s: {outcome.problem}")
        if (count is not None and tried >= count) or (count is None and spent > seconds):
            break
    return Result(tried, wrong, reached, idle)
