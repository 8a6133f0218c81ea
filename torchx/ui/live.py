"""What is new: one reader of the record for all pages that are open, and only while one is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from torchx.runner.changes import Watch

Row = dict[str, Any]
News = dict[str, Any]


_QUIET_S = 5.0  # without a change, the record is read again: runs may have been deleted
_SHARE = 10  # a look that takes a second is followed by ten without one


class Live:
    """Changes of runs, for any number of listeners.

    Args:
        look: the rows of all runs on record, newest first.
        watch: begins to watch them: from then on somebody asks their schedulers.
    """

    def __init__(self, look: Callable[[], list[Row]], watch: Callable[[], Watch]) -> None:
        self._look = look
        self._watch = watch
        self._rows: dict[str, Row] = {}
        self._problems: dict[str, str] = {}
        self._listeners: set[asyncio.Queue[News]] = set()
        self._task: asyncio.Task[None] | None = None

    async def news(self) -> AsyncGenerator[News, None]:
        """First all rows, then those that are new, and of those that have changed ``handle`` and what has.

        A document has ``rows``, of which one with ``gone`` is on record no more, and ``problems``: why a scheduler
        could not be asked.
        """
        queue: asyncio.Queue[News] = asyncio.Queue()
        self._listeners.add(queue)
        if self._task is None or self._task.done():
            self._rows = {}
            self._task = asyncio.create_task(self._run())
        else:
            queue.put_nowait({"rows": list(self._rows.values()), "problems": self._problems})
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    async def _run(self) -> None:
        first = True
        with await asyncio.to_thread(self._watch) as watch:
            while self._listeners:
                began = time.monotonic()
                rows = {row["handle"]: row for row in await asyncio.to_thread(self._look)}
                news = [
                    _change(self._rows.get(handle, {}), row)
                    for handle, row in rows.items()
                    if self._rows.get(handle) != row
                ]
                news += [{"handle": handle, "gone": True} for handle in self._rows if handle not in rows]
                problems = watch.problems()
                if news or first or problems != self._problems:
                    self._rows, self._problems, first = rows, problems, False
                    for queue in self._listeners:
                        queue.put_nowait({"rows": news, "problems": problems})
                # On a machine that does much else a look takes long; pages are not to stand still for that.
                await asyncio.sleep(min(_SHARE * (time.monotonic() - began), _QUIET_S))
                try:
                    await asyncio.wait_for(anext(watch), _QUIET_S)
                except asyncio.TimeoutError:
                    continue
                while watch.within(0) is not None:  # all that is there is in the next look
                    pass


def _change(before: Row, row: Row) -> Row:
    return {key: value for key, value in row.items() if key == "handle" or key not in before or before[key] != value}
