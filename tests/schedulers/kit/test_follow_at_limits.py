"""Followed logs at their limits: the last lines, open lines, times that have just come, and what is let go."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest

from torchx.schedulers.kit import follow as follow_module
from torchx.schedulers.kit.follow import Cursor, Follower, Lines
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.timed_lines import Piece, Seen, split_stamp, whole_lines, within
from torchx.supervisor.lines import LONG_LINE, Part
from torchx.testing import FakeClock

NOW = 1000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock(NOW)
    monkeypatch.setattr(follow_module, "time", clock)
    return clock


class Log(Follower):
    """Files in memory; the job ends when it is told to, or when there is nothing more to wait for."""

    def __init__(self, files: dict[str, bytes], notes: Sequence[tuple[float, int]] = (), **query: Any) -> None:
        super().__init__(LogQuery(**query))
        self.files = files
        self.notes = notes
        self.is_over = False
        self.bytes_read = 0
        self.calls: list[Any] = []
        self.ranges: dict[str, dict[str, Any]] = {}

    def _files(self) -> list[Cursor]:
        self.calls.append("files")
        return [self._within_times(Cursor(path, **self.ranges.get(path, {}))) for path in self.files]

    def _size(self, cursor: Cursor) -> int:
        return len(self.files[cursor.path])

    def _read_at(self, cursor: Cursor, offset: int, size: int) -> bytes:
        assert size > 0
        data = self.files[cursor.path][offset : offset + size]
        self.bytes_read += len(data)
        return data

    def _ended(self, *, patient: bool) -> bool:
        return self.is_over

    def _news(self, *, patient: bool, over: bool, moved: bool) -> None:
        self.calls.append((patient, over, moved))
        if patient and not over and not moved:  # nobody will write any more
            self.is_over = True

    def _notes(self, cursor: Cursor) -> Sequence[tuple[float, int]]:
        return self.notes

    def _let_go(self) -> None:
        self.calls.append("let go")

    def _close(self) -> None:
        self.calls.append("close")

    def rest(self) -> bytes:
        """What is polled until there is nothing now."""
        return b"".join(iter(lambda: self.poll() or b"", b""))


# -- the last lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("count", "regex", "shown"),
    [
        (-1, None, b""), (0, None, b""), (1, None, b"b2\n"), (2, None, b"a2\nb2\n"), (3, None, b"b1\na2\nb2\n"),
        (9, None, b"a1\nb1\na2\nb2\n"),
        (-1, "a", b""), (0, "a", b""), (1, "a", b"a2\n"), (2, "a", b"a1\na2\n"), (3, "a", b"a1\na2\n"), (1, "x", b""),
    ],
)  # fmt: skip
def test_the_last_lines(count: int, regex: str | None, shown: bytes, follow: bool) -> None:
    """As many as there are; none of them counts if it does not match."""
    log = Log({"f": b"a1\nb1\na2\nb2\n"}, follow=follow, regex=re.compile(regex) if regex else None)
    assert b"".join(log.last(count).chunks()) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, b""), (1, b"b2\n"), (2, b"b1\nb2\n"), (3, b"a2\nb1\nb2\n")])
@pytest.mark.parametrize("follow", [False, True])
def test_the_last_lines_of_two_files(count: int, shown: bytes, follow: bool) -> None:
    """They are counted together, not for each."""
    log = Log({"a": b"a1\na2\n", "b": b"b1\nb2\n"}, follow=follow)
    assert b"".join(log.last(count).chunks()) == shown


@pytest.mark.parametrize("files", [{"a": b"a1\na2\nopen"}, {"a": b"a1\na2\nopen", "b": b""}], ids=["one", "two"])
@pytest.mark.parametrize("regex", [None, re.compile("a|o")], ids=["all", "matching"])
def test_an_open_line_is_one_of_the_last(files: dict[str, bytes], regex: re.Pattern[str] | None) -> None:
    """It is shown as it is where nobody waits, and once it has its end otherwise."""
    assert b"".join(Log(dict(files), regex=regex).last(2).chunks()) == b"a2\nopen"
    log = Log(dict(files), regex=regex, follow=True).last(2)
    assert isinstance(log, Log)
    assert log.rest() == b"a2\n"
    log.files["a"] += b" line\n"
    assert log.rest() == b"open line\n"
    alone = Log(dict(files), regex=regex, follow=True).last(1)
    assert isinstance(alone, Log)
    assert alone.rest() == b""
    alone.files["a"] += b" line\n"
    assert alone.rest() == b"open line\n"


def test_the_last_lines_are_read_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of what is read at once; the first line may be among them."""
    lines = [b"%d\n" % (10**k) for k in range(9)]
    for size in range(1, 24):
        monkeypatch.setattr(follow_module, "_BLOCK", size)
        for count in range(11):
            assert b"".join(Log({"f": b"".join(lines)}).last(count).chunks()) == b"".join(lines[9 - min(count, 9) :])


