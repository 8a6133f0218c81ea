"""combined.log and the time index at their limits: when it is looked, what is copied by then, what a record says."""

from __future__ import annotations

import os
from typing import Any

import pytest

from torchx.supervisor import follow
from torchx.supervisor.follow import RECORD, Follower
from torchx.supervisor.lines import LONG_LINE


@pytest.fixture
def out(tmp_path) -> Any:
    return tmp_path / "stdout.log"


def _combined(tmp_path) -> bytes:
    path = tmp_path / "combined.log"
    return path.read_bytes() if path.exists() else b""


def _records(tmp_path) -> list[tuple[Any, ...]]:
    path = tmp_path / "times.idx"
    return list(RECORD.iter_unpack(path.read_bytes())) if path.exists() else []


def _append(path, data: bytes) -> None:
    with open(path, "ab") as f:
        f.write(data)


def test_when_it_is_looked_again(tmp_path, out) -> None:
    """After 20 ms at first and after news, then each time after half as long again, up to the longest pause."""
    follower = Follower(str(tmp_path), 100.0, 0.06)
    assert follower.due == pytest.approx(100.02)
    for pause in (0.03, 0.045, 0.06, 0.06):
        assert follower.look(200.0) is False
        assert follower.due == pytest.approx(200.0 + pause)
    _append(out, b"x\n")
    assert follower.look(300.0) is True
    assert follower.due == pytest.approx(300.02)


@pytest.mark.parametrize(("age", "spacing"), [(0.0, 0.05), (50.0, 0.05), (500.0, 0.5), (1000.0, 1.0), (90_000.0, 1.0)])
def test_how_far_apart_records_are(tmp_path, out, age, spacing) -> None:
    """A twentieth of a second at first, a thousandth of the job's age later, a second at most."""
    now = 200_000.0
    follower = Follower(str(tmp_path), now + spacing - age)
    _append(out, b"x\n")
    follower.look(now)
    _append(out, b"x\n")
    follower.look(now + spacing * 0.9999)
    assert len(_records(tmp_path)) == 1
    _append(out, b"x\n")
    follower.look(now + spacing * 1.0001)
    assert _records(tmp_path) == [(now, 2, 0, 2), (now + spacing * 1.0001, 6, 0, 6)]


def test_what_was_not_recorded_is_at_the_next_quiet_look(tmp_path, out) -> None:
    """At once, however soon; then there is nothing more to record."""
    follower = Follower(str(tmp_path), 0.0)
    _append(out, b"x\n")
    follower.look(1.0)
    _append(out, b"y\n")
    follower.look(1.01)
    assert len(_records(tmp_path)) == 1
    follower.look(1.02)
    follower.look(1.03)
    follower.look(9.0, last=True)
    assert _records(tmp_path) == [(1.0, 2, 0, 2), (1.02, 4, 0, 4)]


def test_the_last_look_is_recorded(tmp_path, out) -> None:
    """However soon after the one before."""
    follower = Follower(str(tmp_path), 0.0)
    _append(out, b"x\n")
    follower.look(1.0)
    _append(out, b"y")
    follower.look(1.001, last=True)
    assert _records(tmp_path)[-1] == (1.001, 3, 0, 3)


def test_a_record_has_both_streams(tmp_path, out) -> None:
    """The length of stdout, of stderr, and of what was made of them."""
    _append(out, b"one\n")
    _append(tmp_path / "stderr.log", b"problem\n")
    Follower(str(tmp_path), 0.0).look(1.0)
    assert _records(tmp_path) == [(1.0, 4, 8, 12)]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"\r10%", b"\r10%"),
        (b"10%\r20%", b"10%\r20%"),
        (b"10%\r20%\r", b"10%\r20%"),  # the last one may begin a line end
        (b"10%\r", b""),
        ("\r10% ██".encode()[:-1], "\r10% █".encode()),
    ],
)
def test_a_progress_bar_is_shown_as_it_is(tmp_path, out, written, shown) -> None:
    """From the first time on that it goes back, up to the last whole character."""
    out.write_bytes(written)
    follower = Follower(str(tmp_path), 0.0)
    follower.look(1.0)
    assert _combined(tmp_path) == shown
    follower.look(2.0, last=True)
    assert _combined(tmp_path) == written


