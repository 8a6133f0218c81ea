"""combined.log and the time index: complete, whole lines, small, and honest when the disk is full."""

from __future__ import annotations

import os

import pytest

from torchx.supervisor.follow import RECORD, Follower


class Folder:
    def __init__(self, path) -> None:
        self.path = path

    def write(self, stream: str, data: bytes) -> None:
        with open(self.path / f"{stream}.log", "ab") as f:
            f.write(data)

    def combined(self) -> bytes:
        path = self.path / "combined.log"
        return path.read_bytes() if path.exists() else b""

    def records(self) -> list[tuple]:
        return list(RECORD.iter_unpack((self.path / "times.idx").read_bytes()))


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def test_only_whole_lines_are_copied_until_the_end(folder: Folder) -> None:
    """A line without its end waits; at the very last it is taken as it is."""
    follower = Follower(str(folder.path), 0)
    folder.write("stdout", b"one\ntw")
    follower.look(1)
    assert folder.combined() == b"one\n"
    folder.write("stderr", b"err\n")
    folder.write("stdout", b"o\nend")
    follower.look(2)
    assert folder.combined() == b"one\ntwo\nerr\n"
    follower.look(3, last=True)
    assert folder.combined() == b"one\ntwo\nerr\nend"


def test_streams_never_share_a_line(folder: Folder) -> None:
    """At the end, an unfinished line of stdout does not swallow the first of stderr."""
    folder.write("stdout", b"no end")
    folder.write("stderr", b"boom\n")
    Follower(str(folder.path), 0).look(1, last=True)
    assert folder.combined() == b"no end\nboom\n"


def test_nothing_is_made_for_a_silent_replica(folder: Folder) -> None:
    """No output, no files."""
    folder.write("stdout", b"")
    follower = Follower(str(folder.path), 0)
    follower.look(1)
    follower.look(2, last=True)
    assert os.listdir(folder.path) == ["stdout.log"]


def test_looking_gets_rarer_while_nothing_comes(folder: Folder) -> None:
    """An idle replica costs about one look a second; new output makes looks frequent again."""
    follower = Follower(str(folder.path), 0)
    now = 0.0
    for _ in range(30):
        now = follower.due
        follower.look(now)
    assert follower.due - now == pytest.approx(1.0)
    folder.write("stdout", b"x\n")
    follower.look(now)
    assert follower.due - now < 0.1


def test_a_progress_bar_is_shown_before_its_line_ends(folder: Folder) -> None:
    """Kilobytes with carriage returns and no line end are copied up to the last carriage return."""
    bar = b"".join(b"\r%3d%% of it" % i for i in range(1000))
    folder.write("stderr", bar)
    follower = Follower(str(folder.path), 0)
    follower.look(1)
    assert bar.startswith(folder.combined())
    assert len(folder.combined()) > len(bar) - 100
    follower.look(2, last=True)
    assert folder.combined() == bar


def test_big_output_is_complete(folder: Folder) -> None:
    """More than is copied in one look arrives whole, in order."""
    data = b"".join(b"line %d of a long text that fills the file\n" % i for i in range(500_000))
    folder.write("stdout", data)
    follower = Follower(str(folder.path), 0)
    looks = 0
    while follower.look(looks):
        looks += 1
    assert looks > 1
    assert folder.combined() == data


def test_the_index_stays_small_and_ends_with_the_lengths(folder: Folder) -> None:
    """An hour of steady output makes a few thousand records, not one per look."""
    follower = Follower(str(folder.path), 0)
    for i in range(2000):
        folder.write("stdout", b"x\n")
        follower.look(i * 0.02)
    follower.look(41.0, last=True)
    records = folder.records()
    assert len(records) < 1000
    assert records[-1][1:] == (4000, 0, 4000)
    assert [r[0] for r in records] == sorted(r[0] for r in records)


def test_a_full_disk_loses_no_line_and_is_told(folder: Folder) -> None:
    """While nothing can be written the follower says why; afterwards all lines are there."""
    os.symlink("/dev/full", folder.path / "combined.log")
    folder.write("stdout", b"a\nb\n")
    follower = Follower(str(folder.path), 0)
    assert not follower.look(1)
    assert "space" in follower.failed
    os.unlink(folder.path / "combined.log")
    assert follower.look(2)
    assert follower.failed == ""
    assert folder.combined() == b"a\nb\n"


