"""The state file: written in place, read whole, damage noticed."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.supervisor.statefile import (
    RUNNING,
    JobState,
    StateFileError,
    StateWriter,
    escape,
    parse_state,
    read_bytes,
    read_state,
    unescape,
)


def _job(replicas: int = 3) -> JobState:
    return JobState({"app_id": "a-1", "logs": "/tmp/ä b=c:d", "host": "h"}, [("r 1", replicas), ("other", 1)])


def test_what_is_written_is_read(tmp_path) -> None:
    """Every field comes back as it was written."""
    path = str(tmp_path / "state")
    job = _job()
    writer = StateWriter(path, job)
    job.state, job.restarts, job.first, job.msg = RUNNING, 2, 1, "50% of it: done, really"
    line = job.replicas[1]
    line.state, line.pid, line.ticks, line.exit, line.started = RUNNING, 4711, 99, -9, 1763731200.25
    writer.header_changed()
    writer.replica_changed(1)
    writer.flush()
    writer.close()

    read = read_state(path)
    assert read.facts == job.facts
    assert read.roles == [("r 1", 3), ("other", 1)]
    assert (read.state, read.restarts, read.first, read.msg) == (RUNNING, 2, 1, "50% of it: done, really")
    got = read.replicas[1]
    assert (got.state, got.pid, got.ticks, got.exit, got.started) == (RUNNING, 4711, 99, -9, 1763731200.25)
    assert read.replicas[0].exit is None
    assert [read.position(i) for i in range(4)] == [("r 1", 0), ("r 1", 1), ("r 1", 2), ("other", 0)]


def test_a_transition_changes_no_size_and_is_one_write(tmp_path, monkeypatch) -> None:
    """A transition needs no disk space and one system call, however many replicas there are."""
    path = str(tmp_path / "state")
    job = _job(1000)
    writer = StateWriter(path, job)
    writer.flush()
    size = os.stat(path).st_size
    calls = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: calls.append((len(data), at)) or real(fd, data, at))
    job.replicas[500].pid = 2**22
    writer.replica_changed(500)
    writer.flush()
    writer.flush()
    writer.close()
    assert len(calls) == 1
    assert calls[0][0] < 200
    assert os.stat(path).st_size == size


def test_every_damage_is_noticed(tmp_path) -> None:
    """A state file cut off anywhere, or with any one byte changed, is refused and never misread."""
    path = str(tmp_path / "state")
    writer = StateWriter(path, _job())
    writer.flush()
    writer.close()
    whole = read_bytes(path)
    rng = random.Random(7)
    for cut in [0, 1, 10, 63, 64, 65, *rng.sample(range(len(whole)), 50)]:
        with pytest.raises(StateFileError):
            parse_state(whole[:cut])
    for at in rng.sample(range(len(whole)), 200):
        changed = bytearray(whole)
        changed[at] ^= 0x15
        try:
            job = parse_state(bytes(changed))
        except StateFileError:
            continue
        assert (
            bytes(changed[at : at + 1]) in (b"\x1f", b"\n") or whole[at : at + 1] == b"\n"
        )  # the line end is not checked
        assert job.facts == _job().facts


def test_a_newer_format_is_refused_by_name(tmp_path) -> None:
    """A file of a later version says so, instead of being called damaged."""
    with pytest.raises(StateFileError, match="format"):
        parse_state(b"torchx-local-job 9 640 ".ljust(2000))


def test_a_long_message_is_shortened_to_fit(tmp_path) -> None:
    """A message of any length and any characters fits into the header."""
    path = str(tmp_path / "state")
    job = _job()
    writer = StateWriter(path, job)
    job.msg = "ä%: " * 5000
    writer.header_changed()
    writer.flush()
    writer.close()
    assert read_state(path).msg.startswith("ä%: ä")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_escaping_is_lossless_and_makes_one_word(text: str) -> None:
    """Any text survives, and becomes a word without separators."""
    word = escape(text)
    assert unescape(word) == text
    assert not set(word) & set(" \t\n:,=")


@given(st.binary(max_size=400))
def test_garbage_never_escapes_as_another_error(data: bytes) -> None:
    """Whatever the bytes, the only error is StateFileError."""
    for candidate in (data, b"torchx-local-job 1 64 " + data, b"torchx-local-job 1 99999999999999 " + data):
        with pytest.raises(StateFileError):
            parse_state(candidate)
