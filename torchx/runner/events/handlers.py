"""Logging handlers for events, by the name of their destination."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.errors import ConfigError

if TYPE_CHECKING:
    import logging


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Create a handler for events.

    Args:
        destination: ``null`` (nowhere), ``console`` (stderr), or ``file:PATH`` (appends one JSON object per line).

    Raises:
        ConfigError: there is no such destination.
    """
    import logging

    if destination == "null":
        return logging.NullHandler()
    if destination == "console":
        return logging.StreamHandler()
    scheme, _, path = destination.partition(":")
    if scheme == "file" and path:
        return logging.FileHandler(path, delay=True)
    raise ConfigError(f"events cannot go to `{destination}`", hint="one of: null, console, file:PATH")
