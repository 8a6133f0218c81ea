"""The in-memory workspace of ``%%workspacefile``."""

from __future__ import annotations

import os
import posixpath
from contextlib import suppress

from torchx.errors import SpecError
from torchx.workspace.files import open_workspace

WORKSPACE = "memory://torchx-workspace"
"""Address of the workspace, for ``workspace=`` of the Runner; ``%torchx run`` uses it."""


def workspacefile(path: str, content: str, *, append: bool = False) -> int:
    """Write a file of the workspace, as ``%%workspacefile`` does.

    Args:
        path: relative to the root of the workspace.
        content: text, written as UTF-8.
        append: append to the file instead of replacing it.

    Returns:
        the size of the file in bytes.

    Raises:
        SpecError: the path leads out of the workspace, is a folder, or is below a file.

    >>> workspacefile("lib/greet.py", "greeting = 'hello'\\n")
    19
    >>> files()
    {'lib/greet.py': 19}
    >>> clear()
    1
    """
    fs, root = open_workspace(WORKSPACE)
    target = f"{root}/{_checked(path)}"
    data = content.encode()
    if append and fs.isfile(target):
        data = fs.cat_file(target) + data
    if fs.isdir(target):
        raise SpecError(f"`{path}` is a folder of the workspace", hint="give the file another name")
    try:
        fs.makedirs(posixpath.dirname(target), exist_ok=True)
        fs.pipe_file(target, data)
    except (FileExistsError, NotADirectoryError):
        raise SpecError(f"`{path}` is below a file of the workspace", hint="give the file another name") from None
    return len(data)


def files() -> dict[str, int]:
    """Return the files, by path relative to the root, with their sizes in bytes."""
    fs, root = open_workspace(WORKSPACE)
    if not fs.isdir(root):
        return {}
    found = fs.find(root, detail=True)
    return {name.removeprefix(f"{root}/"): int(info["size"]) for name, info in sorted(found.items())}


def clear() -> int:
    fs, root = open_workspace(WORKSPACE)
    count = len(files())
    if fs.isdir(root):
        fs.rm(root, recursive=True)
    return count


def folder() -> str:
    """Write the files to a temporary folder, for schedulers that send no workspace, and return its path.

    The folder is the same for the life of this process, and is not removed, because a job may outlive the notebook.
    Files that jobs write there stay.
    """
    import tempfile

    global _folder
    _folder = _folder or tempfile.mkdtemp(prefix="torchx-notebook-")
    fs, root = open_workspace(WORKSPACE)
    current = files()
    for name in _laid_out - current.keys():
        with suppress(FileNotFoundError):
            os.unlink(f"{_folder}/{name}")
    for name in current:
        os.makedirs(os.path.dirname(f"{_folder}/{name}"), exist_ok=True)
        with open(f"{_folder}/{name}", "wb") as f:
            f.write(fs.cat_file(f"{root}/{name}"))
    _laid_out.clear()
    _laid_out.update(current)
    return _folder


_folder = ""
_laid_out: set[str] = set()


def _checked(path: str) -> str:
    place = posixpath.normpath(path.strip())
    if not path.strip() or place.startswith(("/", "../")) or place in (".", "..") or "\0" in place:
        raise SpecError(f"`{path}` is not a path below the workspace's root", hint="for example `lib/data.py`")
    return place
