"""The Runner's verbs as coroutines for ``asyncio``."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from torchx.runner.watching.changes import TICK_S, StatusFeed
from torchx.runner.watching.wait import WaitTimeoutError, timed_out
from torchx.specs.api import AppStatus

if TYPE_CHECKING:
    from torchx.runner.watching.verbs import Watches


class AsyncRunner:
    """Runs the Runner's verbs without blocking the event loop: ``await runner.aio.VERB(...)``.

    The verbs run one after the other in a single thread. :meth:`wait` does not occupy that thread: any number of jobs
    can be awaited concurrently, and together they poll each scheduler no more often than a single one. For state
    changes, use ``async for change in runner.watch(...)``.
    """

    def __init__(self, runner: Watches) -> None:
        self._runner = runner
        self._executor: Executor | None = None
        self._news: StatusFeed | None = None
        self._waiting = 0

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._runner, verb)
        if verb.startswith("_") or not callable(method):
            raise AttributeError(f"`{verb}` is not a verb of the Runner")

        async def awaited(*args: Any, **arguments: Any) -> Any:
            return await self._call(method, *args, **arguments)

        return awaited

    async def wait(self, app_handle: str, timeout: float | None = None) -> AppStatus | None:  # as `Runner.wait`
        """Wait until a job ends and return its status; see :meth:`torchx.runner.api.Runner.wait`.

        Raises:
            WaitTimeoutError: the job has not ended within ``timeout`` seconds; a subclass of ``TimeoutError``.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        handle = await self._call(self._runner.resolve, app_handle)
        news = self._begin(handle)
        try:
            while True:
                try:
                    found: AppStatus | None = await self._call(self._runner.wait, handle, timeout=0)
                    return found
                except WaitTimeoutError as e:
                    if timeout is not None and time.monotonic() >= deadline:
                        raise timed_out(handle, e.state, timeout) from None
                while not news.look([handle]) and time.monotonic() < deadline:
                    await asyncio.sleep(TICK_S)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._news = None
                news.close()

    def _begin(self, handle: str) -> StatusFeed:
        """Add a job to the News on which all waiting coroutines sleep."""
        if self._news is None:
            self._news = self._runner.news([])
        self._news.add([handle])
        self._waiting += 1
        return self._news

    async def _call(self, method: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "torchx verbs")  # one thread: a Runner is not thread-safe
        call = functools.partial(method, *args, **arguments)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)
