"""Lookup of programs on ``PATH``."""

from __future__ import annotations

import os


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
