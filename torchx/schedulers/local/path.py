"""The ``PATH`` of local jobs: the caller's, and the Python environment of torchx itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def program_path(environ: Mapping[str, str]) -> str:
    """``PATH`` for local jobs: the caller's, plus the folder of the Python that runs torchx.

    The folder is appended, so that its ``torchrun`` is found if torchx was called by its path. It is prepended if it is
    a virtual (or conda) environment and no environment is active: ``/venv/bin/torchx run utils.python`` then uses the
    Python next to it, as ``/venv/bin/torchrun`` would. It is not prepended if ``PATH`` leads to this torchx (``pipx``,
    a shared installation), which must not override the user's Python.
    """
    path = environ.get("PATH", os.defpath)
    own = os.path.dirname(sys.executable or "")  # empty in an embedded Python
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
    """Whether another environment is active. conda's `base` does not count, since shells start in it."""
    active = [environ.get("VIRTUAL_ENV")]
    if environ.get("CONDA_DEFAULT_ENV") != "base":
        active.append(environ.get("CONDA_PREFIX"))
    here = os.path.realpath(sys.prefix)
    return any(prefix and os.path.realpath(prefix) != here for prefix in active)


def _leads_here(folders: list[str]) -> bool:
    """Whether the first ``torchx`` in these folders is a link into our environment."""
    for folder in folders:
        found = os.path.join(folder, "torchx")
        if os.access(found, os.X_OK):
            return os.path.realpath(found).startswith(os.path.join(os.path.realpath(sys.prefix), ""))
    return False
