"""Lookup of programs on ``PATH``, and the command that starts a program of torchx."""

from __future__ import annotations

import os
import sys

import torchx


def find_program(name: str, path: str, cwd: str) -> str | None:
    """Return the absolute path of a program in ``path`` (a ``PATH``), or None; relative paths are below ``cwd``.

    >>> find_program("sh", "/nowhere:/bin", "/")
    '/bin/sh'
    """
    if os.sep in name:
        candidates = [os.path.join(cwd, name)]
    else:
        candidates = [os.path.join(cwd, folder, name) for folder in path.split(os.pathsep)]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return os.path.abspath(candidate)
    return None


def own_program(module: str, *args: str) -> list[str]:
    """Return the command that runs ``main`` of a module of this torchx in a new Python.

    ``python -m`` would first import from the current directory: a ``json.py`` of the user, or somebody's ``torchx``.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(torchx.__file__)))
    # This torchx, even if another is installed; but no other package beside it may precede the standard library.
    find = f"sys.path[:] = [{root!r}, *filter(None, sys.path)]; import torchx; sys.path.append(sys.path.pop(0))"
    return [sys.executable, "-c", f"import sys; {find}; from {module} import main; main()", *args]
