"""Calls with a timeout, made in a separate thread because they may hang."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Calls = SimpleQueue[tuple[Future[Any], Callable[[], object]]]

DEFAULT_TIMEOUT_S = 30.0


class Bounded:
    """Makes calls one after the other in one thread, and stops waiting after ``timeout_s`` seconds.

    While a call hangs in the thread, other calls fail at once, so that a job loses the time of one call only. The
    thread never prevents the process from exiting.

    >>> Bounded(5).call(lambda: 1 + 1)
    2
    """

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._calls: _Calls | None = None
        self._stuck: Future[Any] | None = None
        self._pid = 0

    def call(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, or raise its exception.

        Raises:
            TimeoutError: the call timed out, or an earlier call has not returned yet.
        """
        if self._calls is None or self._pid != os.getpid():  # a forked process does not inherit the thread
            self._calls = SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls,), name="torchx-tracker", daemon=True).start()
            self._stuck, self._pid = None, os.getpid()
        if self._stuck is not None and not self._stuck.done():
            raise TimeoutError("an earlier call has not returned yet")
        future: Future[T] = Future()
        self._calls.put((future, work))
        wait([future], self._timeout_s)
        if not future.done():
            self._stuck = future
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        return future.result()


def _serve(calls: _Calls) -> None:
    while True:
        future, work = calls.get()
        try:
            future.set_result(work())
        except BaseException as e:  # raised again in the caller's thread
            future.set_exception(e)
        del future, work  # release them before the next ones arrive
