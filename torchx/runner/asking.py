"""Asks several schedulers at the same time, for so long and no longer."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")


def answers_within(timeout_s: float, questions: Sequence[Callable[[], T]]) -> list[T | None]:
    """The answer to each question; None to those that took too long, or raised an error.

    Args:
        timeout_s: how long all of them together may take. A question that takes longer goes on, and nobody listens.

    >>> answers_within(10, [lambda: 1, lambda: 2])
    [1, 2]
    """
    import threading

    results: dict[int, T] = {}

    def work(i: int) -> None:
        results[i] = questions[i]()

    deadline = time.monotonic() + timeout_s
    # Daemons: a cluster that does not answer must not keep the program from ending.
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    return [results.get(i) for i in range(len(questions))]
