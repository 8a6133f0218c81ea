"""What is new: one reader asks the schedulers for all pages that are open, and only while one is."""

from __future__ import annotations

import asyncio
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Any

    Row = dict[str, Any]

_SHORTEST_S = 1.0
_LONGEST_S = 60.0
_SHARE = 20  # a look that takes a second is followed by twenty without one


class Live:
    """Changes of runs, for any number of listeners.

    Args:
        look: the rows of all runs, newest first, states asked of the schedulers; it may take its time.
    """

    def __init__(self, look: Callable[[], list[Row]]) -> None:
        self._look = look
        self._rows: dict[str, Row] = {}
        self._listeners: set[asyncio.Queue[list[Row]]] = set()
        self._task: asyncio.Task[None] | None = None

    async def changes(self) -> AsyncIterator[list[Row]]:
        """First all rows, then those that are new or have changed; a row with ``gone`` is on record no more."""
        queue: asyncio.Queue[list[Row]] = asyncio.Queue()
        self._listeners.add(queue)
        if self._rows:
            queue.put_nowait(list(self._rows.values()))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            while True:
                rows = await queue.get()
                while not queue.empty():
                    rows += queue.get_nowait()
                yield rows
        finally:
            self._listeners.discard(queue)

    async def _run(self) -> None:
        first = not self._rows
        while self._listeners:
            began = time.monotonic()
            rows = {row["handle"]: row for row in await asyncio.to_thread(self._look)}
            news = [row for handle, row in rows.items() if self._rows.get(handle) != row]
            news += [{"handle": handle, "gone": True} for handle in self._rows if handle not in rows]
            self._rows = rows
            if news or first:
                first = False
                for queue in self._listeners:
                    queue.put_nowait(list(news))
            took = time.monotonic() - began
            await asyncio.sleep(min(max(_SHORTEST_S, _SHARE * took), _LONGEST_S))
