"""String literals below the fields of a class, read from its source."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator

from torchx.util.records import own_annotations


def field_docs(cls: type, stop: type) -> dict[str, str]:
    """Return the literals by field name, of a class and its bases below ``stop``; unreadable sources are skipped."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, stop) and base is not stop:
            docs.update(_own_docs(base))
    return docs


def _own_docs(cls: type) -> dict[str, str]:
    definition = _find_class(_source_of(cls.__module__), cls)
    if definition is None:
        return {}
    docs = {}
    for node, below in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            docs[node.target.id] = " ".join(below.value.value.split())
    return docs


def _source_of(module_name: str) -> str:
    module = sys.modules.get(module_name)
    path = getattr(module, "__file__", None)
    # linecache also reads sources in zip archives.
    return "".join(linecache.getlines(path, vars(module))) if path else ""


def _find_class(source: str, cls: type) -> ast.ClassDef | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    fields = set(own_annotations(cls))
    found = [node for name, node in _classes(tree) if name == cls.__qualname__]
    # Of several definitions of the same name, the last one with these fields, or else the last one.
    for node in reversed(found):
        annotated = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
        if {target.id for target in annotated if isinstance(target, ast.Name)} == fields:
            return node
    return found[-1] if found else None


def _classes(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes below a node with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # `if`, `try`, `with`, ...
            yield from _classes(child, prefix)
