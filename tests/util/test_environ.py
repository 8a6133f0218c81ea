"""The quick look-up of a variable says what `os.environ` says, whoever changed it, and however."""

from __future__ import annotations

import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.util.environ import variable

TEXT = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1)


@given(name=TEXT, value=TEXT)
def test_any_variable_that_is_set(name: str, value: str) -> None:
    """Name and value may be any text; when it is gone again, None."""
    with mock.patch.dict(os.environ, {name: value}):
        assert variable(name) == os.environ[name] == value
    assert variable(name) == os.environ.get(name)


@pytest.mark.parametrize(
    "change",
    [
        lambda: os.environ.update(X_SPEED="new"),
        lambda: os.environ.__setitem__("X_SPEED", "new"),
        lambda: os.environ.setdefault("X_SPEED_OTHER", "new"),
        lambda: os.environb.__setitem__(b"X_SPEED", b"\xff\xfe"),
        lambda: os.environ.pop("X_SPEED"),
        os.environ.clear,
        lambda: os.environ.__ior__({"X_SPEED": "new"}),
    ],
)
def test_a_change_is_seen_at_once(change) -> None:
    """Nothing is remembered: each way to change the environment shows in the next look-up."""
    with mock.patch.dict(os.environ, {"X_SPEED": "old"}):
        assert variable("X_SPEED") == "old"
        change()
        for name in ("X_SPEED", "X_SPEED_OTHER", "PATH"):
            assert variable(name) == os.environ.get(name)


def test_another_object_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may put a plain dict where `os.environ` was."""
    monkeypatch.setattr(os, "environ", {"X_SPEED": "from a dict"})
    assert variable("X_SPEED") == "from a dict"
    assert variable("PATH") is None
