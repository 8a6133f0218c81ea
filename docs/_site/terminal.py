"""Runs a command on a pseudo-terminal, and lays out its output as lines."""

from __future__ import annotations

import codecs
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from fcntl import ioctl

COLUMNS, ROWS = 100, 40
_PIECE = re.compile(
    r"\x1b\[(?P<arguments>[0-9;?]*)(?P<verb>[A-Za-z])|(?P<control>[\r\n\t\b])|(?P<text>[^\x00-\x1f]+)|.", re.DOTALL
)


class Screen:
    """The lines of a terminal without scrolling, with colours, carriage returns and erased lines.

    >>> screen = Screen()
    >>> screen.feed("one\\r\\n\\x1b[31m 10 %\\r\\x1b[Ktwo\\x1b[0m")
    >>> screen.texts()
    ['one', 'two']
    >>> screen.lines[1][0]
    ('t', '31')
    """

    def __init__(self, columns: int = COLUMNS) -> None:
        self.columns = columns
        self.lines: list[list[tuple[str, str]]] = [[]]
        self.row = self.column = 0
        self.style = ""

    def texts(self) -> list[str]:
        return ["".join(char for char, _ in line).rstrip() for line in self.lines]

    def feed(self, written: str) -> None:
        for piece in _PIECE.finditer(written):
            if piece["text"]:
                for char in piece["text"]:
                    self._put(char)
            elif piece["control"]:
                self._control(piece["control"])
            elif piece["verb"]:
                self._escape(piece["arguments"], piece["verb"])

    def _put(self, char: str) -> None:
        if self.column == self.columns:
            self._down()
            self.column = 0
        line = self.lines[self.row]
        line += [(" ", "")] * (self.column + 1 - len(line))
        line[self.column] = (char, self.style)
        self.column += 1

    def _control(self, char: str) -> None:
        if char == "\n":
            self._down()
        elif char == "\r":
            self.column = 0
        elif char == "\t":
            self.column = min(self.columns - 1, (self.column // 8 + 1) * 8)
        else:
            self.column = max(0, self.column - 1)

    def _escape(self, arguments: str, verb: str) -> None:
        if verb == "m":
            codes = [code for code in arguments.split(";") if code]
            self.style = "" if codes in ([], ["0"]) else ";".join(codes)
        elif verb == "K":
            del self.lines[self.row][self.column if arguments in ("", "0") else 0 :]
        elif verb == "A":
            self.row = max(0, self.row - int(arguments or 1))

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])


def chunks(
    command: str, *, env: Mapping[str, str], cwd: str = ".", columns: int = COLUMNS
) -> Iterator[tuple[float, str]]:
    """Yields the terminal output of a shell command, with the seconds since its start; the last one is empty."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    began = time.monotonic()
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    program = subprocess.Popen(
        ["bash", "-c", command], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=env, start_new_session=True
    )
    os.close(theirs)
    try:
        while True:
            try:
                written = os.read(ours, 65536)
            except OSError:  # EIO: nobody has the other end open any more
                break
            if not written:
                break
            yield time.monotonic() - began, decode(written)
    finally:
        os.close(ours)  # whoever still writes there is hung up on
        program.wait()
    yield time.monotonic() - began, ""
