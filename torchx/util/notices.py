"""Loggers that import ``logging`` on first use, because its import takes 5 ms."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

_before_first: list[Callable[[], None]] = []


def before_first(set_up: Callable[[], None]) -> None:
    """Call ``set_up`` before the first logger is used, for a program to configure logging."""
    _before_first[:] = [set_up]


def logger(name: str) -> logging.Logger:
    """Return the logger of that name.

    >>> logger("torchx").name
    'torchx'
    """
    import logging

    ready()
    return logging.getLogger(name)


def ready() -> None:
    """Call the function given to :func:`before_first`, before code of others that may use ``logging`` directly."""
    while _before_first:
        _before_first.pop()()
