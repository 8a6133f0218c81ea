"""Resolves references by name to documented objects, under any of their names; a missing object is a warning."""

from __future__ import annotations

import builtins
import functools
import importlib
import sys

from sphinx.addnodes import pending_xref
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

FOREIGN = ("torch", "kubernetes", "docker", "boto3", "mlflow", "fsspec", "omegaconf", "pytest", "torchserve")
"""Libraries whose names are not checked if the library is not installed."""


class Annotated:
    """An attribute that exists only as an annotation of a class."""

    def __init__(self, owner: type, name: str) -> None:
        self.key = (owner, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Annotated) and self.key == other.key

    __hash__ = None


@functools.cache
def lookup(dotted: str) -> object:
    """Returns the object of that name, or None."""
    parts = dotted.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:i]))
        except (ImportError, ValueError):
            continue
        for part in parts[i:]:
            found = _member(found, part)
            if found is None:
                break
        if found is not None:
            return found
    return None


def _member(owner: object, name: str) -> object:
    found = getattr(owner, name, None)
    if found is None:
        for cls in getattr(owner, "__mro__", ()):
            if name in vars(cls).get("__annotations__", {}):
                return Annotated(cls, name)
    return found


class ResolveNames(SphinxPostTransform):
    """Runs before Sphinx's own resolver, which would take a builtin for a method of the same name."""

    default_priority = 5

    def run(self) -> None:
        objects = self.env.get_domain("py").objects
        by_last: dict[str, list[str]] = {}
        for name in objects:
            by_last.setdefault(_last(name), []).append(name)
        for node in list(self.document.findall(pending_xref)):
            if node.get("refdomain") == "py":
                found = self._resolved(node, objects, by_last)
                if found is not None:
                    node.replace_self(found)

    def _resolved(self, node, objects, by_last):
        """Links a documented object under any name; an existing one without a page stays plain; None is a warning."""
        text = node[0].deepcopy()
        target = node["reftarget"].lstrip(".")
        if node["reftype"] in ("class", "exc") and hasattr(builtins, target):
            return text
        for name in candidates(node, target, by_last.get(_last(target), [])):
            thing = lookup(name)
            if thing is None:
                continue
            documented = [n for n in by_last.get(_last(name), []) if lookup(n) is thing or lookup(n) == thing]
            if not documented:
                return text
            best = name if name in documented else min(documented, key=len)
            entry = objects[best]
            return make_refnode(self.app.builder, self.env.docname, entry.docname, entry.node_id, [text], best)
        return text if target.split(".")[0] in FOREIGN else None


def candidates(node, target: str, documented: list[str]) -> list[str]:
    """Returns the full names that a reference may mean, the nearest first."""
    module, cls = node.get("py:module"), node.get("py:class")
    found = [f"{module}.{cls}.{target}" if module and cls else "", f"{module}.{target}" if module else "", target]
    found += [name for name in documented if name.endswith(f".{target}")]
    # a name without a page, in another module: an exception, mostly
    found += [f"{m}.{target}" for m in sorted(sys.modules) if m.startswith("torchx.")]
    return list(filter(None, found))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def setup(app):
    app.add_post_transform(ResolveNames)
    return {"parallel_read_safe": True}
