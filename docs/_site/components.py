"""The components that come with torchx, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap

from _site.markdown import definition, fence, sentence


def page() -> str:
    from torchx.component_reader.finder import get_components

    parts = []
    for name, component in get_components().items():
        if component.validation_errors:
            raise ValueError(f"{name}: {component.validation_errors}")
        parts.append(_component(name, component.fn))
    return "\n".join(parts)


def _component(name: str, fn) -> str:
    from torchx.component_reader.help import _metavar, _usage, get_fn_docstring
    from torchx.component_reader.signature import REQUIRED, read

    signature = read(fn, name=name)
    _, helps = get_fn_docstring(fn)
    rows = [
        f"## `{name}`\n",
        fence("{eval-rst}", _description(fn)),
        fence("text", _wrapped(_usage(signature).replace("%%", "%"))),
    ]
    for p in sorted(signature.options, key=lambda p: not p.required):
        flags = ", ".join(f"`{flag} {_metavar(p)}`" for flag in sorted(p.flags, key=len))
        note = "required" if p.required else "" if p.default in (None, REQUIRED, "") else f"default `{p.default}`"
        kind = ", ".join(filter(None, (f"`{p.shape.required()}`", note)))
        rows.append(definition(flags, f"{sentence(helps.get(p.name, ''))} ({kind})"))
    if signature.var is not None:
        rows.append(definition(f"`-- {signature.var.name} ...`", sentence(helps.get(signature.var.name, ""))))
    return "\n".join(rows)


def _description(fn) -> str:
    """Returns the docstring up to its sections; indented text in it is an example."""
    doc = inspect.getdoc(fn) or ""
    for section in ("Args:", "Returns:", "Raises:"):
        doc = doc.partition(f"\n{section}\n")[0]
    paragraphs: list[str] = []
    for paragraph in doc.split("\n\n"):
        is_example = paragraph.startswith("    ")
        if is_example and not (paragraphs and (paragraphs[-1].endswith("::") or paragraphs[-1].startswith("    "))):
            paragraphs.append("::")
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _wrapped(usage: str) -> str:
    """Wraps a usage line to the width of a page, between options only."""
    words = re.sub(r"\[[^\]]*\]*", lambda match: match[0].replace(" ", "\0"), " ".join(usage.split()))
    lines = textwrap.wrap(words, 76, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")
