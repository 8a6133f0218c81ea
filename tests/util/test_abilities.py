"""Abilities as protocols, and classes that inherit them."""

from __future__ import annotations

from abc import abstractmethod

from tests.runner.memory_backend import MemoryScheduler
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.abilities import ReportsUsage
from torchx.util.abilities import Ability


class Measured(MemoryScheduler, ReportsUsage):
    """A backend that names its ability among its bases, so that type checkers compare the signatures."""

    def metrics(self, app_id: str) -> None:
        return None


class Half(Ability):
    @abstractmethod
    def left(self) -> None: ...

    @abstractmethod
    def right(self) -> None: ...


class OnTheLeft(Half):
    def left(self) -> None: ...


def test_who_has_an_ability() -> None:
    """Whoever has its methods, inherited or not; a part of them is not enough."""
    assert isinstance(Measured("test"), ReportsUsage)
    assert not isinstance(MemoryScheduler("test"), ReportsUsage)
    assert not isinstance(object(), ReportsUsage)
    assert issubclass(type("Both", (), {"left": 1, "right": 2}), Half)
    assert not issubclass(type("One", (), {"right": 2}), Half)


def test_a_class_that_inherits_an_ability_is_an_ordinary_class() -> None:
    """Its instances are those of itself and of its subclasses; other objects did not become schedulers."""
    for other in (object(), "text", type("One", (), {"right": 2})()):
        assert not isinstance(other, (Measured, Scheduler, OnTheLeft))
    assert isinstance(Measured("test"), Scheduler)
    assert issubclass(type("More", (Measured,), {}), Measured)
