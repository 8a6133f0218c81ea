"""torchx in a notebook: write code in cells, launch jobs from cells, and display their status.

``%load_ext torchx.notebook``, or ``import torchx.notebook``, adds ``%%workspacefile``, ``%workspace``, ``%torchx`` and
``%%torchx``; docs/notebook.md explains them. Jobs, statuses and job definitions are displayed as HTML when a cell
returns them. The module can be imported without IPython.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.notebook.job import Job
    from torchx.notebook.workspace import WORKSPACE, workspacefile

__all__ = ["WORKSPACE", "Job", "get_workspace", "load_ipython_extension", "unload_ipython_extension", "workspacefile"]

_HOME = {"Job": "job", "WORKSPACE": "workspace", "workspacefile": "workspace"}


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; called by ``%load_ext torchx.notebook``. Idempotent."""
    from torchx.notebook import magics

    magics.register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics; called by ``%unload_ext torchx.notebook``."""
    from torchx.notebook import magics

    magics.unregister(shell)


def get_workspace() -> str:
    """Return the address of the workspace of ``%%workspacefile``, for ``workspace=`` of the Runner."""
    from torchx.notebook.workspace import WORKSPACE

    return WORKSPACE


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_in_current_shell() -> None:
    if sys.modules.get("IPython") is not None:  # without the import there is no shell
        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None:
            load_ipython_extension(shell)


_register_in_current_shell()
