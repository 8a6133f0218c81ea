"""Ends that may be none: for some seconds after ``brequeue``, LSF shows a job as ended that will run again."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchx.schedulers.lsf.parse import ENDS, Row
from torchx.util.records import replace

SETTLES_S = 20.0
"""Age at which an end without a reason is final; LSF shows a requeued job as ended for up to 15 s."""
_MINUTE_S = 60.0

NOTE = f"LSF shows an end without a reason, which a requeue does, too: it is final {SETTLES_S:g} s later"


class Ends:
    """When ends without a reason were first seen, by the ids of LSF jobs."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}

    def settled(self, row: Row, at: float | None = None) -> Row:
        """Return the row, as running if its end is not final. ``at``: the exact time of the end, if it is known."""
        if row.stat not in ENDS or row.exit_reason or not row.hosts or row.ended is None:
            self._seen.pop(row.jobid, None)
            return row
        now = self._clock()
        seen = self._seen.setdefault(row.jobid, now)
        latest = at if at is not None else row.ended + _MINUTE_S
        return row if now - min(seen, latest) >= SETTLES_S else replace(row, stat="RUN", exit_code="", ended=None)
