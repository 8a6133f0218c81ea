"""The registry of this user's runs, imported on use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx.runs import Run, RunRegistry

_opened: RunRegistry | None = None


def run_registry() -> RunRegistry:
    """Return the registry of this user's runs; imported on use, because the status of a local job does not need it."""
    global _opened
    if _opened is None:
        from torchx.runs import default_registry

        _opened = default_registry()
    return _opened


def close_registry() -> None:
    """Close the registry if it was used; the next use opens it again."""
    if _opened is not None:
        _opened.close()


def read_run(handle: str) -> Run | None:
    """Return a run on record, if there is one; its secrets are masked in the output of this process from then on."""
    from torchx.runner.ground.secrets import learned

    return learned(run_registry().get(handle))
