"""A row of the table of signatures, and the places where its words may stand."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

SYSTEM, EXCEPTION, WITHIN, LINE, LAUNCHER = PLACES = ("system", "exception", "distributed", "line", "launcher")
"""Where the words of a row may stand.

``system``: messages of the scheduler, the kubelet, the engine, the kernel. ``exception``: ``Name: text`` of a Python
exception, from its beginning. ``distributed``: the same, if the innermost frame is in ``torch/distributed/``. ``line``:
a line of a program that ends without an exception. ``launcher``: the report of a program that started others.
"""

compiled = functools.cache(re.compile)


class Row(NamedTuple):
    """A signature.

    Attributes:
        kind: the class; empty for words that only refer to another failure.
        where: one of :data:`PLACES`.
        text: words that are always there, searched first because that is fast.
        pattern: regular expression, if ``text`` alone is not enough. Of a launcher, its groups ``signal`` and ``code``
            tell how the program ended.
        aftermath: whether the cause is another failure, such as that of a peer.
        more: number of lines below that belong to the message.
        of: the program, with the versions that use this wording.
        link: where the wording comes from.
        example: words that match, which the tests use.
        name: of a row of a site or plugin.
    """

    kind: str
    where: str
    text: str
    pattern: str = ""
    aftermath: bool = False
    more: int = 0
    of: str = ""
    link: str = ""
    example: str = ""
    name: str = ""

    def search(self, line: str) -> re.Match[str] | None:
        """Return the match in a line or exception; None if there is none."""
        if self.text not in line:
            return None
        if self.where in (EXCEPTION, WITHIN) and self.pattern:
            return compiled(self.pattern).match(line)
        return compiled(self.pattern or re.escape(self.text)).search(line)
