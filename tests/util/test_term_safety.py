"""Text of jobs cannot control the terminal."""

from __future__ import annotations

import io

import pytest

from torchx.specs import AppState, AppStatus, ReplicaStatus, RoleStatus
from torchx.specs.failures import Failure
from torchx.util.log_streams import LineFormat, Sink, copy_in_turn
from torchx.util.term import only_colors, printable

CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"
TITLE = "\x1b]0;gotcha\x1b\\"


def written(file: io.TextIOWrapper) -> bytes:
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue()


class Screen(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "sequence",
    [
        CLIPBOARD,
        TITLE,
        "\x1b[2J",
        "\x1b[10;10H",
        "\x1b[?1049h",
        "\x1bc",
        "\x1bP+q\x1b\\",
        "\x07",
        "\x1b(0",
        "\x1b",
        "\x9b2J",
    ],
    ids=ascii,
)
def test_only_colours_reach_a_terminal(sequence: str) -> None:
    """All escape sequences except colours are removed, also incomplete ones; text is kept."""
    text = f"a{sequence}b \x1b[1;31mred\x1b[0m"
    left = only_colors(text.encode())
    assert left.endswith(b" \x1b[1;31mred\x1b[0m")
    assert left.startswith(b"a")
    assert not set(left.replace(b"\x1b[1;31m", b"").replace(b"\x1b[0m", b"")) & {*range(32), 127, 0x9B}
    for cut in range(len(text)):
        assert b"\x1b]" not in only_colors(text[:cut].encode())


def test_progress_bars_and_text_of_the_world_stay() -> None:
    """Carriage returns, tabs and letters of any script are kept."""
    text = "10%\r20%\t\u65e5\u672c \u00e9\u26c4\n".encode()
    assert only_colors(text) == text
    assert only_colors(b"\x1b[32mok\x1b[0m " + text) == b"\x1b[32mok\x1b[0m " + text


@pytest.mark.parametrize("raw", [False, True])
def test_logs_on_a_terminal(raw: bool) -> None:
    """`torchx log` removes them, except with `--raw`."""
    screen = Screen(io.BytesIO(), encoding="utf-8", write_through=True)
    lines = [f"a{CLIPBOARD}b\n"]
    copy_in_turn([(LineFormat(""), lambda: lines)], Sink(screen, raw=raw))
    assert written(screen) == (lines[0] if raw else "ab\n").encode()


def test_logs_in_a_pipe_are_what_was_written() -> None:
    """Programs get the bytes unchanged."""
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    lines = [f"a{CLIPBOARD}b\n"]
    copy_in_turn([(LineFormat(""), lambda: lines)], Sink(pipe))
    assert written(pipe) == lines[0].encode()


def test_the_page_of_a_status() -> None:
    """Names, hosts, messages and log lines are shown as plain text."""
    evil = f"x{CLIPBOARD}{TITLE}y"
    error = Failure(evil, 1, traceback=f"{evil}\n{evil}", role=evil, replica=0, kind="error").to_structured_msg()
    replicas = [
        ReplicaStatus(0, AppState.FAILED, evil, evil, error),
        ReplicaStatus(1, AppState.FAILED, evil, "", error),
    ]
    status = AppStatus(
        AppState.FAILED, msg=evil, structured_error_msg=error, ui_url=evil, roles=[RoleStatus(evil, replicas)]
    )
    page = status.format()
    assert "\x1b" not in page
    assert "\x07" not in page
    assert page.count("?]52;c;") >= 5


def test_line_feeds_stay_where_there_may_be_several_lines() -> None:
    """A single-line text stays one line, and a page keeps its lines."""
    assert printable("a\nb\tc\x00") == "a b c?"
    assert printable("a\nb\tc\x00\u202e", lines=True) == "a\nb\tc??"
