"""The state file: written in place, read whole, damage noticed."""

from __future__ import annotations

import binascii
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.supervisor import statefile
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
    assert read.positions() == [("r 1", 0), ("r 1", 1), ("r 1", 2), ("other", 0)]


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


@pytest.mark.parametrize(
    "data", [b"another-file 1 640 x", b"torchx-local-job 1 x x", b"torchx-local-job 1", b"torchx-local-job 1 640"]
)
def test_what_is_no_state_file(data: bytes) -> None:
    """Another name, no width, too few words: said so, and not called cut off."""
    with pytest.raises(StateFileError, match=r"^not a state file$"):
        parse_state(data)


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


def test_there_is_no_file_before_its_content(tmp_path) -> None:
    """The lines of thousands of replicas take a while."""
    path = str(tmp_path / "state")
    with pytest.raises(StateFileError, match="bytes where"):
        StateWriter(path, JobState({"app_id": "a"}, [("r", 2)]), header=64)
    assert not os.path.exists(path)


def test_how_the_file_looks(tmp_path) -> None:
    """As the module's docstring says: a header of whole 64 bytes with room for changes, lines of 112, checksums."""
    path = str(tmp_path / "state")
    job = JobState({"app_id": "a"}, [("r", 2)])
    job.created, job.guardian, job.supervisor = 1.5, (7, 99), 8
    StateWriter(path, job).close()
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert read_bytes(path) == b""  # nothing before the first flush
    writer = StateWriter(path, job)
    writer.flush()
    writer.close()
    data = read_bytes(path)
    width = int(data.split(b" ")[2])
    fixed = len("roles=r:2 app_id=a")
    assert width % 64 == 0 and fixed + 512 <= width < fixed + 512 + 64
    assert len(data) == width + 2 * 112
    header, first, second = data[:width], data[width : width + 112], data[width + 112 :]
    assert header.split()[:-1] == (
        b"torchx-local-job 1 %d roles=r:2 app_id=a state=PENDING restarts=0 first=-1 created=1.500000 ended=0.000000 "
        b"supervisor=8 guardian=7:99 msg=" % width
    ).split()  # fmt: skip
    assert first.split()[:-1] == b"0 PENDING 0 0 0 - 0.000000 0.000000".split()
    assert second.split()[:-1] == b"1 PENDING 0 0 0 - 0.000000 0.000000".split()
    for line in (header, first, second):
        assert line[-9:] == b"%08x\n" % binascii.crc32(line[:-9])


@pytest.mark.parametrize("extra", range(40, 110, 8))
def test_a_header_that_just_fits(tmp_path, extra) -> None:
    """Its width is that of the next 64 bytes, also where the facts end at such a boundary."""
    path = str(tmp_path / "state")
    job = JobState({"a": "x" * extra}, [("r", 1)])
    writer = StateWriter(path, job)
    writer.flush()
    writer.close()
    width = int(read_bytes(path).split(b" ")[2])
    assert 0 <= width - 512 - len("roles=r:1 a=" + "x" * extra) < 64


def test_a_file_is_taken_over_as_it_is(tmp_path) -> None:
    """With the header's width of whoever wrote it: nothing moves."""
    path = str(tmp_path / "state")
    writer = StateWriter(path, _job(), header=1024)
    writer.flush()
    writer.close()
    assert len(read_bytes(path)) == 1024 + 4 * 112
    assert read_state(path).roles == [("r 1", 3), ("other", 1)]


def test_what_does_not_fit_is_an_error(tmp_path) -> None:
    """A line is never cut: its length is exactly what fits, or it is refused."""
    job = JobState({}, [("r", 1)])
    writer = StateWriter(str(tmp_path / "state"), job)
    job.replicas[0].state = "X" * (103 - len("0  0 0 0 - 0.000000 0.000000"))
    writer.replica_changed(0)
    job.replicas[0].state += "X"
    with pytest.raises(StateFileError, match="line of 104 bytes where 103 fit"):
        writer.replica_changed(0)
    writer.close()


