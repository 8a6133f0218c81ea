"""Output of a command in a cell. Holds back the handle on its last line, which the cell returns as a Job."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

_HANDLE = re.compile(r"[a-z]\w*://[^\s/]*/\S+")


@contextmanager
def as_a_command_line(words: list[str]) -> Iterator[Output]:
    """Redirects ``sys.argv``, stdout, stderr and log handlers while a command runs in this process."""
    import logging

    root = logging.getLogger()
    handlers, level, argv = list(root.handlers), root.level, sys.argv
    shown = Output(sys.stdout)
    # Messages go to stdout too, to keep them in order: a notebook shows stderr apart, in red.
    with redirect_stdout(shown), redirect_stderr(Messages(shown._out)):
        sys.argv = ["torchx", *words]  # goes on record, and is searched for secrets that messages must not repeat
        try:
            yield shown
        finally:
            sys.argv = argv
            for handler in [h for h in root.handlers if h not in handlers]:
                root.removeHandler(handler)
            root.setLevel(level)


class Output:
    """Standard output of a command. Passes on lines, and holds back a handle on the last one."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, out: Any) -> None:
        self._out = out
        self._held = ""

    def write(self, text: str) -> int:
        """Passes on whole lines, unless the last is a handle."""
        self._held += text
        if "\n" in self._held:
            *lines, rest = self._held.split("\n")
            last = lines.pop() if not rest and _HANDLE.fullmatch(lines[-1]) else None
            self._out.write("".join(f"{line}\n" for line in lines))
            self._held = f"{last}\n" if last is not None else rest
        return len(text)

    def flush(self) -> None:
        """Passes on the unfinished line, unless it may become a handle."""
        if self._held and not _HANDLE.match(self._held):
            self._out.write(self._held)
            self._held = ""
        self._out.flush()

    def isatty(self) -> bool:
        return False

    def finish(self, *, keep_handle: bool) -> str:
        """Returns the handle on the last line; with ``keep_handle`` prints it instead and returns an empty string."""
        held, self._held = self._held, ""
        handle = held.strip() if _HANDLE.fullmatch(held.strip()) else ""
        if held and (keep_handle or not handle):
            self._out.write(held)
        self._out.flush()
        return "" if keep_handle else handle


class Messages(Output):
    """Standard error of a command: passes on everything at once."""

    def write(self, text: str) -> int:
        return self._out.write(text) or len(text)
