"""Log files of local replicas: long lines in pieces, the last lines, lines that match; polled or in one go."""

from __future__ import annotations

import re
import threading
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchx.schedulers.kit.follow import Cursor
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.local.logs import LogIterator
from torchx.specs.api import AppState
from torchx.supervisor.lines import Part

MIB = 1 << 20
LONG = "".join(f"{i}é漢" for i in range(400_000)).encode()  # more than 4 MiB, without a line end


class Job:
    """A scheduler whose one job ends when it is told to."""

    state = AppState.RUNNING

    def describe(self, app_id: str) -> SimpleNamespace:
        return SimpleNamespace(state=self.state)


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def log(tmp_path, job) -> Callable[..., LogIterator]:
    """A log of these bytes, the lines that match, between two offsets."""

    def make(data: bytes, regex: str | None = None, *, follow: bool = False, **range_: Any) -> LogIterator:
        (tmp_path / "log").write_bytes(data)
        query = LogQuery(follow=follow, regex=None if regex is None else re.compile(regex))
        found = LogIterator("job", str(tmp_path / "log"), job, follow, query=query)
        found._cursors = [Cursor(str(tmp_path / "log"), **range_)]
        return found

    return make


# -- long lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n", b"\nnext"])
def test_a_long_line_comes_in_pieces(log, end: bytes) -> None:
    """Joined they are the file; each piece is text, marked as a part, and small but for the first."""
    data = b"before\n" + LONG + end
    blocks = list(log(data).chunks())
    assert b"".join(blocks) == data
    parts = [block for block in blocks if isinstance(block, Part)]
    assert len(parts) > 10
    assert all("\n" not in part.decode() and part for part in parts)
    assert max(map(len, blocks)) < MIB + (1 << 17)
    assert "".join(log(data)) == data.decode()
    assert next(line for line in log(data) if line.endswith("\n")) == "before\n"


def test_a_line_of_just_under_a_mebibyte_is_whole(log) -> None:
    """Only longer ones are cut."""
    data = b"x" * (MIB - 1) + b"\ny\n"
    assert list(log(data)) == data.decode().splitlines(keepends=True)
    assert not any(isinstance(block, Part) for block in log(data).chunks())


def test_garbage_of_no_encoding(log) -> None:
    """Bytes that are no text come out as they are."""
    data = (bytes(range(128, 256)) * 20_000).replace(b"\n", b"")
    assert b"".join(log(data).chunks()) == data


def test_a_hundred_megabytes_without_a_line_end_take_little_memory(tmp_path) -> None:
    """Neither reading nor polling, with a regular expression or without, ever holds more than some MiB."""
    with open(tmp_path / "log", "wb") as f:
        f.truncate(100 * MIB)
    tracemalloc.start()
    try:
        lines = [LogIterator("job", str(tmp_path / "log"), None, False) for _ in range(2)]
        assert sum(map(len, lines[0].chunks())) == 100 * MIB
        assert sum(map(len, lines[1])) == 100 * MIB
        regex = LogQuery(regex=re.compile("x"))
        assert not list(LogIterator("job", str(tmp_path / "log"), None, False, query=regex))
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_an_open_line_is_not_held(tmp_path, job) -> None:
    """Of a line that still grows nothing is kept in memory between two polls, and nothing is lost."""
    (tmp_path / "log").write_bytes(b"x" * (MIB - 10))
    many = [LogIterator("job", str(tmp_path / "log"), job) for _ in range(50)]
    tracemalloc.start()
    try:
        assert {one.poll() for one in many} == {b""}
        assert tracemalloc.get_traced_memory()[0] < 2 * MIB
    finally:
        tracemalloc.stop()
    with open(tmp_path / "log", "ab") as f:
        f.write(b"end\n")
    for one in many:
        assert one.poll() == b"x" * (MIB - 10) + b"end\n"


