"""Loggers of the standard ``logging``, which is imported when there is something to say: it costs 5 ms."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

_before_first: list[Callable[[], None]] = []


def before_first(set_up: Callable[[], None]) -> None:
    """Calls ``set_up`` before the first logger is used: how a program says where records go."""
    _before_first[:] = [set_up]


def logger(name: str) -> logging.Logger:
    """The logger of that name.

    >>> logger("torchx").name
    'torchx'
    """
    import logging

    ready()
    return logging.getLogger(name)


def ready() -> None:
    """Does what :func:`before_first` was given: for code of others, which may use ``logging`` by itself."""
    while _before_first:
        _before_first.pop()()
