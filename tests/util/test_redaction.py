"""Known values are masked in all output, even if they span blocks of a log."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.supervisor.lines import Part
from torchx.util.log_streams import JsonFormat, LineFormat, Sink, copy_in_turn
from torchx.util.redaction import MASK, Redactor, forget, learn, redact
from torchx.util.term import printable

CANARY = "canary-1f2e'3d"


@pytest.mark.parametrize("border", range(len(CANARY) + 1))
def test_across_a_border(border: int) -> None:
    """A possible start of a value is held back until the next block."""
    learn(CANARY)
    stream = Redactor()
    whole = f"a {CANARY} b".encode()
    at = border + 2
    assert stream.block(whole[:at], more=True) + stream.block(whole[at:], more=False) == f"a {MASK} b".encode()


@given(st.lists(st.text(alphabet="abc\n", max_size=12)), st.text(alphabet="abc", min_size=6, max_size=8))
def test_as_if_there_were_no_borders(blocks: list[str], value: str) -> None:
    """The result does not depend on the blocks, and no byte is lost."""
    learn(value)
    try:
        stream = Redactor()
        shown = b"".join(
            [*(stream.block(block.encode(), more=True) for block in blocks), stream.block(b"", more=False)]
        )
        assert value.encode() not in shown
        assert shown.replace(MASK.encode(), value.encode()) == "".join(blocks).encode()
    finally:
        forget()


def test_the_longer_value_goes_first() -> None:
    """A value that begins with another value is masked completely."""
    learn("secret-one")
    learn("secret-one-and-more")
    assert redact("x secret-one-and-more secret-one y") == f"x {MASK} {MASK} y"


def test_lines_of_a_key_and_its_form_in_json() -> None:
    """Values of several lines are masked line by line, also in their JSON form."""
    learn('-----KEY-----\nMIIabcde\n"q\\uote\u00e9d"\nend\n')
    assert redact("-----KEY-----\n") == f"{MASK}\n"
    assert redact("MIIabcde") == MASK
    assert redact("end") == "end"  # too short to be told from other words
    for ascii_only in (True, False):
        assert json.loads(redact(json.dumps({"a": '"q\\uote\u00e9d"'}, ensure_ascii=ascii_only))) == {"a": MASK}


def test_names_and_messages_for_people() -> None:
    """All output functions mask known values."""
    learn(CANARY)
    assert printable(f"it was {CANARY}!") == f"it was {MASK}!"


@pytest.mark.parametrize(
    "show", [LineFormat("r/0 "), LineFormat(""), JsonFormat("r", 0)], ids=["prefix", "bare", "json"]
)
def test_a_log(show: LineFormat) -> None:
    """Complete lines and pieces are masked, and the rest is written at the end."""
    learn(CANARY)
    file = io.TextIOWrapper(io.BytesIO())

    class Lines:
        def chunks(self):
            yield f"one {CANARY}\n".encode()
            yield Part(f"two {CANARY[:5]}".encode())
            yield Part(f"{CANARY[5:]} three can".encode())

        def __iter__(self):
            raise NotImplementedError

    copy_in_turn([(show, Lines)], Sink(file))
    text = file.buffer.getvalue().decode()
    assert CANARY not in text
    assert text.count(MASK) == 2
    assert "can" in text.rpartition("three")[2] or isinstance(show, JsonFormat)
