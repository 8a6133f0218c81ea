"""Replaces ``<!-- generated: NAME -->`` in pages by text generated from torchx."""

from __future__ import annotations

import re

from _site import commands, components, differences, documents, environment, resources, schedulers, troubleshooting

CONTENT = {
    "commands": commands.page,
    "exit codes": commands.exit_codes,
    "components": components.page,
    "run options": schedulers.run_options,
    "capabilities": schedulers.capabilities,
    "environment": environment.page,
    "resources": resources.page,
    "messages": troubleshooting.page,
    "documents": documents.page,
    "differences": differences.page,
}
_PLACE = re.compile(r"^<!-- generated: ([\w ]+) -->$", re.MULTILINE)


def fill(text: str) -> str:
    return _PLACE.sub(lambda match: CONTENT[match[1]](), text)


def fill_page(app, page, source) -> None:
    source[0] = fill(source[0])


def setup(app):
    app.connect("source-read", fill_page)
    return {"parallel_read_safe": True}
