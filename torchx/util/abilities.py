"""Optional abilities as named protocols: a class has one when it has its methods, whatever it inherits from."""

from __future__ import annotations

from abc import ABC


class Ability(ABC):
    """Base of the protocols; ``isinstance`` asks for one, as it does for those of ``collections.abc``.

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
        return all(hasattr(other, name) for name in cls.__abstractmethods__)
