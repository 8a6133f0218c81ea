"""Named resources, GPU types and signatures of failures from configuration files, which ``torchx.runner`` provides.

A separate module, so that importing ``torchx.runner`` imports no resource tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_provider: Callable[[], Mapping[str, str]] = dict
_failures: Callable[[], Mapping[str, str]] = dict
_types: Callable[[str], Mapping[str, str]] = lambda _: {}  # noqa: E731


def provide_named_resources(provider: Callable[[], Mapping[str, str]]) -> None:
    """Set the source of section ``[named_resources]``: called at each lookup, it returns texts by name."""
    global _provider
    _provider = provider


def provide_gpu_types(provider: Callable[[str], Mapping[str, str]]) -> None:
    """Set the source of the sections ``[gpu_types:BACKEND]``: it returns the texts of a backend by type."""
    global _types
    _types = provider


def provide_failures(provider: Callable[[], Mapping[str, str]]) -> None:
    """Set the source of section ``[failures]``: it returns the texts of signatures by name."""
    global _failures
    _failures = provider


def failures() -> dict[str, str]:
    """Return the configured signatures of failures as texts by name; empty unless ``torchx.runner`` is imported."""
    return dict(_failures())


def named_resources() -> Mapping[str, str]:
    """Return the configured resources as texts by name; empty unless ``torchx.runner`` is imported."""
    return _provider()


def gpu_types(backend: str) -> Mapping[str, str]:
    """Return how a backend is asked for the configured types of GPUs; empty unless ``torchx.runner`` is imported."""
    return _types(backend)
