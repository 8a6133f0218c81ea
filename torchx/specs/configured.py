"""What configuration files say about specs: asked for here, answered by the Runner's room, which knows the files.

A module of its own, so that the Runner's room can give its answer at the import of it without importing any resource.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_provider: Callable[[], Mapping[str, str]] = dict


def provide_named_resources(provider: Callable[[], Mapping[str, str]]) -> None:
    """Says where the resources of section ``[named_resources]`` come from.

    Args:
        provider: called at each lookup; returns names and the text of their values, see
            :func:`torchx.specs.named_resources.parse_resource`.
    """
    global _provider
    _provider = provider


def named_resources() -> Mapping[str, str]:
    """Names and texts of the configured resources; none in a program that has not imported ``torchx.runner``."""
    return _provider()
