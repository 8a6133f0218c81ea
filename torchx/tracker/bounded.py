"""Calls with a timeout, made in a separate thread because they may hang."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

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
        self._calls: SimpleQueue[_Call] | None = None
        self._stuck: _Call | None = None
        self._pid = 0

    def call(self, work: Callable[[], T]) -> T:
        """Returns the result of ``work``.

        Raises:
            TimeoutError: the call timed out, or an earlier call has not returned yet.
            Exception: whatever ``work`` raises.
        """
        if self._calls is None or self._pid != os.getpid():  # a forked process does not inherit the thread
            self._calls = _started()
            self._stuck, self._pid = None, os.getpid()
        if self._stuck is not None and not self._stuck.ended.is_set():
            raise TimeoutError("an earlier call has not returned yet")
        call = _Call(work)
        self._calls.put(call)
        if not call.ended.wait(self._timeout_s):
            self._stuck = call
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # what `work` returned, of its type


class _Call:
    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.ended = threading.Event()
        self.result: object = None
        self.error: BaseException | None = None


def _started() -> SimpleQueue[_Call]:
    calls: SimpleQueue[_Call] = SimpleQueue()
    threading.Thread(target=_serve, args=(calls,), name="torchx-tracker", daemon=True).start()
    return calls


def _serve(calls: SimpleQueue[_Call]) -> None:
    while True:
        call = calls.get()
        try:
            call.result = call.work()
        except BaseException as e:  # raised again in the caller's thread
            call.error = e
        call.ended.set()
        del call  # release it before the next one arrives