@pytest.mark.parametrize(("count", "most"), [(0, 0), (1, 1 << 17), (10_000, 1 << 17), (1 << 17, 1 << 18)])
def test_the_last_lines_are_not_held(count: int, most: int) -> None:
    """They are looked for from the end of a file, and read when somebody reads them: there may be very many."""
    log = Log({"f": b"x\n" * (1 << 17)})
    log.last(count)
    assert log.bytes_read <= most
    assert b"".join(log.chunks()) == b"x\n" * count


def test_the_last_lines_of_a_range() -> None:
    """Those between its bounds, of which the last may have no end there."""
    log = Log({"f": b"0\n1\n2\n3\n4\n"})
    log.ranges["f"] = {"position": 2, "end": 7}
    assert b"".join(log.last(2).chunks()) == b"2\n3"
    log = Log({"f": b"0\n1\n2\n3\n4\n"})
    log.ranges["f"] = {"position": 4, "end": 99}
    assert b"".join(log.last(9).chunks()) == b"2\n3\n4\n"


def test_the_last_lines_are_all_where_nobody_follows() -> None:
    """What is written later is not shown, and the files are let go at once."""
    log = Log({"a": b"1\n", "b": b"2\n"})
    log.last(1)
    assert log.calls == ["files", "close", "let go"]
    log.files["a"] += b"3\n"
    assert [log.poll(), log.poll(), log.poll()] == [b"2\n", None, None]
    followed = Log({"a": b"1\n", "b": b"2\n"}, follow=True)
    followed.last(1)
    assert followed.calls == ["files", "let go"]


def test_parts_of_a_long_line_among_the_last() -> None:
    """They stay parts, so that a reader joins them; what another file has written ends the line."""
    blocks = list(Log({"a": b"x" * LONG_LINE + b"y", "b": b"z\n"}).last(9).chunks())
    kinds = [(block[-2:], type(block)) for block in blocks]
    assert kinds == [(b"xx", Part), (b"y", Part), (b"\n", bytes), (b"z\n", bytes)]


# -- times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("until", "waits"), [(NOW - 1, False), (NOW, False), (NOW + 1, True), (None, True)])
def test_nobody_waits_for_what_is_not_shown(until: float | None, waits: bool) -> None:
    """A log until a time that has come is not followed: nothing that comes now is before it."""
    log = Log({"f": b"a\n"}, notes=[(1.0, 2)], follow=True, until=until)
    assert log.poll() == b"a\n"
    assert log.poll() == (b"" if waits else None)


@pytest.mark.parametrize(
    ("since", "until", "shown"),
    [
        (None, None, b"1\n2\n3\n4\n"),
        (None, 2.0, b"1\n"),
        (None, 2.1, b"1\n2\n"),
        (1.0, None, b"1\n2\n3\n4\n"),
        (2.0, None, b"2\n3\n4\n"),
        (2.1, None, b"3\n4\n"),
        (0.0, NOW, b"1\n2\n3\n"),
        (0.0, NOW + 1, b"1\n2\n3\n4\n"),
        (2.0, 3.0, b"2\n"),
        (3.0, 2.0, b""),
        (0.0, 0.0, b""),
    ],
)
def test_a_range_of_times(since: float | None, until: float | None, shown: bytes) -> None:
    """From its first moment on, and before its last; what has no time yet is newer than what has."""
    notes = [(1.0, 2), (2.0, 4), (3.0, 6)]
    assert b"".join(Log({"f": b"1\n2\n3\n4\n"}, notes, since=since, until=until).chunks()) == shown


