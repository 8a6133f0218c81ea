"""Fault injection with ``torchx simulate``: the names of the faults, and what a backend returns.

A backend implements :class:`~torchx.schedulers.kit.abilities.Simulates` in a module ``simulate.py``. It causes the real
fault, so that the job receives the same signals and ends in the same way as in production.
"""

from __future__ import annotations

from collections.abc import Callable

from torchx.errors import NotSupportedError
from torchx.util.records import dataclass

FAULTS = {
    "preempt": "another job preempts it",
    "timeout": "it reaches its time limit",
    "oom": "a replica runs out of memory",
    "kill": "a replica is killed with SIGKILL",
    "node": "the machine of a replica fails",
    "hang": "a replica hangs, stopped by SIGSTOP",
}
"""Name of each fault -> what happens."""


@dataclass
class Simulation:
    """A prepared fault.

    Attributes:
        says: what will be done to the job, as a sentence without full stop, shown before ``make`` is called.
        make: causes the fault.
    """

    says: str
    make: Callable[[], None]


def cannot(scheduler: str, fault: str, why: str, *, instead: str = "") -> NotSupportedError:
    """Return the error of a backend that cannot cause a fault. ``instead``:
    the closest arguments of ``torchx simulate``.
    """
    hint = f"`torchx simulate {instead}` comes closest" if instead else ""
    return NotSupportedError(f"`{fault}` cannot be simulated on `{scheduler}`: {why}", hint=hint)
