"""How far a job is: from files that its ranks write, or else from lines of its output."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from torchx.errors import TorchXError
from torchx.schedulers.api import Scheduler, open_logs
from torchx.schedulers.kit.abilities import ReportsSteps
from torchx.schedulers.kit.logs import LogQuery, Stream
from torchx.schedulers.kit.pace import Rank, pace_of, parse_lines, times_of
from torchx.specs.api import AppState, AppStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

_RECENT_S = 900.0
_NEAR_S = 1.0  # of schedulers on this machine
_MAX_LINES, _MAX_REPLICAS = 20_000, 64


def fill(status: AppStatus, backend: Scheduler[Any], app_id: str) -> None:
    """Implement :meth:`Runner.fill_pace`. Reads output of schedulers elsewhere only while the job runs."""
    replicas = [replica for role in status.roles for replica in role.replicas]
    if status.tasks is not None or not replicas:
        return
    ranks: list[Rank] = []
    with contextlib.suppress(TorchXError):  # the status is useful without
        if isinstance(backend, ReportsSteps):
            ranks = backend.steps(app_id)
        over = status.is_terminal() and backend.wait_hint <= _NEAR_S
        if not ranks and backend.capabilities.logs and (over or status.state == AppState.RUNNING):
            since = (status.ended_at or time.time()) - _RECENT_S
            there = [(one.role, one.id) for one in replicas if over or one.state == AppState.RUNNING]
            first = [*{role: (role, k) for role, k in reversed(there)}.values()]
            if ranks := _printed(backend, app_id, first, since):
                ranks += _printed(backend, app_id, [one for one in there if one not in first][:_MAX_REPLICAS], since)
    began = max((one.started_at or 0.0 for one in replicas), default=0.0)
    reports = any(one.points[-1][0] >= began for one in ranks)  # and not only an earlier attempt
    now = time.time() if reports and status.state == AppState.RUNNING else 0.0
    status.pace = pace_of(ranks, {(one.role, one.id): one.hostname for one in replicas}, now)
    if status.pace is not None and status.is_terminal():
        status.pace.slow = status.pace.left_s = None
        status.pace.stalled_s = 0.0


def _printed(backend: Scheduler[Any], app_id: str, replicas: Sequence[tuple[str, int]], since: float) -> list[Rank]:
    caps = backend.capabilities
    query = LogQuery(
        since=since if caps.log_since else None,
        last=_MAX_LINES,
        stream=Stream.STDOUT if "stdout" in caps.log_streams else None,
        timestamps=caps.log_timestamps,
    )
    found: list[Rank] = []
    for (role, k), lines in zip(replicas, open_logs(backend, app_id, replicas, query), strict=True):
        recent = deque(times_of(lines) if query.timestamps else ((0.0, line) for line in lines), _MAX_LINES)
        found += parse_lines(role, k, recent)
    return found