def test_a_long_line_is_polled_as_it_grows(log, job, tmp_path) -> None:
    """Each poll gives what has come, characters whole; after the job's end the rest."""
    polled = log(b"y" * MIB, follow=True)
    assert polled.poll() == b"y" * MIB
    shown = b""
    for byte in "é漢x".encode():
        with open(tmp_path / "log", "ab") as f:
            f.write(bytes([byte]))
        block = polled.poll()
        block.decode()
        shown += block
    assert shown == "é漢x".encode()
    with open(tmp_path / "log", "ab") as f:
        f.write("é".encode()[:1])
    assert polled.poll() == b""
    job.state = AppState.SUCCEEDED
    rest = [block for block in iter(polled.poll, None) if block]
    assert rest == ["é".encode()[:1]]
    assert not isinstance(rest[0], Part)


# -- the last lines ----------------------------------------------------------------------------------

_files = st.lists(
    st.sampled_from([b"a\n", b"ab\n", b"\n", b"b" * 70_000 + b"\n", b"ab" * MIB + b"\n", b"no end"]), max_size=9
)


@given(_files, st.integers(0, 12), st.sampled_from([None, "a", "^$", "b", "z"]))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_last_lines(log, lines: list[bytes], count: int, regex: str | None) -> None:
    """They are what the end of all (matching) lines is; pieces of a long line that match count as lines."""
    data = b"".join(line for line in lines[:-1] if line != b"no end") + b"".join(lines[-1:])

    def matching() -> LogIterator:
        return log(data, regex)

    wanted = b"".join(matching().chunks())
    ends = [found.end() for found in re.finditer(b"\n", wanted)]
    ends += [len(wanted)] if wanted and not wanted.endswith(b"\n") else []
    begin = len(wanted) if not count else 0 if len(ends) <= count else ends[-count - 1]
    found = b"".join(matching().last(count).chunks())
    if count == 0:
        assert found in (b"", wanted[begin:], b"no end")
    else:
        assert found == wanted[begin:]


def test_the_last_lines_of_a_range(log) -> None:
    """Between two offsets."""
    data = b"".join(b"%03d\n" % i for i in range(100))
    assert list(log(data, position=40, end=80).last(3)) == ["017\n", "018\n", "019\n"]
    assert list(log(data, position=40, end=44).last(3)) == ["010\n"]
    assert list(log(data, position=40, end=40).last(3)) == []


def test_the_last_lines_and_what_follows(log, job, tmp_path) -> None:
    """Polled, with and without a regular expression; a line that was open is shown whole, once it has its end."""
    both = [log(b"a1\nb1\na2\nb2\na3", follow=True).last(2)]
    both.append(log(b"a1\nb1\na2\nb2\na3", "a", follow=True).last(2))
    shown = [one.poll() for one in both]
    assert shown == [b"b2\n", b"a2\n"]
    with open(tmp_path / "log", "ab") as f:
        f.write(b" more\nb3\n")
    job.state = AppState.SUCCEEDED
    rest = [b"".join(filter(None, iter(one.poll, None))) for one in both]
    assert rest == [b"a3 more\nb3\n", b"a3 more\n"]


def test_no_last_lines_and_what_follows(log, job, tmp_path) -> None:
    """`--tail 0`: only what comes from now on."""
    polled = log(b"old\n", follow=True).last(0)
    matching = log(b"old\n", "n", follow=True).last(0)
    missing = LogIterator("job", str(tmp_path / "none"), job).last(3)
    with open(tmp_path / "log", "ab") as f:
        f.write(b"new\n")
    assert (polled.poll(), matching.poll(), missing.poll()) == (b"new\n", b"new\n", b"")


def test_no_last_lines_of_a_line_that_goes_on(log, tmp_path) -> None:
    """Nor is what was there of it searched."""
    polled = log(b"open", "e", follow=True).last(0)
    with open(tmp_path / "log", "ab") as f:
        f.write(b" line\nshut\nend\n")
    assert polled.poll() == b" line\nend\n"


