"""How far a job is and how fast, as its ranks report it by :func:`torchx.distributed.progress`."""

from __future__ import annotations

from torchx.util.datetime import duration, local_time
from torchx.util.records import dataclass, field
from torchx.util.term import printable


@dataclass
class SlowRank:
    """A rank for which the others wait.

    Attributes:
        rank: its number; its replica is number ``replica`` of ``role``, on ``host``.
        factor: its own time for a step, outside of collectives, as a multiple of the median of all ranks.
        since: Unix time since which it is slow.
    """

    rank: int
    role: str
    replica: int
    host: str = ""
    factor: float = 0.0
    since: float = 0.0


@dataclass
class JobPace:
    """The steps of a job.

    Attributes:
        step, total: steps done and in all; ``total`` is None if unknown.
        ranks: how many ranks report steps.
        at: Unix time of the newest report.
        rate: steps per second lately; None if unknown.
        left_s: seconds left at that rate; None if unknown.
        stalled_s: seconds since the last step if there was none for unusually long, else 0.
        slow: the slowest rank, if it is a straggler, or the one that others wait for in a stall.
        metrics: further numbers of the lowest rank.
    """

    step: int
    total: int | None = None
    ranks: int = 1
    at: float = 0.0
    rate: float | None = None
    left_s: float | None = None
    stalled_s: float = 0.0
    slow: SlowRank | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[tuple[str, str]]:
        """Return the progress for people, as labels and texts.

        >>> JobPace(1200, 5000, rate=4.0, left_s=950).lines()
        [('progress', 'step 1,200 of 5,000 (24 %), 4 steps/s, 15 min 50 s left')]
        >>> slow = SlowRank(7, "trainer", 1, "n3", 2.4, 0.0)
        >>> JobPace(5, rate=0.1, ranks=8, stalled_s=300, slow=slow).lines()[1]
        ('stalled', 'no step for 5 min; the others wait for rank 7 (trainer/1 on n3)')
        """
        share = f" of {self.total:,} ({100 * self.step / self.total:.0f} %)" if self.total else ""
        words = [f"step {self.step:,}{share}"]
        if self.rate:
            words.append(f"{self.rate:.3g} steps/s" if self.rate >= 1 else f"{1 / self.rate:.3g} s a step")
        if self.left_s is not None:
            words.append(f"{duration(self.left_s)} left")
        words += [f"{printable(str(name))} {value:.4g}" for name, value in self.metrics.items()]
        found = [("progress", ", ".join(words))]
        one = self.slow
        where = f" on {printable(one.host)}" if one is not None and one.host else ""
        who = "" if one is None else f"rank {one.rank} ({printable(one.role)}/{one.replica}{where})"
        if self.stalled_s:
            then = f"; the others wait for {who}" if who else ""
            found.append(("stalled", f"no step for {duration(self.stalled_s)}{then}"))
        elif one is not None:
            text = f"{who} takes {one.factor:.1f} times the median of {self.ranks} ranks for a step"
            found.append(("slow", f"{text}, since {local_time(one.since)}"))
        return found
