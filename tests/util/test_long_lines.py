"""Lines in pieces get one prefix, and share no line with other sources."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from torchx.supervisor.lines import Part
from torchx.util.log_streams import JsonFormat, LineFormat, Sink, copy_in_turn, copy_together


class Blocks:
    """A source that can be read at once, and polled."""

    def __init__(self, *blocks: bytes) -> None:
        self._blocks = list(blocks)

    def chunks(self) -> Iterator[bytes]:
        return iter(self._blocks)

    def poll(self) -> bytes | None:
        return self._blocks.pop(0) if self._blocks else None


def _shown(copy, *sources: tuple[LineFormat, Blocks]) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    copy([(show, lambda lines=lines: lines) for show, lines in sources], Sink(file))
    file.seek(0)
    return file.read()


both = pytest.mark.parametrize("copy", [copy_in_turn, copy_together], ids=["in turn", "together"])


@both
@pytest.mark.parametrize("prefix", ["", "r/0 "])
def test_pieces_make_up_one_line(copy, prefix: str) -> None:
    """A long line of a single source is written unchanged, with one prefix."""
    lines = Blocks(b"a\n", Part(b"lo"), Part(b"n"), b"g\nb\n", Part(b"x"), b"y")
    text = _shown(copy, (LineFormat(prefix), lines))
    assert text == f"{prefix}a\n{prefix}long\n{prefix}b\n{prefix}xy" + ("\n" if prefix else "")


@both
@pytest.mark.parametrize("prefix", [True, False])
def test_a_long_line_without_an_end(copy, prefix: bool) -> None:
    """A line is not shared with other sources; an open line with a prefix is ended at the end."""
    one, two = (LineFormat("r/0 "), LineFormat("r/1 ")) if prefix else (LineFormat(""), LineFormat(""))
    text = _shown(copy, (one, Blocks(Part(b"open"))), (two, Blocks(b"other\n", Part(b"end"))))
    assert text == ("r/0 open\nr/1 other\nr/1 end\n" if prefix else "open\nother\nend")


def test_another_source_comes_in_between() -> None:
    """Both lines are complete with their prefixes; the long one is in two pieces."""
    zero, one = Blocks(Part(b"lo"), b"ng\n"), Blocks(b"short\n", b"")
    assert _shown(copy_together, (LineFormat("r/0 "), zero), (LineFormat("r/1 "), one)) == (
        "r/0 lo\nr/1 short\nr/0 ng\n"
    )


@both
def test_pieces_as_objects(copy) -> None:
    """Each piece is a JSON object, marked as partial unless it is the last one."""
    text = _shown(copy, (JsonFormat("r", 0), Blocks(Part(b"lo"), Part(b"n"), b"g\nb\n")))
    objects = [json.loads(line) for line in text.splitlines()]
    assert [(o["line"], o.get("partial", False)) for o in objects] == [
        ("lo", True),
        ("n", True),
        ("g", False),
        ("b", False),
    ]
    assert all((o["role"], o["replica"]) == ("r", 0) for o in objects)


def test_a_progress_bar_in_pieces() -> None:
    """The prefix is repeated when the bar returns to the start of its line."""
    show = LineFormat("t/0 ")
    assert show.chunk(Part(b"1%\r2%")) == b"t/0 1%\rt/0 2%"
    assert show.chunk(Part(b"\r3%"), begun=True) == b"\rt/0 3%"
    assert show.chunk(b"\r\nnext\n", begun=True) == b"\nt/0 next\n"


@pytest.mark.parametrize("prefix", ["", "r/1 "])
def test_lines_after_an_open_one(prefix: str) -> None:
    """A source of plain lines begins a new line too."""
    file = io.StringIO()
    sources: list[Any] = [(LineFormat(""), lambda: Blocks(b"open")), (LineFormat(prefix), lambda: ["a\n", "b"])]
    copy_in_turn(sources, Sink(file))
    assert file.getvalue() == f"open\n{prefix}a\n{prefix}b" + ("\n" if prefix else "")
