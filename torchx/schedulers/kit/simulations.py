"""Faults that are made to happen on purpose, by ``torchx simulate``: what each is called, and what a backend answers.

A backend has the ability :class:`~torchx.schedulers.kit.abilities.Simulates`, in a file ``simulate.py`` of its folder.
It makes the real thing happen: what a job hears, and what becomes of it, is what it will be at three in the morning.
"""

from __future__ import annotations

from collections.abc import Callable

from torchx.errors import NotSupportedError
from torchx.util.records import dataclass

__all__ = ["FAULTS", "Simulation", "cannot"]

FAULTS = {
    "preempt": "another job takes its place",
    "timeout": "its time limit comes",
    "oom": "the memory of a replica runs out",
    "kill": "a replica is killed, with SIGKILL",
    "node": "the machine of a replica fails",
    "hang": "a replica stops without a word, by SIGSTOP",
}
"""Name of each fault -> what happens."""


@dataclass
class Simulation:
    """What would be done to a job.

    Attributes:
        says: what, as a sentence without full stop; it is shown before anything is done.
        make: does it.
    """

    says: str
    make: Callable[[], None]


def cannot(scheduler: str, fault: str, why: str, *, instead: str = "") -> NotSupportedError:
    """The error of a backend that cannot make a fault happen.

    Args:
        why: as a sentence without full stop.
        instead: what may be simulated in its place.
    """
    hint = f"`torchx simulate {instead}` is as near as it gets" if instead else ""
    return NotSupportedError(f"`{fault}` cannot be simulated on `{scheduler}`: {why}", hint=hint)
