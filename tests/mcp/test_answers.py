"""Answers of tools: bounded, cleaned, and marked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.mcp.answers import answer, clean

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4000),
    lambda inner: st.lists(inner, max_size=80) | st.dictionaries(st.text(max_size=10), inner, max_size=8),
    max_leaves=60,
)


@given(st.dictionaries(st.sampled_from(["state", "lines", "msg", "roles"]), JSON, max_size=4))
def test_an_answer_is_json_without_control_characters(document: dict[str, Any]) -> None:
    found = answer(document, 2000, "ask")
    text = json.dumps(found, ensure_ascii=False)
    assert not [c for c in text if not c.isprintable()]
    assert set(document) <= set(found)


@pytest.mark.parametrize("rows", [10, 1_000, 100_000])
def test_an_answer_is_bounded_and_says_what_is_missing(rows: int) -> None:
    found = answer({"lines": [f"line {k} " + "x" * 40 for k in range(rows)]}, 6_000, "ask for more")
    assert len(json.dumps(found)) < 6_500
    assert ("left_out" in found) is (rows > 100)
    assert found["untrusted"] == ["lines"]


def test_a_long_text_keeps_both_ends() -> None:
    found = answer({"msg": "begin" + "x" * 90_000 + "end"}, 1_000, "ask")
    assert found["msg"].startswith("begin") and found["msg"].endswith("end") and len(found["msg"]) < 1_000


def test_escape_sequences_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchx.util.redaction import learn

    learn("s3cr3t-canary-9")
    assert clean("\x1b]0;x\x07 the key is s3cr3t-canary-9\r\n") == "]0;x the key is ********\n"


def test_what_is_empty_is_not_marked() -> None:
    assert "untrusted" not in answer({"msg": None, "lines": [], "state": "RUNNING"}, 2000, "")
