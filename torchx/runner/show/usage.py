"""What runs have used, with the prices of the config files: a table for ``torchx usage`` and ``torchx ui``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torchx.config import active_profile, load_files, warn_of_unknown
from torchx.errors import ConfigError
from torchx.runs.usage import Used
from torchx.util.records import dataclass, field
from torchx.util.term import iso

SECTION = "prices"
_KEYS = ("gpu_hour", "cpu_hour")


@dataclass
class Line:
    """What one group used on all schedulers; ``cost`` is None without prices."""

    key: str
    runs: int = 0
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    unseen: int = 0
    cost: float | None = None


@dataclass
class Bill:
    """The groups, most GPU-hours first (days in their order), their sum, and the currency; None without prices."""

    total: Line
    lines: list[Line] = field(default_factory=list)
    currency: str | None = None


def bill(found: Iterable[Used], by: str = "name") -> Bill:
    """Add up what was used on each scheduler, with the prices of section ``[prices]``.

    >>> bill([Used("train", "slurm", 1, 2.0, 8.0, 0), Used("train", "aws_batch", 2, 1.0, 4.0, 1)]).lines
    [Line(key='train', runs=3, gpu_hours=3.0, cpu_hours=12.0, unseen=1, cost=None)]
    """
    prices, currency = _prices()
    lines: dict[str, Line] = {}
    total = Line("total")
    for used in found:
        for line in (lines.setdefault(used.key, Line(used.key)), total):
            line.runs += used.runs
            line.gpu_hours += used.gpu_hours
            line.cpu_hours += used.cpu_hours
            line.unseen += used.unseen
            if currency is not None:
                gpu, cpu = (prices.get(f"{used.scheduler}.{key}", prices.get(key, 0.0)) for key in _KEYS)
                line.cost = (line.cost or 0.0) + used.gpu_hours * gpu + used.cpu_hours * cpu
    rows = [*lines.values()]
    if by != "day":
        rows.sort(key=lambda line: (-line.gpu_hours, -line.cpu_hours))
    return Bill(total, rows, currency)


def usage_fields(found: Bill, by: str, since: float | None) -> dict[str, Any]:
    """Return the document of ``torchx usage --json``."""
    rows = [vars(line) for line in found.lines]
    return {"by": by, "since": iso(since), "currency": found.currency, "groups": rows, "total": vars(found.total)}


def _prices() -> tuple[dict[str, float], str | None]:
    """Return the prices by key, and the currency, which may be empty; None if there are no prices."""
    from torchx.schedulers import get_scheduler_factories

    prices: dict[str, float] = {}
    section = load_files().section(SECTION, active_profile())
    for key, entry in section.items():
        scheduler, dot, name = key.rpartition(".")
        if name not in _KEYS or (dot and scheduler not in get_scheduler_factories()):
            if key != "currency":
                warn_of_unknown(SECTION, key, f"`[{SECTION}]` has no key", (*_KEYS, "currency"))
            continue
        try:
            prices[key] = float(entry.text)
        except ValueError:
            prices[key] = math.nan
        if not 0 <= prices[key] < math.inf:
            raise ConfigError(f"{entry.where()}: `{key}` is `{entry.text}`", hint="a price, such as 2.50")
    return prices, (section["currency"].text if "currency" in section else "") if prices else None