def test_a_range_of_times_within_a_range_of_the_file() -> None:
    """Both hold."""
    for since, until, shown in [(0.0, 9.0, b"2\n3\n"), (3.0, None, b"3\n"), (None, 3.0, b"2\n"), (0.0, 1.0, b"")]:
        log = Log({"f": b"1\n2\n3\n4\n"}, [(1.0, 2), (2.0, 4), (3.0, 6), (4.0, 8)], since=since, until=until)
        log.ranges["f"] = {"position": 2, "end": 6}
        assert b"".join(log.chunks()) == shown


def test_the_time_of_what_was_written_last() -> None:
    """It is that of the last record, even if nothing before it is shown; where there are no records, nothing is known."""
    notes = [(1.0, 2), (2.0, 4)]
    for data in (b"1\n2\n3\n", b"1\n2\n3"):
        log = Log({"f": data}, notes, since=3.0, timestamps=True)
        assert b"".join(log.chunks()).rstrip() == b"1970-01-01T00:00:02.000Z 3"

    class Untimed(Log):
        def _notes(self, cursor: Cursor) -> Sequence[tuple[float, int]]:
            return Follower._notes(self, cursor)

    assert list(Untimed({"f": b"1\n2"}, timestamps=True, since=1.0, until=NOW + 1)) == ["- 1\n", "- 2"]


# -- waiting -----------------------------------------------------------------------------------------


def test_who_waits_for_one_log_waits_and_who_polls_does_not() -> None:
    """The backend hears which it is, whether the job is over, and whether the read before has found something."""
    log = Log({"f": b"a\n"}, follow=True)
    assert b"".join(log.chunks()) == b"a\n"
    assert log.calls == ["files", (True, False, True), (True, False, False), (True, True, False), "let go", "close"]
    polled = Log({"f": b"a\n"}, follow=True)
    assert [polled.poll(), polled.poll(), polled.poll()] == [b"a\n", b"", b""]
    assert polled.calls == ["files", (False, False, True), "let go", (False, False, False), "let go"]


def test_what_is_written_at_the_end_is_still_read() -> None:
    """Until a read after the end finds nothing; an open line last, and without its end."""
    log = Log({"f": b""}, follow=True)
    assert log.poll() == b""
    log.is_over = True
    log.files["f"] = b"a\nb"
    assert [log.poll(), log.poll(), log.poll()] == [b"a\n", b"b", None]
    assert log.calls[-2:] == ["let go", "close"]


def test_a_log_that_is_not_followed_is_read_once() -> None:
    """Nobody is asked whether the job has ended."""
    log = Log({"a": b"1\n2", "b": b"", "c": b"3"})
    assert list(log) == ["1\n", "2", "3"]
    assert log.calls == ["files", "let go", "close"]


def test_the_lines_of_one_log_are_read_with_one_reader() -> None:
    """A loop that is left and begun again goes on where it was."""
    log = Log({"f": b"1\n2\n3\n"})
    assert next(log) == "1\n"
    for line in log:
        assert line == "2\n"
        break
    assert list(log) == ["3\n"] and next(iter(log), None) is None


def test_a_search_lets_other_logs_have_their_turn(clock: FakeClock) -> None:
    """After a while in which nothing matched, and at once where there is nothing; each match begins a new while."""

    class Slow(Lines):
        def _read(self, *, patient: bool) -> Iterator[tuple[Hashable, bytes, int]]:
            for block in (b"-\n", b"-\n", b"x\n", b"-\n", b"-\n", b"-\n", b"", b"-\n"):
                clock.advance(0.15)
                yield "f", block, 0

    def shown(regex: str) -> list[bytes]:
        log = Slow(LogQuery(regex=re.compile(regex)))
        return list(log._wanted(log._read(patient=False)))

    assert shown("x") == [b"", b"x\n", b"", b""]
    assert list(Slow(LogQuery(regex=re.compile("x"))).chunks()) == [b"x\n"]