def test_changes_between_two_writes_are_one_write(tmp_path, monkeypatch) -> None:
    """From the first to the last line that changed, whatever lies between; the next write is of the next changes alone."""
    job = _job(10)
    writer = StateWriter(str(tmp_path / "state"), job)
    writer.flush()
    calls = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: calls.append((len(data), at)) or real(fd, data, at))
    header = writer._header
    writer.replica_changed(4)
    writer.replica_changed(2)
    writer.flush()
    writer.replica_changed(0)
    writer.flush()
    writer.header_changed()
    writer.flush()
    writer.flush()
    writer.replica_changed(9)
    writer.header_changed()
    writer.flush()
    writer.replica_changed(0)
    writer.header_changed()
    writer.flush()
    writer.close()
    assert calls[:3] == [(3 * 112, header + 2 * 112), (112, header), (header, 0)]
    assert calls[3:5] == [(112, header + 9 * 112), (header, 0)], "not the lines between, and the header last"
    assert calls[5:] == [(header + 112, 0)]


def test_a_line_that_is_being_written_is_read_again(tmp_path, monkeypatch) -> None:
    """Up to twenty times; what is still torn then is an error that names the file."""
    path = str(tmp_path / "state")
    writer = StateWriter(path, _job())
    writer.flush()
    writer.close()
    looks = []

    def torn_until(whole: int):
        def read(path: str) -> bytes:
            looks.append(1)
            data = read_bytes(path)
            return data if len(looks) == whole else data[:-1]

        return read

    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr(statefile, "read_bytes", torn_until(20))
    assert read_state(path).roles
    assert pauses[:3] == [0, 0.00025, 0.0005] and 0.04 < sum(pauses) < 0.06  # a writer may lose the processor
    looks.clear()
    monkeypatch.setattr(statefile, "read_bytes", torn_until(21))
    with pytest.raises(StateFileError, match=f"`{path}`: cut off"):
        read_state(path)
    assert len(looks) == 20


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, (1 << 20) + (1 << 16) + 1])
def test_a_file_of_any_size_is_read_whole(tmp_path, size) -> None:
    """Also at the limits of what one call reads; nothing stays open."""
    path = tmp_path / "file"
    data = random.Random(1).randbytes(size)
    path.write_bytes(data)
    before = os.listdir("/proc/self/fd")
    assert read_bytes(str(path)) == data
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(FileNotFoundError):
        read_bytes(str(tmp_path / "none"))


def test_a_thousand_replicas(tmp_path) -> None:
    """More than one read's worth of lines comes back, each with its own values."""
    path = str(tmp_path / "state")
    job = JobState({}, [("r", 1000)])
    for index, line in enumerate(job.replicas):
        line.attempt, line.ended = index, index + 0.5
    writer = StateWriter(path, job)
    writer.flush()
    writer.close()
    assert [(r.attempt, r.ended) for r in read_state(path).replicas] == [(i, i + 0.5) for i in range(1000)]


def test_lines_in_another_order_are_refused(tmp_path) -> None:
    """Each says its number: two that are exchanged, whole as they are, are damage."""
    path = str(tmp_path / "state")
    writer = StateWriter(path, _job())
    writer.flush()
    writer.close()
    data = read_bytes(path)
    width = int(data.split(b" ")[2])
    first, second = data[width : width + 112], data[width + 112 : width + 224]
    with pytest.raises(StateFileError, match="line 1 where 0 is expected"):
        parse_state(data[:width] + second + first + data[width + 224 :])


def test_positions() -> None:
    """Replicas are counted through all roles; roles without replicas have none."""
    job = JobState({}, [("a", 1), ("none", 0), ("b", 2)])
    assert job.positions() == [("a", 0), ("b", 0), ("b", 1)]


@pytest.mark.parametrize(("length", "kept"), [(240, 240), (241, 181)])
def test_how_long_a_message_may_be(tmp_path, length, kept) -> None:
    """240 characters; a longer one is cut to three quarters, and says so."""
    path = str(tmp_path / "state")
    job = _job()
    job.msg = "x" * length
    writer = StateWriter(path, job)
    writer.flush()
    writer.close()
    read = read_state(path).msg
    assert read == ("x" * 240 if kept == 240 else "x" * 180 + "…")


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
