"""Runs verbs in one process that has no package but those that torchx itself requires. Prints code and stderr of each.

As a program: ``python without_extras.py < JSON``, where the input is a list of command lines.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any


def base_packages() -> set[str]:
    """Return the names of the distributions that ``pip install torchx`` installs."""
    found: set[str] = set()
    left = ["torchx"]
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        found.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):
            needs = metadata.requires(name) or ()
            left += [re.split(r"[^\w.-]", need)[0] for need in needs if "extra ==" not in need]
    return found


class Hiding:
    """A finder of modules that does not find those of all other distributions."""

    def __init__(self, finder: Any, hidden: set[str]) -> None:
        self._finder = finder
        self._hidden = hidden

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        """Return None for a package that is to be absent."""
        return None if name.partition(".")[0] in self._hidden else self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def other_modules() -> set[str]:
    """Return the modules of all other distributions."""
    base = base_packages()
    return {
        module
        for module, names in metadata.packages_distributions().items()
        if not base & {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    }


def run(argv: Sequence[str]) -> tuple[int, str]:
    """Run one command line. Returns its exit code, and what it wrote to stderr."""
    from torchx.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(list(argv))
        except SystemExit as e:
            return (e.code if isinstance(e.code, int) else 1), said.getvalue()
    return 0, said.getvalue()


if __name__ == "__main__":
    others = other_modules()
    sys.meta_path[:] = [Hiding(finder, others) for finder in sys.meta_path]
    from torchx.cli import cmd_report

    cmd_report._output = lambda words: b""  # the verbs of a report run in other processes, which have all packages
    print(json.dumps([run(argv) for argv in json.load(sys.stdin)]))
