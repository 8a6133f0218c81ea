"""Named resources from configuration files, which ``torchx.runner`` provides.

A separate module, so that importing ``torchx.runner`` imports no resource tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_provider: Callable[[], Mapping[str, str]] = dict


def provide_named_resources(provider: Callable[[], Mapping[str, str]]) -> None:
    """Set the source of section ``[named_resources]``: called at each lookup, it returns texts by name."""
    global _provider
    _provider = provider


def named_resources() -> Mapping[str, str]:
    """Return the configured resources as texts by name; empty unless ``torchx.runner`` is imported."""
    return _provider()
