"""Colours for notebook cells: Python, in which lines may be magics."""

from __future__ import annotations

from pygments.lexer import bygroups, inherit
from pygments.lexers.python import PythonLexer
from pygments.token import Keyword, Text


class CellLexer(PythonLexer):
    name = "IPython cell"
    aliases = ("ipython",)
    filenames = ()
    mimetypes = ()
    tokens = {"root": [(r"(%%?\w+)(.*\n)", bygroups(Keyword, Text)), inherit]}  # noqa: RUF012  # as Pygments has it


def setup(app):
    app.add_lexer("ipython", CellLexer)
    return {"parallel_read_safe": True}
