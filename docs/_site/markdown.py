"""Texts of torchx (help lines, docstrings) as Markdown."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"([\\*_\[\]<>|#$])")
_OPTION = re.compile(r"(?<![\w`-])(--\w[\w-]*)")


def text(words: str) -> str:
    """Escapes plain text, in which only backticks are markup.

    >>> text("``a_b`` or c_d*, see --help")
    '`a_b` or c\\\\_d\\\\*, see `--help`'
    """
    words = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(words.split())).replace("``", "`")
    if words.count("`") % 2:  # an odd backtick is none
        return _SPECIAL.sub(r"\\\1", words).replace("`", "\\`")
    parts = "`".join(part if i % 2 else _OPTION.sub(r"`\1`", part) for i, part in enumerate(words.split("`"))).split(
        "`"
    )
    return "`".join(part if i % 2 else _SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))


def definition(term: str, *paragraphs: str) -> str:
    """A row of a definition list.

    >>> print(definition("`-h`", "Help."))
    `-h`
    : Help.
    <BLANKLINE>
    """
    said = [p for p in paragraphs if p] or [" "]
    return f"{term}\n: " + "\n\n  ".join(said) + "\n"


def sentence(words: str) -> str:
    """A help line as a sentence.

    >>> sentence("how often")
    'How often.'
    """
    said = text(words)
    return said[:1].upper() + said[1:] + ("" if said.endswith((".", "!", "?", ":")) or not said else ".")


def wide_table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a table that also uses the margin of the page."""
    return f"```{{table}}\n:class: wide\n\n{table(head, rows)}```\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def fence(language: str, body: str) -> str:
    return f"```{language}\n{body.rstrip()}\n```\n"
