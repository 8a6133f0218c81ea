"""Terminals: width and colours."""

from __future__ import annotations

import io

import pytest

from torchx.util import term


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [
        ("echo", 6, "echo  "),
        ("echo", 4, "echo"),
        ("trainer", 5, "trai…"),
        ("日本語", 8, "日本語  "),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日… "),
        ("e\u0301a", 3, "e\u0301a "),
    ],
    ids=["short", "exact", "long", "wide", "wide cut", "wide cut in the middle", "accent"],
)
def test_text_in_a_column(text: str, room: int, shown: str) -> None:
    """A fitted text has exactly the given columns, whatever the width of its characters."""
    assert term.fit(text, room) == shown
    assert term.text_width(shown) == room
    assert term.fit(text, room, pad=False) == shown.rstrip()


class Tty(io.StringIO):
    """A fake terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "env", "color"),
    [
        (Tty(), {"TERM": "xterm"}, True),
        (Tty(), {"TERM": "dumb"}, False),
        (Tty(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Tty(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (io.StringIO(), {"TERM": "xterm"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "0"}, False),
        (Tty(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_color(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, env: dict[str, str], color: bool) -> None:
    """A terminal has colours unless disabled; `NO_COLOR` takes precedence."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert term.has_color(stream) == color


def test_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """`COLUMNS` counts if it is a number; the default is 80."""
    assert term.width(io.StringIO()) == 80
    monkeypatch.setenv("COLUMNS", "123")
    assert term.width(io.StringIO()) == 123
    monkeypatch.setenv("COLUMNS", "wide")
    assert term.width(io.StringIO()) == 80


def test_a_closed_stream_is_no_terminal() -> None:
    """A closed or replaced stream is not a terminal."""
    stream = Tty()
    stream.close()
    assert not term.is_tty(io.StringIO())
    assert not term.has_color(io.StringIO())
