"""Runs verbs in one process that has no package but those that torchx itself requires. Prints code and stderr of each.

As a program: ``python without_extras.py < JSON``, where the input is a list of command lines.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import io
import json
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn


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


class Absent(importlib.abc.MetaPathFinder):
    """Hides the modules of all other distributions."""

    def __init__(self) -> None:
        base = base_packages()
        self.modules = {
            module
            for module, names in metadata.packages_distributions().items()
            if not base & {re.sub(r"[-_.]+", "-", name).lower() for name in names}
        }

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Raise the error of a package that is not there."""
        del path, target
        if name.partition(".")[0] in self.modules:
            self._refuse(name)

    @staticmethod
    def _refuse(name: str) -> NoReturn:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


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
    sys.meta_path.insert(0, Absent())
    print(json.dumps([run(argv) for argv in json.load(sys.stdin)]))