def test_an_open_line_waits_for_its_end_wherever_it_begins(log, tmp_path) -> None:
    """Its own length makes it a long one, not that of what stands before it."""
    polled = log(b"x" * (2 * MIB) + b"\nopen", follow=True)
    blocks = iter(polled.poll, b"")
    assert b"".join(blocks) == b"x" * (2 * MIB) + b"\n"
    with open(tmp_path / "log", "ab") as f:
        f.write(b" line\n")
    assert polled.poll() == b"open line\n"


def test_between_two_looks_no_file_is_open(log, tmp_path) -> None:
    """Thousands of replicas are followed by a process that may open a thousand files."""
    polled = log(b"one\n", follow=True)
    assert [polled.poll(), polled.poll()] == [b"one\n", b""]
    assert polled._fd == -1
    with open(tmp_path / "log", "ab") as f:
        f.write(b"two\n")
    assert polled.poll() == b"two\n"
    assert polled._fd >= 0
    assert polled.poll() == b""
    assert polled._fd == -1


def test_whoever_has_read_to_the_end_has_let_go(log, job) -> None:
    """Of the file, whichever way it was read."""
    whole = log(b"one\n")
    assert list(whole) == ["one\n"]
    followed = log(b"one\n", follow=True)
    assert followed.poll() == b"one\n"
    job.state = AppState.SUCCEEDED
    assert b"".join(filter(None, iter(followed.poll, None))) == b""
    assert (whole._fd, followed._fd) == (-1, -1)


def test_a_backend_hears_when_its_files_are_read_no_more(log, job, monkeypatch) -> None:
    """At the end, and where the reader leaves before it; not while it goes on."""
    closed, own = [], []

    def close(self) -> None:
        if self in own:  # not one of a test before, which is collected now
            closed.append(self)

    monkeypatch.setattr(LogIterator, "_close", close)
    whole, left, followed = own[:] = log(b"one\n"), log(b"one\n"), log(b"one\n", follow=True)
    blocks = left.chunks()
    assert [next(blocks), followed.poll(), followed.poll(), closed] == [b"one\n", b"one\n", b"", []]
    assert list(whole) == ["one\n"]
    assert closed == [whole]
    job.state = AppState.SUCCEEDED
    assert b"".join(filter(None, iter(followed.poll, None))) == b""
    assert closed == [whole, followed]


# -- lines that match --------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=6) | st.text(max_size=4).map(lambda t: t.encode("utf-8", "replace")), max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_matches_is_shown_to_the_byte(log, lines: list[bytes]) -> None:
    """Lines and blocks tell the same, and blocks have the bytes of the file, text or not."""
    data = b"\n".join(lines)
    regex = r"\w$"
    found = re.compile(regex).search
    expected = [line for line in data.split(b"\n") if found(line.decode("utf-8", "replace"))]
    shown = b"".join(log(data, regex).chunks())
    assert shown.removesuffix(b"\n").split(b"\n") == (expected or [b""])
    assert "".join(log(data, regex)) == shown.decode("utf-8", "replace")


def test_pieces_that_match(log) -> None:
    """A match in a long line shows the piece around it, as a line of its own."""
    data = b"a\n" + b"x" * 3 * MIB + b"needle" + b"x" * MIB + b"\nneedle too\n"
    for shown in (
        "".join(log(data, "needle")).encode(),
        b"".join(log(data, "needle").chunks()),
    ):
        piece, last, end = shown.split(b"\n")
        assert b"needle" in piece and len(piece) < MIB
        assert (last, end) == (b"needle too", b"")


def test_a_poll_without_a_match_does_not_keep_the_others_waiting(log, monkeypatch) -> None:
    """A long log in which nothing matches is read a part at a time."""
    monkeypatch.setattr("torchx.schedulers.kit.follow._PATIENCE_S", -1.0)
    polled = log(b"no match\n" * 100_000, "x")
    polls = list(iter(polled.poll, None))
    assert len(polls) > 10
    assert not any(polls)


def test_no_thread_is_needed(log) -> None:
    """Matching lines can be polled."""
    before = threading.active_count()
    assert log(b"a\nb\n", "b").poll() == b"b\n"
    assert threading.active_count() == before
