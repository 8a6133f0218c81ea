"""The scheduler instances of a Runner, and concurrent queries to several of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchx import config
from torchx.specs.api import runopts
from torchx.specs.handles import FOREIGN

if TYPE_CHECKING:
    from torchx.schedulers import SchedulerFactory
    from torchx.schedulers.api import Scheduler

    T = TypeVar("T")


_TICK_S = 0.2
NEAR_S = 0.2
"""A scheduler whose ``wait_hint`` is below this runs on this machine: a query costs microseconds."""


class Backends:
    """Scheduler instances by name and session, created on first use.

    ``factories``: None means all installed schedulers. ``params`` are keyword arguments for the factories.
    """

    def __init__(self, factories: Mapping[str, SchedulerFactory] | None, params: Mapping[str, object]) -> None:
        self._factories = factories
        self._params = params
        self._made: dict[tuple[str, str], Scheduler[Any]] = {}
        self._opts: dict[str, runopts] = {}

    def factories(self) -> Mapping[str, SchedulerFactory]:
        """Return the factories by name, the default scheduler first."""
        if self._factories is None:
            from torchx.schedulers import get_scheduler_factories

            self._factories = get_scheduler_factories()
        return self._factories

    def get(self, name: str, session: str) -> Scheduler[Any]:
        """Return the scheduler of that name, for the jobs of a session.

        Raises UnknownSchedulerException, or a TorchXError that names it if it cannot be loaded or created.
        """
        key = (name, session)
        if key not in self._made:
            self._made[key] = self._make(name, session)
        return self._made[key]

    def run_opts(self, name: str, session: str) -> runopts:
        """Return the run options of a scheduler, cached; callers must not modify them."""
        if name not in self._opts:
            self._opts[name] = self.get(name, session).run_opts()
        return self._opts[name]

    def another(self) -> Backends:
        """Return new instances of the same schedulers, for another thread."""
        return Backends(self._factories, self._params)

    def close(self) -> None:
        """Close the schedulers; they are created again on next use."""
        made, self._made = self._made, {}
        for scheduler in made.values():
            scheduler.close()

    def _make(self, name: str, session: str) -> Scheduler[Any]:
        from torchx.schedulers import make_scheduler
        from torchx.schedulers.kit.abilities import KnowsForeign, TakesDefaults

        made = make_scheduler(name, session, self.factories(), **self._params)
        if isinstance(made, TakesDefaults):
            made.configure(lambda: {key: s.value for key, s in config.resolve(name, made.run_opts()).items()})
        return made.foreign() if session == FOREIGN and isinstance(made, KnowsForeign) else made


def is_near(scheduler: Scheduler[Any]) -> bool:
    """Whether the scheduler runs on this machine."""
    from torchx.schedulers.api import Scheduler

    return isinstance(scheduler, Scheduler) and scheduler.wait_hint < NEAR_S


def answers_within(
    timeout_s: float, questions: Sequence[Callable[[], T]], seen: Callable[[Mapping[int, T]], None] | None = None
) -> list[T | None]:
    """Call functions concurrently and return their results; None for one that raised an error or took too long.

    Args:
        timeout_s: time limit in seconds for all of them. A call that exceeds it goes on; its result is ignored.
        seen: called every 0.2 s with the results so far by number.

    >>> answers_within(10, [lambda: 1, lambda: 2])
    [1, 2]
    """
    import threading

    results: dict[int, T] = {}

    def work(i: int) -> None:
        results[i] = questions[i]()

    deadline = time.monotonic() + timeout_s
    # Daemon threads: a cluster that does not answer must not keep the program from exiting.
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        done = False
        while not done:
            left = max(deadline - time.monotonic(), 0)
            thread.join(min(left, _TICK_S) if seen else left)
            if seen:
                seen(dict(results))
            done = left <= _TICK_S or not seen or not thread.is_alive()
    return [results.get(i) for i in range(len(questions))]
