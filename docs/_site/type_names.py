"""Lets autodoc evaluate annotations whose names are imported under ``TYPE_CHECKING = False`` only."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from types import ModuleType

from docutils import nodes

SKIPPED = ("torchx.supervisor", "torchx.apps", "torchx.examples")


def modules() -> list[ModuleType]:
    """Returns all modules of torchx that can be imported here; some need an optional package."""
    import torchx

    found = []
    for info in pkgutil.walk_packages(torchx.__path__, "torchx."):
        if info.name.startswith(SKIPPED) or info.name.endswith("__main__"):
            continue
        try:
            found.append(importlib.import_module(info.name))
        except ImportError:
            continue
    return found


def guarded(module: ModuleType) -> list[ast.stmt]:
    """Returns the imports, type variables and protocols under ``if TYPE_CHECKING`` at the top of a module."""
    tree = ast.parse(inspect.getsource(module))
    return [
        statement
        for block in tree.body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assign | ast.ClassDef)
    ]


def provide(module: ModuleType) -> None:
    """Defines the names in the module that only a type checker sees; keeps existing ones."""
    for statement in guarded(module):
        if isinstance(statement, ast.ClassDef) and statement.name in vars(module):
            continue
        names: dict[str, object] = {}
        try:
            exec(compile(ast.Module([statement], []), module.__name__, "exec"), dict(vars(module)), names)
        except ImportError:
            continue
        for name, value in names.items():
            vars(module).setdefault(name, value)


def plain_defaults(app, what, name, obj, options, signature, returns):
    """Shows a default factory as `...`: Sphinx would split a signature with `<factory>` at all commas."""
    return (signature or "").replace("<factory>", "...") or signature, returns


_COLON = "\ue000"


def hide_colons(app, what, name, obj, options, lines) -> None:
    """Napoleon takes the text before the first colon of an attribute's description for its type."""
    if what in ("attribute", "data", "property"):
        lines[:] = [line.replace(":", _COLON) for line in lines]


def tidy(app, doctree) -> None:
    """Omits the base class `object`, and replaces double hyphens by dashes: "smart" quotes are off."""
    for paragraph in list(doctree.findall(nodes.paragraph)):
        if paragraph.astext() == "Bases: object":
            paragraph.parent.remove(paragraph)
    for dash in list(doctree.findall(lambda node: isinstance(node, nodes.Text) and str(node) == " -- ")):
        dash.parent.replace(dash, nodes.Text(" – "))


def show_colons(app, what, name, obj, options, lines) -> None:
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    app.connect("autodoc-process-signature", plain_defaults)
    app.connect("doctree-read", tidy)
    for module in modules():
        provide(module)
    return {"parallel_read_safe": True}