def test_another_goes_on_where_a_killed_one_stopped(folder: Folder) -> None:
    """Whatever a killed follower had written after its last record, the result is complete and without doubles."""
    folder.write("stdout", b"a\nb\n")
    Follower(str(folder.path), 0).look(100)
    folder.write("stdout", b"c\n")
    folder.write("stderr", b"e\n")
    with open(folder.path / "combined.log", "ab") as f:
        f.write(b"c\nhalf a li")  # copied, but not yet in the index
    with open(folder.path / "times.idx", "ab") as f:
        f.write(b"half")
    Follower.resumed(str(folder.path), 101).look(101, last=True)
    assert folder.combined() == b"a\nb\nc\ne\n"
    assert folder.records()[-1][1:] == (6, 2, 8)


def test_a_truncated_log_starts_anew(folder: Folder) -> None:
    """A replica that truncates its own log does not stop the follower."""
    folder.write("stdout", b"old line\n")
    follower = Follower(str(folder.path), 0)
    follower.look(1)
    (folder.path / "stdout.log").write_bytes(b"new\n")
    follower.look(2)
    assert folder.combined() == b"old line\nnew\n"


def _looks(follower: Follower, now: float = 1.0) -> int:
    """Looks as long as that moves something."""
    count = 0
    while follower.look(now):
        count += 1
    return count


def test_a_long_line_is_copied_as_it_grows(folder: Folder) -> None:
    """A line of many MB is not waited for: no more than 1 MiB of it is behind, and it arrives to the byte."""
    data = bytes(range(256)).replace(b"\n", b"").replace(b"\r", b"") * 80_000
    follower = Follower(str(folder.path), 0)
    folder.write("stdout", data[:1_000_000])
    assert not follower.look(1)
    for start in range(1_000_000, len(data), 1_000_000):
        folder.write("stdout", data[start : start + 1_000_000])
        _looks(follower)
        assert len(folder.combined()) > start
    folder.write("stdout", b"end\nnext")
    _looks(follower)
    assert folder.combined() == data + b"end\n"
    follower.look(2, last=True)
    assert folder.combined() == data + b"end\nnext"


def test_a_long_line_that_is_there_already_takes_few_looks(folder: Folder) -> None:
    """100 MB without a line end are copied in a dozen looks of bounded size, not in one, and not waited for."""
    with open(folder.path / "stdout.log", "wb") as f:
        f.truncate(100_000_000)
    follower = Follower(str(folder.path), 0)
    assert 5 < _looks(follower) < 20
    assert (folder.path / "combined.log").stat().st_size == 100_000_000


def test_the_other_stream_breaks_a_long_line_between_characters(folder: Folder) -> None:
    """A line of stderr within a long one of stdout is whole, and so are the characters around it."""
    follower = Follower(str(folder.path), 0)
    text = "é漢" * 300_000
    first = text.encode()[:1_200_001]
    folder.write("stdout", first)
    folder.write("stderr", b"boom\n")
    follower.look(1)
    folder.write("stdout", text.encode()[len(first) :] + b"\n")
    folder.write("stderr", b"again\n")
    _looks(follower)
    lines = folder.combined().decode().split("\n")
    assert [line for line in lines if len(line) < 10] == ["boom", "again", ""]
    assert "".join(line for line in lines if len(line) > 10) == text


def test_a_full_disk_within_a_long_line(folder: Folder) -> None:
    """What could not be copied leaves no trace: neither half of it nor a line end too many."""
    follower = Follower(str(folder.path), 0)
    folder.write("stdout", b"x" * 2_000_000)
    os.symlink("/dev/full", folder.path / "combined.log")
    assert not follower.look(1)
    os.unlink(folder.path / "combined.log")
    folder.write("stderr", b"e\n")
    folder.write("stdout", b"y\n")
    _looks(follower)
    assert folder.combined() == b"x" * 2_000_000 + b"y\ne\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_another_goes_on_within_a_long_line(folder: Folder, stream: str) -> None:
    """It continues the line that was open, and begins a new one for the other stream."""
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    killed = Follower(str(folder.path), 0)
    folder.write(other, b"before\n")
    _looks(killed, 100)
    folder.write(stream, b"x" * 1_100_000)
    _looks(killed, 101)
    folder.write(stream, b"y")
    follower = Follower.resumed(str(folder.path), 102)
    follower.look(102, last=True)
    assert folder.combined() == b"before\n" + b"x" * 1_100_000 + b"y"
    folder.write(other, b"after\n")
    Follower.resumed(str(folder.path), 103).look(103, last=True)
    assert folder.combined() == b"before\n" + b"x" * 1_100_000 + b"y\nafter\n"
