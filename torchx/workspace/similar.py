"""Suggests an existing file for a path that does not exist."""

from __future__ import annotations

import os
from collections.abc import Callable

from torchx.util.strings import nearest

_MAX = 100


def similar_file(name: str, root: str) -> str:
    """Return a file below ``root`` with that name in another folder, or a similar name in the same one, or ""."""
    folder, base = os.path.split(name)
    folders = [folder, *(os.path.join(folder, child) for child in _listed(root, folder, os.path.isdir)), ""]
    folders += _listed(root, "", os.path.isdir)
    for other in dict.fromkeys(folders):
        if os.path.isfile(os.path.join(root, other, base)):
            return os.path.join(other, base)
    scripts = [n for n in _listed(root, folder, os.path.isfile) if n.endswith((".py", ".sh"))]
    alike = nearest(base, scripts, cutoff=0.8)
    return os.path.join(folder, alike) if alike else ""


def _listed(root: str, folder: str, kind: Callable[[str], bool]) -> list[str]:
    place = os.path.join(root, folder)
    try:
        names = sorted(os.listdir(place))[:_MAX]
    except OSError:
        return []
    return [name for name in names if not name.startswith(".") and kind(os.path.join(place, name))]
