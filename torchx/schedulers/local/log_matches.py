"""Those lines of a replica's log file in which a regular expression is found."""

from __future__ import annotations

import time
from collections import deque
from io import BytesIO, StringIO

from torchx.util.log_streams import Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx.schedulers.local.logs import LogIterator

_PATIENCE_S = 0.2  # spent on lines that do not match before others have their turn


class MatchingLines:
    """The lines of a log that match; they are read in the same ways as those of the log itself.

    In a line of more than 1 MiB each piece is searched by itself, and is a line of its own if it matches.

    Args:
        log: all lines.
        found: returns whether a line, with its line end, matches.
    """

    def __init__(self, log: LogIterator, found: Callable[[str], object]) -> None:
        self._log = log
        self._found = found
        self._lines: Iterator[str] | None = None

    def __iter__(self) -> Iterator[str]:
        if self._lines is None:
            self._lines = self._read_lines()
        return self._lines

    def __next__(self) -> str:
        return next(iter(self))

    def _read_lines(self) -> Iterator[str]:
        for block in self._log.chunks():
            lines = filter(self._found, StringIO(block.decode("utf-8", "replace"), newline="\n"))
            yield from (line + "\n" for line in lines) if isinstance(block, Part) else lines

    def chunks(self) -> Iterator[bytes]:
        """See :meth:`LogIterator.chunks`; no part of a line is among these."""
        return filter(None, map(self._matching, self._log.chunks()))

    def poll(self) -> bytes | None:
        """See :meth:`LogIterator.poll`."""
        most = time.monotonic() + _PATIENCE_S
        while block := self._log.poll():
            block = self._matching(block)
            if block or time.monotonic() > most:
                break
        return block

    def last(self, count: int) -> MatchingLines:
        """See :meth:`LogIterator.last`. What there is now is read through for it."""
        now = self._log.so_far()
        blocks: deque[tuple[int, bool, int]] = deque()  # where, whether in a long line, how many lines of it match
        position, inside, matches = now.position, False, 0
        for block in now.chunks():
            if found := self._matching(block):
                number = found.count(b"\n") + (not found.endswith(b"\n"))
                blocks.append((position, inside, number))
                matches += number
                while blocks and matches - blocks[0][2] >= count:
                    matches -= blocks.popleft()[2]
            position, inside = position + len(block), isinstance(block, Part)
        if blocks:
            self._begin_at_match(*blocks[0][:2], skip=max(0, matches - count))
        else:
            self._log.begin_at(now.position)  # a last line that has no end yet may still match
        return self

    def _begin_at_match(self, position: int, inside: bool, *, skip: int) -> None:
        """Begins at a line that matches; the first ``skip`` of them, counted from an offset, are left out."""
        log = self._log.so_far()
        log.begin_at(position, inside=inside)
        for block in log.chunks():
            for line in BytesIO(block):
                if self._found(line.decode("utf-8", "replace")):
                    if not skip:
                        self._log.begin_at(position, inside=inside)
                        return
                    skip -= 1
                position, inside = position + len(line), isinstance(block, Part)

    def _matching(self, block: bytes) -> bytes:
        found = self._found
        if isinstance(block, Part):
            return block + b"\n" if found(block.decode("utf-8", "replace")) else b""
        try:
            return "".join(filter(found, StringIO(block.decode(), newline="\n"))).encode()
        except UnicodeDecodeError:  # what matches is shown as it is
            return b"".join([line for line in BytesIO(block) if found(line.decode("utf-8", "replace"))])
