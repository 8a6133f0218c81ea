"""The schedulers of one Runner: made when they are first asked for, once for each session; several asked at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchx import config
from torchx.errors import BackendError, MissingDependencyError, TorchXError
from torchx.specs.api import CfgVal, UnknownSchedulerException, runopts
from torchx.specs.handles import FOREIGN

if TYPE_CHECKING:
    from torchx.schedulers import SchedulerFactory
    from torchx.schedulers.api import Scheduler

    T = TypeVar("T")


NEAR_S = 0.2
"""A scheduler whose ``wait_hint`` is below this answers from this machine: asking it costs microseconds."""


class Backends:
    """Schedulers by name.

    Args:
        factories: name to factory; all that are installed when None.
        params: arguments for the factories.
    """

    def __init__(self, factories: Mapping[str, SchedulerFactory] | None, params: Mapping[str, object]) -> None:
        self._factories = factories
        self._params = params
        self._made: dict[tuple[str, str], Scheduler[Any]] = {}
        self._opts: dict[str, runopts] = {}

    def factories(self) -> Mapping[str, SchedulerFactory]:
        """Name to factory, the default scheduler first."""
        if self._factories is None:
            from torchx.schedulers import get_scheduler_factories

            self._factories = get_scheduler_factories()
        return self._factories

    def get(self, name: str, session: str) -> Scheduler[Any]:
        """The scheduler of that name, for the jobs of a session.

        Raises:
            UnknownSchedulerException: there is none of that name.
            TorchXError: it cannot be loaded or set up; the message names it.
        """
        key = (name, session)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(name, session)
        return found

    def run_opts(self, name: str, session: str) -> runopts:
        """The run options of a scheduler; not to be changed."""
        opts = self._opts.get(name)
        if opts is None:
            opts = self._opts[name] = self.get(name, session).run_opts()
        return opts

    def another(self) -> Backends:
        """Schedulers of the same names, for another thread."""
        return Backends(self._factories, self._params)

    def close(self) -> None:
        """Closes the schedulers; they are made anew when they are asked for."""
        made, self._made = self._made, {}
        for scheduler in made.values():
            scheduler.close()

    def _make(self, name: str, session: str) -> Scheduler[Any]:
        factories = self.factories()
        if name not in factories:
            raise _no_such_scheduler(name, factories)
        try:
            made = factories[name](session, **self._params)
        except TorchXError:
            raise
        except ImportError as e:
            raise MissingDependencyError(
                f"scheduler `{name}` cannot be loaded: {e}", hint="install what it needs, or repair the plugin"
            ) from e
        except Exception as e:
            raise BackendError(f"scheduler `{name}` cannot be set up: {type(e).__name__}: {e}") from e
        from torchx.schedulers.kit.abilities import KnowsForeign, TakesDefaults

        if isinstance(made, TakesDefaults):
            made.configure(lambda: _configured(name, made.run_opts()))
        return made.foreign() if session == FOREIGN and isinstance(made, KnowsForeign) else made


def is_near(scheduler: Scheduler[Any]) -> bool:
    """Whether the scheduler answers from this machine."""
    from torchx.schedulers.api import Scheduler

    return isinstance(scheduler, Scheduler) and scheduler.wait_hint < NEAR_S


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


def _configured(name: str, opts: runopts) -> dict[str, CfgVal]:
    return {key: setting.value for key, setting in config.resolve(name, opts).items()}


def _no_such_scheduler(name: str, known: Iterable[str]) -> TorchXError:
    from torchx.schedulers import DEFAULT_SCHEDULER_MODULES, missing_scheduler

    if name in DEFAULT_SCHEDULER_MODULES:
        return missing_scheduler(name, [*known])
    return UnknownSchedulerException(name, known)
