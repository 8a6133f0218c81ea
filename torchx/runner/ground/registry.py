"""The registry of this user's runs, imported on use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx.runs import Run, RunRegistry


def run_registry() -> RunRegistry:
    """Return the registry of this user's runs; imported on use, because the status of a local job does not need it."""
    from torchx.runs import default_registry

    return default_registry()


def read_run(handle: str) -> Run | None:
    """Return a run on record, if there is one; its secrets are masked in the output of this process from then on."""
    from torchx.runner.ground.secrets import learned

    return learned(run_registry().get(handle))
