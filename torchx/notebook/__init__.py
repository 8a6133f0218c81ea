"""torchx in a notebook: code written in cells, jobs launched from cells, and what became of them to look at.

::

    %load_ext torchx.notebook          # `import torchx.notebook` does the same

    %%workspacefile train.py
    print("hello from the job")

    job = %torchx run utils.python --script train.py
    job.wait()

===========================  ==========================================================================
``%%workspacefile PATH``     keeps the cell as a file of the workspace in memory; ``-a`` appends to it
``%workspace``               what is in there; ``%workspace clear`` removes it
``%torchx VERB ...``         any command of torchx, in this process. ``run`` takes the workspace along when
                             something is in it, and returns a :class:`Job`
``%%torchx VERB ...``        the same, with further arguments in the lines of the cell
===========================  ==========================================================================

A ``{name}`` in an argument is the variable of that name, ``{cfg.lr}`` and ``{lrs[0]}`` what is in it: always one
argument, whatever the value looks like. ``$`` is left alone, for it belongs to shells and to torchx's macros.

Jobs, statuses and job definitions show themselves as pages when they are what a cell returns. Nothing here needs
IPython before a shell of it is there: the module can be imported anywhere, at the cost of two files.
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
    """What ``%load_ext torchx.notebook`` calls. Twice is as good as once."""
    from torchx.notebook import magics

    magics.register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What ``%unload_ext torchx.notebook`` calls."""
    from torchx.notebook import magics

    magics.unregister(shell)


def get_workspace() -> str:
    """The address of the workspace that cells are written to, for ``workspace=`` of the Runner."""
    from torchx.notebook.workspace import WORKSPACE

    return WORKSPACE


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_where_there_is_a_shell() -> None:
    if sys.modules.get("IPython") is not None:  # who has not imported it has no shell
        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None:
            load_ipython_extension(shell)


_register_where_there_is_a_shell()
