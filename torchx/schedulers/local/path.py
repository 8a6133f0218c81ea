"""Where local jobs look for programs: the caller's ``PATH``, and the environment that torchx itself runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def program_path(environ: Mapping[str, str]) -> str:
    """``PATH`` for local jobs.

    It is the caller's, with the folder of the Python that torchx runs in behind it, for those who call that by its
    path: its ``torchrun`` is found, too. The folder comes first where it is that of a virtual environment (or one of
    conda) which nobody has activated, and no other one is: ``/venv/bin/torchx run utils.python`` means the Python
    beside it, as ``/venv/bin/torchrun`` would. A torchx that ``PATH`` leads to is a tool of its own (``pipx``, a shared
    installation): it does not come before the Python that the user would get.
    """
    path = environ.get("PATH", os.defpath)
    own = os.path.dirname(sys.executable or "")  # empty in a Python that is embedded
    folders = path.split(os.pathsep)
    if not own or own in folders:
        return path
    if _is_environment() and not _is_another_active(environ) and not _leads_here(folders):
        return f"{own}{os.pathsep}{path}"
    return f"{path}{os.pathsep}{own}"


def _is_environment() -> bool:
    # https://docs.python.org/3/library/venv.html: in one, `sys.prefix` is not `sys.base_prefix`
    return sys.prefix != sys.base_prefix or os.path.isdir(os.path.join(sys.prefix, "conda-meta"))


def _is_another_active(environ: Mapping[str, str]) -> bool:
    """Whether the caller works in another environment. That shells start in conda's `base` says nothing."""
    active = [environ.get("VIRTUAL_ENV")]
    if environ.get("CONDA_DEFAULT_ENV") != "base":
        active.append(environ.get("CONDA_PREFIX"))
    here = os.path.realpath(sys.prefix)
    return any(prefix and os.path.realpath(prefix) != here for prefix in active)


def _leads_here(folders: list[str]) -> bool:
    """Whether the first ``torchx`` in these folders is a link to that of our environment."""
    for folder in folders:
        found = os.path.join(folder, "torchx")
        if os.access(found, os.X_OK):
            return os.path.realpath(found).startswith(os.path.join(os.path.realpath(sys.prefix), ""))
    return False
