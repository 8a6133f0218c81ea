"""What a command writes, as a cell shows it; and the handle of a job on its last line, which a cell returns."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

_HANDLE = re.compile(r"[a-z]\w*://[^\s/]*/\S+")


@contextmanager
def as_a_command_line(words: list[str]) -> Iterator[Output]:
    """While it is entered this process looks like the command: its arguments, its output, its log records."""
    import logging

    root = logging.getLogger()
    handlers, level, argv = list(root.handlers), root.level, sys.argv
    shown = Output(sys.stdout)
    # Messages for people, on the same page and in their order: what stderr gets a notebook shows in red.
    with redirect_stdout(shown), redirect_stderr(Messages(shown)):
        sys.argv = ["torchx", *words]  # what is on record of the run, and which secrets a message must not repeat
        try:
            yield shown
        finally:
            sys.argv = argv
            for handler in [h for h in root.handlers if h not in handlers]:
                root.removeHandler(handler)
            root.setLevel(level)


class Output:
    """Standard output of a command: passed on line by line, but for a handle on the last one, which is held back."""

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
        """Shows what is not the beginning of a handle."""
        if self._held and not _HANDLE.match(self._held):
            self._out.write(self._held)
            self._held = ""
        self._out.flush()

    def isatty(self) -> bool:
        """A notebook is not a terminal."""
        return False

    def finish(self, *, keep_handle: bool) -> str:
        """The handle on the last line, which is shown after all when it is not going to be returned."""
        held, self._held = self._held, ""
        handle = held.strip() if _HANDLE.fullmatch(held.strip()) else ""
        if held and (keep_handle or not handle):
            self._out.write(held)
        self._out.flush()
        return "" if keep_handle else handle


class Messages:
    """Standard error of a command: beside its output, without a part in what its last line is."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, shown: Output) -> None:
        self._shown = shown

    def write(self, text: str) -> int:
        return self._shown._out.write(text) or len(text)

    def flush(self) -> None:
        self._shown._out.flush()

    def isatty(self) -> bool:
        return False
