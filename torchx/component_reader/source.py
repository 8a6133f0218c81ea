"""Imports component files of users, each under a unique module name."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

PATHS = "__torchx_paths__"
"""Global variable of a component module: the directories that its imports need."""

_loaded: dict[str, tuple[tuple[int, int], ModuleType]] = {}


def load_file(path: str) -> ModuleType:
    """Import a component file, or raise its own exception (see :func:`blame`); cached until the file changes.

    During the import, its directory (the parent of its top-level package, if it is in one) is first on ``sys.path`` and
    the current directory last, so that the file can import its siblings.
    """
    absolute = os.path.realpath(os.path.expanduser(path))
    stat = os.stat(absolute)
    version = (stat.st_mtime_ns, stat.st_size)
    known = _loaded.get(absolute)
    if known is not None and known[0] == version:
        return known[1]
    with open(absolute, "rb") as f:
        source = f.read()
    code = compile(source, absolute, "exec", dont_inherit=True)
    root, package = _package_of(absolute)
    name = f"torchx_component_file_{len(_loaded)}_{os.path.splitext(os.path.basename(absolute))[0]}"
    module = ModuleType(name)
    module.__file__ = absolute
    module.__package__ = package
    setattr(module, PATHS, (root, os.getcwd()))
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        with importable(module):
            exec(code, module.__dict__)  # noqa: S102  # importing the user's file is the point
    except BaseException:
        sys.modules.pop(name, None)
        raise
    _loaded[absolute] = (version, module)
    return module


@contextlib.contextmanager
def importable(owner: Any) -> Iterator[None]:
    """Add the directories of a component file, or of a function in it, to ``sys.path`` temporarily."""
    scope = getattr(owner, "__globals__", None) or getattr(owner, "__dict__", {})
    added = [p for p in scope.get(PATHS, ()) if p not in sys.path]
    sys.path[:0] = added[:1]
    sys.path.extend(added[1:])
    try:
        yield
    finally:
        for path in added:
            with contextlib.suppress(ValueError):  # the component has removed it
                sys.path.remove(path)


def blame(error: BaseException, file: str = "") -> str:
    """Describe an error in one line, with file and line.

    The location is the innermost frame in ``file`` if the traceback contains one, otherwise the innermost frame; for a
    syntax error, the location of the error.

    >>> try:
    ...     1 / 0
    ... except ZeroDivisionError as e:
    ...     blame(e).partition(" at ")[0]
    'ZeroDivisionError: division by zero'
    """
    lines = (str(error.msg) if isinstance(error, SyntaxError) else str(error)).strip().splitlines()
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{what} at {error.filename}:{error.lineno}"
    innermost = inside = ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        innermost = f"{name}:{trace.tb_lineno}"
        if file and os.path.realpath(name) == os.path.realpath(file):
            inside = innermost
        trace = trace.tb_next
    return f"{what} at {inside or innermost}"


def _package_of(path: str) -> tuple[str, str]:
    """Return the directory to import from, and the dotted package of the file (empty if it is in none)."""
    directory = os.path.dirname(path)
    names: list[str] = []
    while os.path.isfile(os.path.join(directory, "__init__.py")):
        directory, name = os.path.split(directory)
        names.insert(0, name)
    return directory, ".".join(names)
