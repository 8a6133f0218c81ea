"""Creates trees of files, and reads them back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def make(folder: Path, files: Mapping[str, str]) -> Path:
    """Creates files with their content; ``name/`` is an empty folder, ``-> target`` a link."""
    for name, text in files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)
    return folder


def tree(folder: object) -> dict[str, str]:
    """Reads a tree in the format of :func:`make`."""
    found = {}
    for here, dirs, files in os.walk(str(folder)):
        for name in files + dirs:
            path = os.path.join(here, name)
            key = os.path.relpath(path, str(folder))
            if os.path.islink(path):
                found[key] = f"-> {os.readlink(path)}"
            elif os.path.isfile(path):
                with open(path) as f:
                    found[key] = f.read()
            elif not os.listdir(path):
                found[f"{key}/"] = ""
    return found
