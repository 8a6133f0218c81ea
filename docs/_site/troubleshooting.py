"""What torchx says when something fails, and its hint, from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from _site.markdown import definition, text

AREAS = {
    "cli": "Command line",
    "config": "Configuration",
    "specs": "Job descriptions",
    "component_reader": "Components",
    "components": "Components",
    "plugins": "Plugins",
    "workspace": "Code and images",
    "tracker": "Trackers",
    "schedulers/local": "This machine",
    "schedulers/docker": "Docker",
    "schedulers/slurm": "Slurm",
    "schedulers/lsf": "LSF",
    "schedulers/batch": "Slurm, LSF and SSH",
    "schedulers/kubernetes": "Kubernetes",
    "schedulers/aws": "AWS",
    "schedulers": "All schedulers",
    "runner": "Launching and looking after jobs",
    "ui": "torchx ui, torchx top",
    "notebook": "Notebooks",
    "distributed": "Inside a job",
}
"""Package -> heading; the most specific one counts. Others are not shown."""


class Said(NamedTuple):
    area: str
    message: str
    hint: str


def page() -> str:
    """Each message that has a hint, below the part of torchx that says it."""
    import torchx

    found = sorted(set(messages(Path(torchx.__path__[0]))))
    parts = []
    for area in dict.fromkeys(AREAS.values()):
        rows = [definition(text(said.message), "→ " + text(said.hint)) for said in found if said.area == area]
        if rows:
            parts.append("\n".join([f"## {area}\n", *rows]))
    return "\n".join(parts)


def messages(folder: Path) -> Iterator[Said]:
    """Errors that are raised with a hint that is written next to them; ``…`` stands for values."""
    for path in folder.rglob("*.py"):
        inside = path.relative_to(folder).as_posix()
        places = [place for place in AREAS if inside.startswith(f"{place}/") or inside == f"{place}.py"]
        if not places:
            continue
        area = AREAS[max(places, key=len)]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and node.args and _name(node.func).endswith(("Error", "Exception")):
                hint = next((words(k.value) for k in node.keywords if k.arg == "hint"), "")
                message = words(node.args[0])
                if telling(message) and telling(hint):
                    yield Said(area, message, hint)


def telling(said: str) -> bool:
    """Whether words are left without the values.

    >>> telling("no run is called `…`"), telling("…: …")
    (True, False)
    """
    return sum(char.isalpha() for char in said) > 8


def words(node: ast.expr) -> str:
    """The text of an expression.

    >>> words(ast.parse("f'no job `{job}`' + more", mode="eval").body)
    'no job `…`…'
    """
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(words, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return words(node.left) + words(node.right)
    return "…"


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