# -- lines that go on --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "live", "shown"),
    [
        ([("a", Part(b"lo")), ("a", b"ng\n")], False, [b"lo", b"ng\n"]),
        ([("a", Part(b"lo")), ("b", b"x\n"), ("b", b"y\n")], False, [b"lo", b"\n", b"x\n", b"y\n"]),
        ([("a", Part(b"lo")), ("", b""), ("a", b"ng\n")], False, [b"lo", b"", b"ng\n"]),
        ([("a", Part(b"\r1")), ("b", b"x\n")], False, [b"\r1", b"\n", b"x\n"]),
        ([("a", Part(b"\r1")), ("b", b"x\n")], True, [b"\r1", b"\r", b"x\n"]),
        ([("a", Part(b"lo")), ("b", b"x\n")], True, [b"lo", b"\n", b"x\n"]),
        ([("a", Part(b"\r1")), ("a", Part(b"2")), ("b", b"x\n")], True, [b"\r1", b"2", b"\n", b"x\n"]),
    ],
)
def test_an_open_line_gives_way(blocks: list[tuple[str, bytes]], live: bool, shown: list[bytes]) -> None:
    """To lines of another stream only: it ends there, or is drawn over if it is a progress bar."""

    class Given(Lines):
        def _read(self, *, patient: bool) -> Iterator[tuple[Hashable, bytes, int]]:
            yield from ((stream, block, 10**9) for stream, block in blocks)

    log = Given(LogQuery(live=live))
    assert list(log._wanted(log._read(patient=False))) == shown
    timed = Given(LogQuery(live=live, timestamps=True))
    begun = [b.count(b"1970") for b in timed._wanted(timed._read(patient=False))]
    if shown == [b"lo", b"ng\n"]:
        assert begun == [1, 0]
    if shown == [b"lo", b"\n", b"x\n", b"y\n"]:
        assert begun == [1, 0, 1, 1]


@pytest.mark.parametrize(("more", "parts"), [(-1, 0), (0, 1), (1, 1)])
def test_how_long_a_long_line_is(more: int, parts: int) -> None:
    """From one MiB on it comes in parts, of which none splits a character."""
    for end in ("x", "é"):
        text = ("y" * (LONG_LINE + more - len(end.encode())) + end + "\n").encode()
        blocks = list(Log({"f": text}).chunks())
        assert b"".join(blocks) == text
        assert sum(isinstance(block, Part) for block in blocks) == parts
        assert [block.decode() for block in blocks]


def test_what_is_left_of_a_file_that_was_cut() -> None:
    """An open line of which only a part still exists is that part, and the log ends."""
    log = Log({"f": b"a\nopen line"}, follow=True)
    assert log.rest() == b"a\n"
    log.files["f"] = b"a\nop"
    log.is_over = True
    assert log.rest() == b"op" and log.poll() is None


@pytest.mark.parametrize("sizes", [(3, 1, 2), (1, 4), (5, 2, 2)])
def test_reads_that_return_less_than_was_asked_for(sizes: tuple[int, ...]) -> None:
    """However much each of them returns, no byte is lost and none is read twice."""
    most = itertools.cycle(sizes)

    class Short(Log):
        def _read_at(self, cursor: Cursor, offset: int, size: int) -> bytes:
            return super()._read_at(cursor, offset, min(size, next(most)))

    lines = ["0123456789\n", "abcdefghijk\n", "\n", "the rest of it"]
    assert list(Short({"f": "".join(lines).encode()})) == lines
    assert list(Short({"f": "".join(lines).encode()}).last(3)) == lines[1:]


def test_progress_bars_are_drawn_as_they_are_now(clock: FakeClock) -> None:
    """Whole characters of them, at most ten times a second; the rest of one that has begun is drawn even without
    a carriage return."""
    log = Log({"f": b"", "g": b"plain"}, follow=True, live=True)
    bar = "\r1 é".encode()
    log.files["f"] = bar[:-1]
    assert log.poll() == b"\r1 "
    log.files["f"] = bar + b"2"
    assert log.poll() == b""
    clock.advance(0.1)
    found = [log.poll(), log.poll()]
    assert found == ["é2".encode(), b""] and isinstance(found[0], Part)
    log.files["f"] += b" end\n"
    assert [log.poll(), log.poll()] == [b" end\n", b""]
    log.files["f"] += b"no bar"
    clock.advance(0.1)
    assert log.poll() == b""


