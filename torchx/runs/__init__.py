"""The run registry: which jobs were submitted, when, from which code, and their last known states."""

from __future__ import annotations

from torchx.runs.records import Change, NewRun, Run, RunQuery
from torchx.runs.registry import RunRegistry, default_registry

__all__ = ["Change", "NewRun", "Run", "RunQuery", "RunRegistry", "default_registry"]
