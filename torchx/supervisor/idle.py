"""Detects that a job uses neither GPUs nor processors, by the samples of its replicas.

It never counts time before the first step: until a rank has reported one (:func:`torchx.distributed.progress`), a GPU
was busy, or, in a job without set-up, staging and GPUs, processors were busy for a tenth of the time allowed, a job
sets up, stages data, or compiles. A job without samples is not idle.
"""

from __future__ import annotations

import json
import os
import time

from torchx.supervisor.watchdog import Watchdog, span_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from torchx.supervisor.layout import WatchdogRequest

IDLE = "idle for "
"""Beginning of the sentence that reports an idle job."""

GPU_PERCENT, CPUS = 5.0, 0.1
"""A replica is idle below this utilization of its GPUs, and this number of processors in use."""

_WORK = 10  # share of the time allowed for which processors are busy: imports take less
_TAIL = 1 << 14
_COARSE_S = 0.05  # of the times of files
_LATE, _LATE_S = 4, 120.0  # intervals, but at least seconds, without a sample after which nothing is known


class Idle(Watchdog):
    """Watches the files of the sampler. Does nothing if ``options`` is empty; its ``files`` are those of the samples.

    Args:
        steps: files in which ranks report steps.
        every_s: seconds between two samples.
        started: Unix time at which the attempt started; 0: when it is watched.
    """

    def __init__(self, options: WatchdogRequest, steps: list[str], every_s: float, started: float = 0.0) -> None:
        super().__init__(options, {}, lambda: None)
        self._files = options.get("files", ())
        self._plain = options.get("plain", False)
        self._steps = steps
        self._every_s = every_s
        self._started = started
        self._begun = False
        self._from = self._checked = 0.0

    def begin(self, now: float) -> None:
        """Start to watch a new attempt."""
        super().begin(now)
        self._begun, self._from = False, self._started or time.time() - _COARSE_S

    def turn(self, now: float) -> str | None:
        """Check the samples since the last call. Returns a new report; None if there is none."""
        self.due = now + min(max(self._seconds / 20, 0.2), self._every_s)
        used = self._used()
        if not used:
            self._since, was = now, self.silent
            if was:
                self.silent, self.text = False, f"it went on; before that, {self.text}"
            return self.text if was else None
        if self.silent or now - self._since < self._seconds:
            return None
        self.silent = True
        self.text = f"{IDLE}{span_text(now - self._since)}: {used}"
        return self.text

    def _used(self) -> str:
        """Return the most that a replica used since the last call; empty if that is not idle, or nothing is known."""
        # The sampler may be late: it rests for a thousand times as long as it works.
        since = max(self._from, time.time() - max(_LATE * self._every_s, _LATE_S))
        every = self.samples()
        self._begun = self._begun or self._has_begun(every)
        found = [[row for row in rows if row["t"] >= since] for rows in every]
        found = [[row for row in rows if row["t"] >= self._checked] or rows[-1:] for rows in found]
        self._checked = time.time()
        gpus = [gpu[0] for rows in found for row in rows for gpu in row["gpu"]]
        if not self._begun or not found or not all(found):
            return ""
        cpus = [row["cpu"] for rows in found for row in rows]
        if max(cpus) >= CPUS or max(gpus, default=0.0) >= GPU_PERCENT:
            return ""
        seen = f"{len(gpus and found[0][0]['gpu'])} GPUs a replica at {max(gpus):.0f} % or less, " if gpus else ""
        count = f"{len(found)} replica{'s' if len(found) > 1 else ''}"
        return f"{seen}at most {max(cpus):.2f} processors in use, as sampled on {count}"

    def samples(self) -> list[list[dict[str, Any]]]:
        """Return the newest samples of each replica."""
        return [rows_of(_tail(path)) for path in self._files]

    def stepped(self, since: float) -> bool:
        """Whether a rank has reported a step since this Unix time."""
        return any(os.path.exists(path) and os.path.getmtime(path) >= since for path in self._steps)

    def _has_begun(self, samples: list[list[dict[str, Any]]]) -> bool:
        """Whether the attempt has begun to work; the longest time without an idle sample counts."""
        for rows in samples:
            from_s = self._from
            for row in (row for row in rows if row["t"] >= self._from):
                if any(gpu[0] >= GPU_PERCENT for gpu in row["gpu"]):
                    return True
                if row["cpu"] < CPUS:
                    from_s = row["t"]
                elif self._plain and row["t"] - from_s >= self._seconds / _WORK:
                    return True
        return self.stepped(self._from)


def _tail(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as f:
            f.seek(max(os.fstat(f.fileno()).st_size - _TAIL, 0))
            return f.read().splitlines()
    except OSError:
        return []


def rows_of(lines: Iterable[str | bytes]) -> list[dict[str, Any]]:
    """Return the samples in the last lines of a file."""
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
            rows.append({"t": float(row["t"]), "cpu": float(row["cpu"]), "gpu": list(row["gpu"])})
        except (ValueError, TypeError, KeyError):
            continue
    return rows