# -- streams with times ------------------------------------------------------------------------------


def test_lines_of_two_streams_do_not_mix() -> None:
    """A line has the time of its first piece; those without an end come last, in the order of their times."""
    pieces = [(1, 1, b"a"), (2, 2, b"x"), (1, 3, b"b\n"), (2, 4, b""), (1, 5, b"c"), (3, 6, b"")]
    found = list(whole_lines(Piece(*piece) for piece in pieces))
    assert [(line.stream, line.time, line.text) for line in found] == [(1, 1, b"ab\n"), (2, 2, b"x"), (1, 5, b"c")]


def test_after_a_long_line_a_short_one_is_whole_again() -> None:
    """What follows its end is joined as before."""
    pieces = [(1, 1, b"x" * LONG_LINE), (1, 2, b"\n"), (1, 3, b"a"), (1, 4, b"b\n")]
    found = list(whole_lines(Piece(*piece) for piece in pieces))
    assert [(line.time, line.text[-3:]) for line in found] == [(1, b"xxx"), (1, b"\n"), (3, b"ab\n")]
    just_not = list(whole_lines([Piece(1, 1, b"x" * (LONG_LINE - 2)), Piece(1, 2, b"y"), Piece(1, 3, b"\n")]))
    assert [line.text[-2:] for line in just_not] == [b"y\n"]


@pytest.mark.parametrize(
    ("query", "times"),
    [
        ({}, [1, 2, 1, 3]), ({"since": 2.0}, [2, 3]), ({"until": 2.0}, [1, 1]), ({"until": 2.0, "follow": True}, [1]),
        ({"since": 2.0, "until": 3.0}, [2]), ({"since": 0.0, "until": 0.0}, []),
    ],
)  # fmt: skip
def test_lines_within_a_range_of_times(query: dict[str, Any], times: list[int]) -> None:
    """From its first moment on, and before its last, after which nobody waits for more."""
    lines = [Piece(1, second * 10**9, b"x\n") for second in (1, 2, 1, 3)]
    assert [line.time // 10**9 for line in within(lines, LogQuery(**query))] == times


def test_an_interrupted_stream_goes_on_where_it_was() -> None:
    """Pieces of the last time are counted, so that none is lost or shown twice, however often it is read anew."""
    seen = Seen()
    pieces = [Piece(1, time, str(k).encode()) for k, time in enumerate([0, 1, 2, 2, 1, 2, 3, 3])]

    def read(start: int, stop: int) -> bytes:
        return b"".join(piece.text for piece in seen.news(pieces[start:stop]))

    assert (read(0, 3), seen.last) == (b"012", 2)
    assert (read(1, 4), seen.last) == (b"3", 2)
    assert (read(2, 6), read(2, 6)) == (b"5", b"")
    assert (read(2, 7), read(2, 8), read(2, 8), seen.last) == (b"6", b"7", b"", 3)


@pytest.mark.parametrize(
    ("text", "nanoseconds", "rest"),
    [
        (b"1970-01-01T00:00:01Z a", 10**9, b"a"),
        (b"1970-01-01T00:00:01.5Z  a", 1_500_000_000, b" a"),
        (b"1970-01-01T00:00:01.000000001Za", 10**9 + 1, b"a"),
        (b"1970-01-01T00:00:01-01:30 ", 5401 * 10**9, b""),
        (b"1970-13-01T00:00:01Z a", 0, b"1970-13-01T00:00:01Z a"),
        (b"1970-01-01T00:00:01 a", 0, b"1970-01-01T00:00:01 a"),
    ],
)
def test_a_stamp_before_a_line(text: bytes, nanoseconds: int, rest: bytes) -> None:
    """To the nanosecond, in any zone; what is no time belongs to the line."""
    assert split_stamp(text) == (nanoseconds, rest)
