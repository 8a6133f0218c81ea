"""Changes of runs for all open pages, from one reader of the record, which runs only while a page is open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from torchx.runner.show.tables import Row
from torchx.runner.watching.changes import Watch

News = dict[str, Any]
_QUIET_S = 5.0  # interval at which to read the record without a change: runs may have been deleted
_SHARE = 10  # after a read that took a second, wait ten seconds


class Live:
    """Changes of runs, for any number of listeners.

    ``look`` returns the rows of all runs on record, newest first; ``watch`` makes their schedulers be polled.
    """

    def __init__(self, look: Callable[[], list[Row]], watch: Callable[[], Watch]) -> None:
        self._look = look
        self._watch = watch
        self._rows: dict[str, Row] = {}
        self._problems: dict[str, str] = {}
        self._listeners: set[asyncio.Queue[News]] = set()
        self._task: asyncio.Task[None] | None = None

    async def news(self) -> AsyncGenerator[News, None]:
        """Yield first all rows, then new rows, and ``handle`` and changed fields of the others.

        A document has ``rows``, where ``gone`` marks a deleted run, and ``problems``: the reason by scheduler why it
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
                # On a busy machine a read is slow; the limit keeps the pages current.
                await asyncio.sleep(min(_SHARE * (time.monotonic() - began), _QUIET_S))
                try:
                    await asyncio.wait_for(anext(watch), _QUIET_S)
                except asyncio.TimeoutError:
                    continue
                while watch.within(0) is not None:  # the next read covers all pending changes
                    pass


def _change(before: Row, row: Row) -> Row:
    return {key: value for key, value in row.items() if key == "handle" or key not in before or before[key] != value}
