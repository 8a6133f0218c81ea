"""Calls with a timeout."""

from __future__ import annotations

import os
import threading
from concurrent.futures import wait

import pytest

from torchx.tracker.bounded import Bounded


def test_answers_and_errors() -> None:
    """The result or exception of a call is returned; calls run one after the other, in one thread."""
    bounded = Bounded(300)
    threads = {bounded.call(threading.get_ident) for _ in range(10)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    with pytest.raises(ZeroDivisionError):
        bounded.call(lambda: 1 // 0)
    assert bounded.call(lambda: "after an error") == "after an error"


def test_a_call_that_hangs() -> None:
    """The call times out; while it hangs, later calls fail at once; when it has ended, calls work again."""
    bounded, go_on, ended = Bounded(0.01), threading.Event(), threading.Event()

    def hangs() -> None:
        go_on.wait()
        ended.set()

    with pytest.raises(TimeoutError, match="no answer within"):
        bounded.call(hangs)
    made: list[int] = []
    for _ in range(3):
        with pytest.raises(TimeoutError, match="an earlier call"):
            bounded.call(lambda: made.append(1))
    stuck = bounded._stuck
    assert stuck is not None
    go_on.set()
    assert wait([stuck], 300).done
    assert ended.is_set()
    bounded._timeout_s = 300
    assert bounded.call(lambda: "again") == "again"
    assert made == []


def test_callers_in_several_threads() -> None:
    """Concurrent calls wait for each other, and none fails."""
    bounded = Bounded(300)
    seen: list[int] = []
    threads = [threading.Thread(target=lambda n=n: bounded.call(lambda: seen.append(n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(8))


# Python 3.12 and later warn of a fork beside threads: this is the case that is tested.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_in_a_forked_process() -> None:
    """A forked process, which does not inherit the thread, starts its own."""
    bounded = Bounded(300)
    assert bounded.call(lambda: 1) == 1
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(bounded.call(lambda: 2)).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 10) == b"2"
    os.close(read)
