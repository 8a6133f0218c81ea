"""The fuzzers' targets, with the inputs that they begin with, and with those that once broke a promise."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, seeds

SEEDS = [(name, i, seed) for name, inputs in seeds().items() for i, seed in enumerate(inputs)]
DEEP, DEEP_TABLE = b"[" * 1000 + b"]" * 1000, b'{"a":' * 1000 + b"1" + b"}" * 1000
FOUND: dict[str, tuple[str, bytes]] = {
    "deep options": ("cfg", b'{"number": ' + DEEP + b"}"),
    "deep resource": ("resource", b'{"cpu": 1, "memMB": 1, "capabilities": ' + DEEP_TABLE + b"}"),
    "deep value": ("value", b"\x04" + DEEP),
    "deep table": ("value", b"\x05" + DEEP_TABLE),
    "deep argument": ("command_line", b"\x00--name\xffx\xff--numbers\xff" + DEEP),
    "deep metadata": ("app", b'{"name": "a", "metadata": {"x": ' + b"[" * 900 + b"]" * 900 + b"}}"),
    "deep annotation": ("component_file", b"def f(a: int" + b"|int" * 2000 + b") -> AppDef: ...\n"),
    "many replicas": ("state_file", b"roles=r:21,s:19555555555555\n"),
    "many replicas, and fewer than none": ("state_file", b"roles=r:-19555555555555,s:19555555555555\n"),
    "deep expression": ("component_file", b"x=" + b"-" * 20_000 + b"1\ndef f() -> AppDef: ...\n"),
}
"""What atheris, and people, found, made small."""


def test_each_target_has_seeds() -> None:
    """And there is no other."""
    assert seeds().keys() == TARGETS.keys()


@pytest.mark.parametrize(("name", "data"), [(n, s) for n, _, s in SEEDS], ids=[f"{n}-{i}" for n, i, _ in SEEDS])
def test_seeds(name: str, data: bytes) -> None:
    """What means something keeps the promises; so does each beginning of it."""
    for size in {len(data), len(data) // 2, len(data) - 1, 0}:
        TARGETS[name](data[:size])


@pytest.mark.parametrize(("name", "data"), FOUND.values(), ids=FOUND)
def test_what_was_found_once(name: str, data: bytes) -> None:
    """It does not come back."""
    TARGETS[name](data)


@pytest.mark.parametrize("name", sorted(TARGETS))
@given(data=st.binary(max_size=200) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_anything(name: str, data: bytes) -> None:
    """Any bytes."""
    TARGETS[name](data)
