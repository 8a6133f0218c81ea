"""The syntax trees of sources, walked for tests that read all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, and itself, in no order; without contexts (``Load`` and ``Store``). Much quicker than ``ast.walk``."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for value in node.__dict__.values():
            if value.__class__ is list:
                left += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                left.append(value)
