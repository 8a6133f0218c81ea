"""Standalone source files of components, for ``torchx builtins --print``."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from torchx.component_reader.signature import unwrap
from torchx.errors import SpecError


def standalone_source(fn: Callable[..., Any]) -> str:
    """Return a file with a function and the imports that it needs; raises SpecError if there is no source.

    Other functions and constants of its module are imported from that module.
    """
    inner = unwrap(fn)
    try:
        source = inspect.getsource(inner)
        module = sys.modules[inner.__module__]
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, KeyError) as e:
        raise SpecError(f"the source of component `{inner.__name__}` is not available: {e}") from e
    used = {node.id for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Name)}
    imports, imported = _imports(tree, used)
    own = sorted(n for n in used - imported if n in vars(module) and n != inner.__name__ and not n.startswith("__"))
    lines = ["from __future__ import annotations", "", *imports]
    if own:
        lines.append(f"from {inner.__module__} import {', '.join(own)}")
    return "\n".join([*lines, "", "", source.rstrip(), ""])


def _imports(tree: ast.Module, used: set[str]) -> tuple[list[str], set[str]]:
    """Return the import statements of a module that bind used names, and these names."""
    lines: list[str] = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        kept = [a for a in node.names if (a.asname or a.name.partition(".")[0]) in used and a.name != "annotations"]
        names |= {a.asname or a.name.partition(".")[0] for a in kept}
        if kept:
            clone = ast.Import(kept) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, kept, node.level)
            lines.append(ast.unparse(clone))
    return lines, names