def test_what_another_stream_writes_takes_the_place_of_a_progress_bar(tmp_path, out) -> None:
    """Until the bar is drawn again; and its line end, if it is there by then, comes first."""
    err = tmp_path / "stderr.log"
    err.write_bytes(b"\r10%")
    follower = Follower(str(tmp_path), 0.0)
    follower.look(1.0)
    out.write_bytes(b"loss 1\n")
    follower.look(2.0)
    _append(err, b"\r20%")
    follower.look(3.0)
    _append(err, b"\n")
    _append(out, b"done\n")
    follower.look(4.0)
    assert _combined(tmp_path) == b"\r10%\rloss 1\n\r20%\ndone\n"


def test_where_another_attempt_begins(tmp_path, out) -> None:
    """At the lengths of all three files, what has no line end included."""
    out.write_bytes(b"one\nhalf")
    (tmp_path / "stderr.log").write_bytes(b"e\n")
    follower = Follower(str(tmp_path), 0.0)
    follower.look(1.0)
    follower.starts_again(2.0, wall=102.0)
    starts = list(RECORD.iter_unpack((tmp_path / "starts.idx").read_bytes()))
    assert starts == [(102.0, 8, 2, 10)]
    assert _combined(tmp_path) == b"one\ne\nhalf"
    os.unlink(tmp_path / "starts.idx")
    (tmp_path / "starts.idx").symlink_to("/dev/full")
    follower.starts_again(3.0, wall=103.0)
    assert follower.failed == "No space left on device"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_an_unfinished_line_waits(tmp_path, name) -> None:
    """Of either stream; looking leaves no descriptor open."""
    before = os.listdir("/proc/self/fd")
    follower = Follower(str(tmp_path), 0.0)
    (tmp_path / f"{name}.log").write_bytes(b"half")
    assert follower.look(1.0) is False
    _append(tmp_path / f"{name}.log", b"\n")
    assert follower.look(2.0) is True
    assert _combined(tmp_path) == b"half\n"
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(("size", "copied"), [(LONG_LINE - 1, 0), (LONG_LINE, LONG_LINE)])
def test_how_long_a_long_line_is(tmp_path, out, size, copied) -> None:
    """1 MiB of one line is passed on; a byte less is waited with."""
    out.write_bytes(b"x" * size)
    follower = Follower(str(tmp_path), 0.0)
    assert follower.look(1.0) is bool(copied)
    assert len(_combined(tmp_path)) == copied
    _append(out, b"y")
    assert follower.look(2.0) is True  # the long line goes on in pieces of any size
    assert len(_combined(tmp_path)) == size + 1


def test_after_a_long_line_lines_are_whole_again(tmp_path, out) -> None:
    """Its end seen, the next one is waited for."""
    follower = Follower(str(tmp_path), 0.0)
    out.write_bytes(b"x" * LONG_LINE)
    follower.look(1.0)
    _append(out, b"end\nnext")
    follower.look(2.0)
    assert _combined(tmp_path).endswith(b"end\n")
    assert follower.look(3.0) is False
    _append(out, b"\n")
    follower.look(4.0)
    assert _combined(tmp_path).endswith(b"end\nnext\n")


def test_no_look_copies_more_than_8_mib(tmp_path, out) -> None:
    """The supervisor has other duties; what is left comes with the next looks."""
    line = b"x" * 1023 + b"\n"
    out.write_bytes(line * (20 << 10))
    follower = Follower(str(tmp_path), 0.0)
    sizes = []
    while follower.look(1.0):
        sizes.append(len(_combined(tmp_path)))
    assert sizes == [8 << 20, 16 << 20, 20 << 20]


def test_a_line_that_grows_is_searched_once(tmp_path, out, monkeypatch) -> None:
    """What holds no line end is not read again at each look."""
    follower = Follower(str(tmp_path), 0.0)
    out.write_bytes(b"x" * 600_000)
    follower.look(1.0)
    read = []
    real = os.pread

    def pread(fd: int, size: int, at: int) -> bytes:
        read.append((size, at))
        return real(fd, size, at)

    monkeypatch.setattr(os, "pread", pread)
    _append(out, b"yz")
    follower.look(2.0)
    assert read == [(2, 600_000)]


