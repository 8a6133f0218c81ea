"""`torchx top` behind a pseudo-terminal: what it shows, and what a person does there."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pexpect
import pyte

PATIENCE_S = 60.0


_ALTERNATE = 1049


class _Screen(pyte.Screen):  # type: ignore[misc]  # it says nothing of its types
    """A terminal that shows one thing or the other, as real ones do: pyte writes all on the same screen."""

    def set_mode(self, *modes: int, **how: bool) -> None:
        super().set_mode(*modes, **how)
        self._other(modes)

    def reset_mode(self, *modes: int, **how: bool) -> None:
        super().reset_mode(*modes, **how)
        self._other(modes)

    def _other(self, modes: tuple[int, ...]) -> None:
        if _ALTERNATE in modes:
            self.erase_in_display(2)
            self.cursor_position()


class Terminal:
    """`torchx top` in a pseudo-terminal."""

    def __init__(
        self, columns: int = 90, rows: int = 26, *, env: Mapping[str, str] = os.environ, cwd: Path | None = None
    ) -> None:
        self.screen = _Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        argv = ["-m", "torchx", "top"]
        own = {**env, "TERM": "xterm-256color"}
        self.child = pexpect.spawn(
            sys.executable, argv, env=own, cwd=cwd, timeout=PATIENCE_S, dimensions=(rows, columns)
        )

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def until(self, text: str, *, gone: bool = False) -> None:
        """Reads until the screen shows the text, or with ``gone`` no longer shows it."""
        deadline = time.monotonic() + PATIENCE_S
        while bool(re.search(text, self.text, re.MULTILINE)) is gone:
            assert time.monotonic() < deadline, self.text
            try:
                self._stream.feed(self.child.read_nonblocking(1 << 16, timeout=0.2))
            except pexpect.TIMEOUT:
                continue

    def press(self, keys: str) -> None:
        self.child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def end(self) -> int:
        self.child.expect(pexpect.EOF)
        self.child.wait()
        return int(self.child.exitstatus)


def shell_and_back(terminal: Terminal, where: str, is_here: str) -> None:
    """Opens a shell from the page that is shown, interrupts a command there, makes the window smaller, and comes back.

    Args:
        where: a pattern of the page.
        is_here: of shell: true inside of what is to be entered alone.
    """
    columns, rows = terminal.screen.columns, terminal.screen.lines
    terminal.until(where)
    terminal.press("s")
    terminal.until(where, gone=True)
    terminal.press("stty size; " + is_here + " && echo here-$((40 + 2))\r")
    terminal.until(f"^{rows} {columns}")
    terminal.until("^here-42")
    terminal.press("sh -c 'echo up-$((40 + 2)); exec sleep 1000'\r")
    terminal.until("^up-42")
    terminal.press("\x03")
    terminal.press("echo code=$?\r")
    terminal.until("^code=130")
    terminal.resize(columns - 6, rows - 3)
    terminal.press(f"until [ \"$(stty size)\" = '{rows - 3} {columns - 6}' ]; do sleep 0.05; done; exit 7\r")
    terminal.until("ended with exit code 7")
    terminal.press("\r")
    terminal.until(where)
    terminal.until(r"help\b.*\Z")  # the keys are on the last line, of the smaller window
    terminal.resize(columns, rows)
    terminal.until(r"help\b.*\Z")
