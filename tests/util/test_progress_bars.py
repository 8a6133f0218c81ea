"""Progress bars in logs: redrawn on a terminal; in a pipe or file only their last state."""

from __future__ import annotations

import io
from typing import Any

import pytest

from torchx.supervisor.lines import Part
from torchx.util.log_streams import JsonFormat, LineFormat, Sink

A, B = LineFormat("a/0 "), LineFormat("b/0 ")


class Terminal(io.StringIO):
    """A fake terminal."""

    def isatty(self) -> bool:
        return True


def shown(*blocks: tuple[Any, bytes], file: io.StringIO | None = None, raw: bool = False) -> str:
    """Return the output for these blocks."""
    file = file or io.StringIO()
    sink = Sink(file, raw=raw)
    for show, data in blocks:
        sink.block(show, data)
    sink.finish()
    return file.getvalue()


def on_screen(text: str) -> list[str]:
    """Emulate the used escape sequences of a wide terminal, and return its lines."""
    lines, row, column = [""], 0, 0
    text = text.replace("\x1b[?7l", "").replace("\x1b[?7h", "")
    while text:
        if text.startswith("\x1b[K"):
            lines[row], text = lines[row][:column], text[3:]
        elif text[0] == "\n":
            row, column, text = row + 1, 0, text[1:]
            lines.append("")
        elif text[0] == "\r":
            column, text = 0, text[1:]
        else:
            lines[row] = lines[row][:column] + text[0] + lines[row][column + 1 :]
            column, text = column + 1, text[1:]
    return [line for line in lines if line]


BARS = {
    "tqdm": (b"\r 0%\r50%\r100%\n", "a/0 100%\n"),
    "returns at the end": (b" 0%\r50%\r100%\r\n", "a/0 100%\n"),
    "between lines": (b"go\n\r 0%\r100%\nend\n", "a/0 go\na/0 100%\na/0 end\n"),
    "overwritten by a line": (b"\r10%\rloss 1\n", "a/0 loss 1\n"),
    "without an end": (b"\r10%\r20%", "a/0 20%\n"),
    "dos": (b"x\r\ny\r\r\n", "a/0 x\na/0 y\n"),
}


@pytest.mark.parametrize(("data", "text"), BARS.values(), ids=BARS)
def test_in_a_pipe_the_last_state_is_a_line(data: bytes, text: str) -> None:
    """Only the last of many states is written; on a terminal, too, for lines that have ended."""
    assert shown((A, data)) == text
    assert on_screen(shown((A, data), file=Terminal())) == text.splitlines()


def test_a_state_that_comes_in_pieces_waits_in_a_pipe() -> None:
    """A state is held back until it is known to be the last; a bar without end is written at the end."""
    assert shown((A, Part(b"\r1%\r2")), (A, Part(b"%\r3%")), (B, b"x\n"), (A, b"\n")) == "b/0 x\na/0 3%\n"
    assert shown((A, Part(b"\r1%\r2")), (A, Part(b"%"))) == "a/0 2%\n"
    assert shown((A, Part(b"\r1%")), (A, b"\rdone\nnext\n")) == "a/0 done\na/0 next\n"


def test_bytes_stay_where_they_are_wanted() -> None:
    """Without a prefix, with `--raw`, and in JSON, nothing is omitted."""
    data = b"\r 0%\r100%\n"
    assert shown((LineFormat(""), data)) == data.decode()
    assert shown((A, data), raw=True) == "a/0 \ra/0  0%\ra/0 100%\n"
    assert r"\r 0%\r100%" in shown((JsonFormat("a", 0), data))


def test_an_open_bar_is_drawn_over_itself() -> None:
    """On a terminal, a bar uses one row, shorter states erase longer ones, and long ones do not wrap."""
    pieces = [(A, Part(b"\r10% very long")), (A, Part(b"\r20%")), (A, Part(b" eta 3 s"))]
    text = shown(*pieces, (A, b"\nend\n"), file=Terminal())
    assert on_screen(text) == ["a/0 20% eta 3 s", "a/0 end"]
    assert text.count("\n") == 2
    before_end = text[: text.rindex("\x1b[?7h")]
    assert before_end.count("\x1b[?7l") == before_end.count("\x1b[?7h") + 1 == 3, "each open state within one row"


def test_a_line_takes_the_place_of_an_open_bar() -> None:
    """A line of another replica does not overwrite the bar."""
    bar = (A, Part(b"\r10% very long"))
    assert on_screen(shown(bar, (A, b"\rloss 1\n"), (A, Part(b"\r20%")), file=Terminal())) == ["a/0 loss 1", "a/0 20%"]
    assert on_screen(shown(bar, (B, b"x\n"), (A, b"\r20%\n"), file=Terminal())) == [
        "a/0 10% very long",
        "b/0 x",
        "a/0 20%",
    ]


def test_what_steers_a_terminal_stays_out_of_bars() -> None:
    """Colours are kept."""
    text = shown((A, Part(b"\r\x1b[31m1\x1b[0m\x1b]52;c;eA==\x07\x1b[2J")), file=Terminal())
    assert "\x1b[31m1\x1b[0m" in text
    assert "\x1b]52" not in text
    assert "\x1b[2J" not in text
