"""Where long lines are cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchx.supervisor.lines import whole_characters


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.integers(0, 30))
@example("\r\x80", 2)  # what follows is not a line end, though it is not known yet what it is
@example("\r\n", 1)
def test_no_character_is_cut(text: str, size: int) -> None:
    """Whatever part of a text has arrived, what is taken of it is text, and all of it but for one character."""
    data = text.encode()[:size]
    taken = whole_characters(data)
    data[:taken].decode()
    assert len(data) - taken <= 3
    assert not (data[:taken].endswith(b"\r") and data[taken : taken + 1] in (b"", b"\n"))


@given(st.binary(min_size=4, max_size=12))
def test_anything_else_is_passed_on(data: bytes) -> None:
    """Four bytes or more are never held back as a whole, whatever they are."""
    assert len(data) - 3 <= whole_characters(data) <= len(data)
    assert whole_characters(data) > 0


@pytest.mark.parametrize(
    ("data", "taken"),
    [
        (b"", 0),
        (b"\r", 0),
        (b"\r\r", 1),
        (b"\r\n", 2),
        (b"a\x7f", 2),
        ("aé".encode(), 3),
        ("a漢".encode()[:3], 1),
        ("a漢".encode(), 4),
        ("a😀".encode()[:4], 1),
        ("a😀".encode(), 5),
        (b"a\x80", 2),
        (b"\x80\x80\x80\x80", 4),
        (b"a\xc0", 1),
        (b"a\xdf\x80", 3),
        (b"a\xe0\x80", 1),
        (b"a\xef\x80\x80", 4),
        (b"a\xf0\x80\x80", 1),
    ],
)
def test_where_it_is_cut(data: bytes, taken: int) -> None:
    """In front of a character that is not all there, and of a carriage return whose line end may follow."""
    assert whole_characters(data) == taken
