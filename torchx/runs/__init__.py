"""The run registry: which jobs were submitted, when, from which code, and their last known states."""

from __future__ import annotations

from torchx.runs.records import Change, NewRun, Run, RunQuery
from torchx.runs.registry import RunRegistry

__all__ = ["Change", "NewRun", "Run", "RunQuery", "RunRegistry", "default_registry"]

_default = RunRegistry()


def default_registry() -> RunRegistry:
    """Return the registry in the torchx home directory; the process has one, so that its file is opened only once."""
    return _default
