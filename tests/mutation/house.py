"""Where things are: the files of a room, the tests that may notice a change in it, and a copy in which to make it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from functools import cache

from tests.trees import walk

_NOT_FOR_THIS = (
    "backends",
    "mutation",
    "fuzz",
    "cost",
    "startup",
    "layering",
    "docs",
    "compat",
    "notebook",
    "examples",
)


def room_folder(top: str, room: str) -> str:
    """``torchx/schedulers/kit`` for ``kit``; a path below ``torchx`` is taken as it is, and may be a file.

    Raises:
        LookupError: there is no such room.
    """
    for candidate in (f"torchx/{room}", f"torchx/schedulers/{room}", f"torchx/schedulers/kit/{room}", room):
        if os.path.exists(os.path.join(top, candidate)):
            return candidate.rstrip("/")
    raise LookupError(f"there is no room `{room}` in torchx/ or torchx/schedulers/")


def sources(top: str, folder: str, ends: str | tuple[str, ...] = ".py") -> list[str]:
    """The Python files at or below a folder, or those with another ending, as paths from ``top``."""
    if os.path.isfile(os.path.join(top, folder)):
        return [folder] if folder.endswith(ends) else []
    found = []
    for parent, _, names in os.walk(os.path.join(top, folder)):
        found += [os.path.relpath(os.path.join(parent, name), top) for name in names if name.endswith(ends)]
    return sorted(found)


def candidates(top: str, folder: str) -> list[str]:
    """What may notice a change: the mirror of the folder, test files that import the room or a user of it, and the examples
    in its docstrings.
    """
    if folder.endswith(".sh"):  # whoever may run a script has to do with a module beside it
        folder = os.path.dirname(folder)
    room = set(sources(top, folder))
    users = {path for path in sources(top, "torchx") if room & set(imported(top, path))}
    mirror = folder.replace("torchx", "tests", 1).removesuffix(".py") + "/"
    found = []
    for path in sources(top, "tests"):
        parts = path.split("/")
        if not parts[-1].startswith("test_") or parts[1] in _NOT_FOR_THIS:
            continue
        if path.startswith(mirror) or (room | users) & _with_helpers(top, path):
            found.append(path)
    return found + [path for path in sorted(room) if _has_examples(top, path)]


def is_mirror(test: str, source: str) -> bool:
    """Whether a test file lies where the tests of a source lie, or is the source, with its examples.

    >>> is_mirror("tests/runs/test_store.py", "torchx/runs/store.py")
    True
    """
    return test == source or os.path.dirname(test) == os.path.dirname(source).replace("torchx", "tests", 1)


@cache
def imported(top: str, path: str) -> tuple[str, ...]:
    """The files of torchx and of its tests that a file imports, in functions too."""
    with open(os.path.join(top, path), encoding="utf-8") as f:
        tree = ast.parse(f.read())
    names: set[str] = set()
    for node in walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("torchx."):
            names.add(node.value.partition(":")[0])  # rows of a table, and what a test patches
    found = {_file(top, name) or _file(top, name.rpartition(".")[0]) for name in names}
    return tuple(sorted(f for f in found if f and f != path))


def mentions(top: str, names: tuple[str, ...]) -> dict[str, set[int]]:
    """Where in torchx one of the names is used: lines by file."""
    wanted, found = set(names), {}
    for path in sources(top, "torchx"):
        with open(os.path.join(top, path), encoding="utf-8") as f:
            text = f.read()
        if not any(name in text for name in wanted):
            continue
        lines = set()
        for node in walk(ast.parse(text)):
            if getattr(node, "id", None) in wanted or getattr(node, "attr", None) in wanted:
                lines.add(node.lineno)  # type: ignore[attr-defined]  # a name or an attribute
        if lines:
            found[path] = lines
    return found


@cache
def readers_of(top: str, script: str) -> frozenset[str]:
    """The modules beside a script that name it."""
    folder, name = os.path.split(script)
    found = set()
    for path in sources(top, folder):
        with open(os.path.join(top, path), encoding="utf-8") as f:
            if f'"{name}"' in f.read():
                found.add(path)
    return frozenset(found)


def copy_tree(top: str, target: str) -> None:
    """The tracked files of the checkout, as they are now, and the new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=top, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        path = os.path.join(top, name)
        if name and os.path.isfile(path):
            os.makedirs(os.path.dirname(os.path.join(target, name)), exist_ok=True)
            shutil.copy2(path, os.path.join(target, name), follow_symlinks=False)


def _has_examples(top: str, path: str) -> bool:
    with open(os.path.join(top, path), encoding="utf-8") as f:
        return ">>> " in f.read()


def _with_helpers(top: str, path: str) -> set[str]:
    """What a test imports, and what the helpers that it imports do."""
    found: set[str] = set()
    left = [path, *_conftests(top, path)]
    while left:
        for name in imported(top, left.pop()):
            if name not in found:
                found.add(name)
                if name.startswith("tests/"):
                    left.append(name)
    return found


def _conftests(top: str, path: str) -> list[str]:
    own = os.path.join(os.path.dirname(path), "conftest.py")
    return [own] if os.path.exists(os.path.join(top, own)) else []


def _file(top: str, name: str) -> str:
    path = name.replace(".", "/")
    for candidate in (f"{path}.py", f"{path}/__init__.py"):
        if name and os.path.exists(os.path.join(top, candidate)):
            return candidate
    return ""
