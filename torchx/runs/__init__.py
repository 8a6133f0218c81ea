"""The run registry: what ran, when, from which code, and what was last seen of it."""

from __future__ import annotations

from torchx.runs.records import Change, NewRun, Run, RunQuery
from torchx.runs.registry import RunRegistry

__all__ = ["Change", "NewRun", "Run", "RunQuery", "RunRegistry", "default_registry"]

_default = RunRegistry()


def default_registry() -> RunRegistry:
    """The registry of the torchx home directory: one for the process, so that its file is opened once."""
    return _default
