"""Statuses for many calls at once: while a scheduler is being queried, further calls gather for its next query."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread

from torchx.runner import Runner
from torchx.specs.api import AppStatus, parse_app_handle


class SharedStatuses:
    """Answers like :meth:`torchx.runner.Runner.status`; calls for jobs of one scheduler share a query."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._locks: dict[str, anyio.Lock] = {}
        self._waiting: dict[str, dict[str, list[Any]]] = {}  # by scheduler and handle: the calls' places for an answer

    async def status(self, handle: str) -> AppStatus | None:
        """Return the status of a job; raise TorchXError as :meth:`~torchx.runner.Runner.status` does."""
        scheduler = parse_app_handle(handle)[0]
        place: list[Any] = []
        self._waiting.setdefault(scheduler, {}).setdefault(handle, []).append(place)
        async with self._locks.setdefault(scheduler, anyio.Lock()):
            if not place:
                await anyio.lowlevel.checkpoint()  # calls that came at the same time join
                waiting = self._waiting.pop(scheduler, {})
                found = await anyio.to_thread.run_sync(self._runner.statuses, list(waiting))
                for name, places in waiting.items():
                    for one in places:
                        one.append(found[name])
        if isinstance(place[0], Exception):
            raise place[0]
        status: AppStatus | None = place[0]
        return status