def test_a_line_end_far_back_is_found(tmp_path, out) -> None:
    """More than one block before the end."""
    out.write_bytes(b"whole\n" + b"x" * (follow._BLOCK * 2))
    follower = Follower(str(tmp_path), 0.0)
    follower.look(1.0)
    assert _combined(tmp_path) == b"whole\n"
    assert _records(tmp_path) == [(1.0, 6, 0, 6)]


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_log_that_was_truncated(tmp_path, name) -> None:
    """What follows is new, even when it is shorter; one of the same length is unchanged."""
    path = tmp_path / f"{name}.log"
    follower = Follower(str(tmp_path), 0.0)
    path.write_bytes(b"x" * LONG_LINE)
    follower.look(1.0)
    path.write_bytes(b"")
    assert follower.look(2.0) is False
    path.write_bytes(b"new")
    assert follower.look(3.0) is False  # no line end: a short line again, not the long one
    _append(path, b"\n")
    follower.look(4.0)
    assert _combined(tmp_path)[LONG_LINE:] == b"new\n"
    assert follower.look(5.0) is False


def test_no_line_end_is_added_within_a_stream(tmp_path, out) -> None:
    """Only where the other stream would go on in an open line."""
    follower = Follower(str(tmp_path), 0.0)
    err = tmp_path / "stderr.log"
    out.write_bytes(b"x" * LONG_LINE)
    follower.look(1.0)
    _append(out, b"y")
    follower.look(2.0)
    err.write_bytes(b"e\n")
    follower.look(3.0)
    _append(out, b"z\n")
    follower.look(4.0)
    assert _combined(tmp_path) == b"x" * LONG_LINE + b"y\ne\nz\n"
    assert _records(tmp_path)[-1][3] == LONG_LINE + 6


def test_a_progress_bar_needs_no_line_end_before_the_other_stream(tmp_path, out) -> None:
    """A carriage return is a start of a line, too."""
    out.write_bytes(b"50%\r")
    (tmp_path / "stderr.log").write_bytes(b"e")
    Follower(str(tmp_path), 0.0).look(1.0, last=True)
    assert _combined(tmp_path) == b"50%\re"


@pytest.mark.parametrize(
    ("written", "ends"), [(b"", True), (b"a", False), (b"\n", True), (b"a\n", True), (b"a\r", True)]
)
def test_how_a_file_ends(tmp_path, out, written, ends) -> None:
    """As a line does, at the length that is asked for; so does what is not there."""
    out.write_bytes(written + b"more")
    assert follow._ends_line(str(out), len(written)) is ends
    assert follow._ends_line(str(tmp_path / "none"), 3) is True
    assert follow._ends_line(str(out), 1000) is True


def test_resuming_where_nothing_was_recorded(tmp_path, out) -> None:
    """All is made again from the start, once."""
    out.write_bytes(b"a\n")
    (tmp_path / "combined.log").write_bytes(b"a\nhalf of someth")
    (tmp_path / "times.idx").write_bytes(b"short")
    follower = Follower.resumed(str(tmp_path), 5.0)
    assert _combined(tmp_path) == b""
    follower.look(5.0, last=True)
    assert _combined(tmp_path) == b"a\n"


def test_resuming_before_anything_was_written(tmp_path, out) -> None:
    """Neither a log nor an index: none is made until there is something."""
    follower = Follower.resumed(str(tmp_path), 5.0)
    assert follower.due == pytest.approx(5.02)
    assert os.listdir(tmp_path) == []


def test_a_record_that_cannot_be_written_is_written_later(tmp_path, out) -> None:
    """The lines are there; the failure is said, and gone when it is over."""
    (tmp_path / "times.idx").symlink_to("/dev/full")
    _append(out, b"x\n")
    follower = Follower(str(tmp_path), 0.0)
    assert follower.look(1.0) is False
    assert (_combined(tmp_path), "space" in follower.failed) == (b"x\n", True)
    os.unlink(tmp_path / "times.idx")
    follower.look(2.0)
    assert follower.failed == ""
    assert _records(tmp_path) == [(2.0, 2, 0, 2)]
