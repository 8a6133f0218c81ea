"""A few things at a time, and done with all of them at the first that fails or when the user interrupts."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def in_parallel(tasks: Iterable[Callable[[], T]], *, at_once: int) -> list[T]:
    """The results of all tasks, in their order.

    The first exception of a task is raised at once, and no other task is begun. Those that run are not waited for:
    their threads are daemons, and a Ctrl-C must not wait for a gigabyte to be sent.

    >>> in_parallel([lambda: 1, lambda: 2], at_once=2)
    [1, 2]
    """
    todo = list(enumerate(tasks))
    if len(todo) < 2 or at_once < 2:
        return [task() for _, task in todo]
    results: list[T | None] = [None] * len(todo)
    left = iter(todo)
    lock, done = threading.Lock(), queue.SimpleQueue[BaseException | None]()
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                number, task = next(left, (-1, None))
            if task is None:
                return
            try:
                results[number] = task()
                done.put(None)
            except BaseException as e:
                done.put(e)

    for _ in range(min(at_once, len(todo))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in todo:
            error = done.get()
            if error is not None:
                raise error
    finally:
        stopped.set()
    return results  # type: ignore[return-value]  # every task has put its result
