"""Layout beyond plain Markdown, from the comments that the tests of the pages also read."""

from __future__ import annotations

import re

_PAIR = re.compile(r"^<!-- side by side -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^<!-- file: (?P<name>.+?) -->\n```(?P<language>\w+)$", re.MULTILINE)


def arrange(app, page, source) -> None:
    """Shows pairs as columns if the page is wide enough; the content of a file has its name as a heading."""
    text = _PAIR.sub(r"::::{container} side-by-side\n\1\n::::", source[0])
    source[0] = _FILE.sub(r"```{code-block} \g<language>\n:caption: \g<name>\n", text)


def setup(app):
    app.connect("source-read", arrange)
    return {"parallel_read_safe": True}
