"""Calls that may hang, made in a thread of their own and waited for only so long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 30.0


class Bounded:
    """Makes calls one after the other, in one thread, and gives up waiting after ``timeout_s`` seconds.

    A call that hangs goes on in its thread; until it has ended, other calls are refused at once, so that a job loses
    the time of one call and not of all of them. The thread never keeps the process from ending.

    >>> Bounded(5).call(lambda: 1 + 1)
    2
    """

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._calls: SimpleQueue[_Call] | None = None
        self._stuck: _Call | None = None
        self._pid = 0

    def call(self, work: Callable[[], T]) -> T:
        """What ``work`` returns.

        Raises:
            TimeoutError: there was no answer in time, or there still is none to an earlier call.
            Exception: whatever ``work`` raises.
        """
        if self._calls is None or self._pid != os.getpid():  # a thread does not live on in a forked process
            self._calls = _started()
            self._stuck, self._pid = None, os.getpid()
        if self._stuck is not None and not self._stuck.ended.is_set():
            raise TimeoutError("an earlier call has not been answered yet")
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
        except BaseException as e:  # it is raised again where the call was made
            call.error = e
        call.ended.set()
        del call  # or it would be kept until the next one comes
