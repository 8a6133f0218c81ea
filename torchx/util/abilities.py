"""Optional abilities as protocols: any class with the methods of an ability implements it."""

from __future__ import annotations

from abc import ABC


class Ability(ABC):
    """Base class of the protocols; ``isinstance`` tests for their methods, as for those of ``collections.abc``.

    >>> from abc import abstractmethod
    >>> class Swims(Ability):
    ...     @abstractmethod
    ...     def swim(self) -> None: ...
    >>> class Duck:
    ...     def swim(self) -> None: ...
    >>> isinstance(Duck(), Swims), isinstance("stone", Swims)
    (True, False)
    """

    __abstractmethods__: frozenset[str]

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        if Ability not in cls.__bases__:  # not an ability, but a class that has inherited one
            return super().__subclasshook__(other)
        return all(hasattr(other, name) for name in cls.__abstractmethods__)
