"""``--timestamps`` and ``--previous`` in the logs of files: when lines were written, and where attempts begin."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.batch.folders import LogPaths
from torchx.schedulers.batch.logs import BatchLog
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.logs import LogQuery, stamped
from torchx.schedulers.kit.timed_lines import Piece, whole_lines
from torchx.schedulers.local.logs import LogIterator
from torchx.specs.api import AppState
from torchx.supervisor.follow import RECORD
from torchx.supervisor.lines import Part
from torchx.util.log_streams import JsonFormat


def at(second: float) -> str:
    return f"1970-01-01T00:00:{second:06.3f}Z"


class Job:
    """A scheduler whose one job ends when it is told to."""

    state = AppState.RUNNING

    def describe(self, app_id: str) -> SimpleNamespace:
        return SimpleNamespace(state=self.state)


def news(log: Any) -> bytes | None:
    """The next block; empty when there is none in a few looks."""
    return next((block for block in (log.poll() for _ in range(4)) if block != b""), b"")


@pytest.fixture
def local(tmp_path: Path) -> Any:
    """A local log with its time index, and its starts."""

    def make(text: str, times: list[tuple[float, int]], starts: tuple[int, ...] = (), **query: Any) -> LogIterator:
        (tmp_path / "stdout.log").write_text(text)
        (tmp_path / "times.idx").write_bytes(b"".join(RECORD.pack(t, size, 0, 0) for t, size in times))
        if starts:
            (tmp_path / "starts.idx").write_bytes(b"".join(RECORD.pack(50.0, size, 0, 0) for size in starts))
        job: Any = Job()
        log = LogIterator("job", str(tmp_path / "stdout.log"), job, query=LogQuery(**query), should_tail=False)
        log._app_finished = False
        return log

    return make


@pytest.fixture
def batch(tmp_path: Path) -> Any:
    """A log of a batch job with its time index."""

    def make(out: str, times: str, *, err: str = "", over: bool = True, spans: Any = None, **query: Any) -> BatchLog:
        where = LogPaths(f"{tmp_path}/stdout.log", f"{tmp_path}/stderr.log", f"{tmp_path}/times.idx")
        for path, text in ((where.stdout, out), (where.stderr, err), (where.times, times)):
            Path(path).write_text(text)
        if spans:
            where.again = True
            where.begin, where.end = spans
        return BatchLog(LocalFiles(), where, LogQuery(**query), lambda: over)

    return make


# -- times -------------------------------------------------------------------------------------------


def test_a_line_has_the_first_time_at_which_it_was_whole(local: Any) -> None:
    """What came after the last note has that one's time: the job ended then, or is about to be looked at."""
    text = "one\ntwo\nthree\nfour"
    times = [(1.25, 4), (2.0, 6), (2.5, 8), (3.5, 14)]
    assert list(local(text, times, timestamps=True)) == [
        f"{at(1.25)} one\n",
        f"{at(2.5)} two\n",
        f"{at(3.5)} three\n",
        f"{at(3.5)} four",
    ]
    assert list(local(text, [], timestamps=True)) == ["- one\n", "- two\n", "- three\n", "- four"]
    assert list(local(text, times, timestamps=True, since=3.0)) == [f"{at(3.5)} three\n", f"{at(3.5)} four"]


def test_times_do_not_get_in_the_way_of_a_search(local: Any) -> None:
    """The expression is for what was written."""
    regex = re.compile("^1|^two")
    assert list(local("one\ntwo\n", [(1.0, 8)], timestamps=True, regex=regex)) == [f"{at(1)} two\n"]
    assert list(local("one\ntwo\n", [(1.0, 8)], timestamps=True).last(1)) == [f"{at(1)} two\n"]


def test_following_waits_until_the_time_is_known(local: Any, tmp_path: Path) -> None:
    """A line is shown when the index has it; when the job is over, whatever is there is."""
    log = local("one\ntwo\n", [(1.0, 4)], timestamps=True, follow=True)
    assert log.poll() == f"{at(1)} one\n".encode()
    assert log.poll() == b""
    with (tmp_path / "times.idx").open("ab") as f:
        f.write(RECORD.pack(2.0, 8, 0, 0))
    assert log.poll() == f"{at(2)} two\n".encode()
    with (tmp_path / "stdout.log").open("a") as f:
        f.write("late\n")
    assert log.poll() == b""
    log._app_finished = True
    assert [log.poll(), log.poll()] == [f"{at(2)} late\n".encode(), None]


def test_a_batch_job_has_times_to_the_second(batch: Any) -> None:
    """Of both outputs, in the order of writing."""
    log = batch("o1\no2\n", "10 3 0\n11 3 3\n12 6 3\n", err="e1\n", timestamps=True)
    assert list(log) == [f"{at(10)} o1\n", f"{at(11)} e1\n", f"{at(12)} o2\n"]


def test_a_batch_job_is_followed_with_its_times(batch: Any, tmp_path: Path) -> None:
    """The index is read on, a record that is not whole yet is waited for."""
    log = batch("o1\no2\no3\n", "10 3 0\n12 6", timestamps=True, follow=True, over=False)
    assert log.poll() == f"{at(10)} o1\n".encode()
    with (tmp_path / "times.idx").open("a") as f:
        f.write(" 0\n")
    log._growth.look()
    assert log.poll() == f"{at(12)} o2\n".encode()
    log._ended = lambda **_: True
    assert [news(log), news(log)] == [f"{at(12)} o3\n".encode(), None]


def test_a_batch_job_without_an_index_is_refused(batch: Any) -> None:
    """Rather than shown with times that nobody knows."""
    log = batch("o1\n", "", timestamps=True)
    log._paths.times = ""
    with pytest.raises(NotSupportedError, match="times of this job's lines are not known"):
        list(log)


@pytest.mark.parametrize(
    ("block", "begun", "shown"),
    [
        (b"a\n\nb", False, b"T a\nT \nT b"),
        (b"a\nb\n", True, b"a\nT b\n"),
        (b"\r1%\r2%\r\n", False, b"T \rT 1%\rT 2%\r\n"),
        (Part(b"long"), False, b"T long"),
    ],
)
def test_each_line_has_its_time(block: bytes, begun: bool, shown: bytes) -> None:
    """And each state of a progress bar, as it is drawn over the one before; a part stays one."""
    found = stamped(block, 5 * 10**9, begun=begun)
    assert found.replace(at(5).encode(), b"T") == shown
    assert type(found) is type(block)


def test_times_in_json() -> None:
    """Beside the line; null where none is known, and where a long line goes on."""
    show = JsonFormat("w", 0, timed=True)
    shown = show.chunk(f"{at(1)} a b\n- c\n{at(2)} \r{at(2)} 1%\n".encode())
    shown += show.chunk(Part(f"{at(3)} lo".encode())) + show.chunk(b"ng\n", begun=True)
    keys = ("time", "line", "partial")
    assert [tuple(json.loads(line).get(key) for key in keys) for line in shown.splitlines()] == [
        (at(1), "a b", None),
        (None, "c", None),
        (at(2), "\r1%", None),
        (at(3), "lo", True),
        (None, "ng", None),
    ]


# -- attempts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("starts", "shown"), [((4,), "one\n"), ((4, 8), "two\n"), ((4, 8, 8), ""), ((0,), "")])
def test_the_attempt_before_the_last_start(local: Any, starts: tuple[int, ...], shown: str) -> None:
    """Between the start before and the last one; the first began with the file."""
    assert "".join(local("one\ntwo\nthree\n", [(1.0, 14)], starts, previous=True)) == shown


def test_an_attempt_that_ended_within_a_line_ends_with_its_own_times(local: Any) -> None:
    """What was written later is not what the end of its last line is dated by."""
    text, times = "one\ntwthree\n", [(1.0, 4), (2.0, 6), (3.0, 12)]
    assert list(local(text, times, (6,), previous=True, timestamps=True)) == [f"{at(1)} one\n", f"{at(2)} tw"]


def test_one_attempt_has_none_before_it(local: Any, batch: Any) -> None:
    """That is said, and nothing else is shown in its place."""
    for log in (local("one\n", [], previous=True), batch("one\n", "", previous=True)):
        with pytest.raises(NotFoundError, match="not started again"):
            list(log)


def test_the_attempt_before_with_times_and_bounds(local: Any, batch: Any) -> None:
    """All parts of a query hold together."""
    text, times = "one\ntwo\nthree\nfour\n", [(1.0, 4), (2.0, 8), (3.0, 14), (4.0, 19)]
    query = {"previous": True, "timestamps": True}
    assert list(local(text, times, (4, 14), **query)) == [f"{at(2)} two\n", f"{at(3)} three\n"]
    assert list(local(text, times, (4, 14), since=2.5, **query)) == [f"{at(3)} three\n"]
    assert list(local(text, times, (4, 14), until=2.5, **query)) == [f"{at(2)} two\n"]
    assert list(local(text, times, (4, 14), until=9.0, since=0.0, previous=True).last(1)) == ["three\n"]
    log = batch("one\ntwo\nthree\n", "1 4 0\n2 8 3\n3 14 6\n", err="e1\ne2\n", spans=((4, 0), (8, 3)), **query)
    assert list(log) == [f"{at(2)} two\n", f"{at(2)} e1\n"]


# -- progress bars -----------------------------------------------------------------------------------


def test_an_open_bar_is_shown_now_and_then(local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As parts, ten times a second at most; other open lines wait for their end."""
    from torchx.schedulers.kit import follow

    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 0.0))
    log = local("begun", [], live=True, follow=True)

    def then(text: str, pause: float) -> bytes | None:
        with (tmp_path / "stdout.log").open("a") as f:
            f.write(text)
        clock.now += pause
        return news(log)

    assert [news(log), then("\n", 1), then("\r10%", 1)] == [b"", b"begun\n", b"\r10%"]
    assert [then("\r20%", 0.05), then("\r30%", 0.04)] == [b"", b""]
    found = then("\r40%", 0.02)
    assert (found, type(found)) == (b"\r20%\r30%\r40%", Part)
    assert then("\n", 0.01) == b"\n"


def test_an_open_bar_gives_way_to_the_other_output(batch: Any, tmp_path: Path) -> None:
    """Its row is used for the line; it is drawn anew when it moves."""
    log = batch("", "", err="\r10%", live=True, follow=True, over=False)
    assert log.poll() == b"\r10%"
    (tmp_path / "stdout.log").write_text("loss\n")
    log._growth.look()
    blocks = [news(log), news(log)]
    assert blocks == [b"\r", b"loss\n"]
    assert isinstance(blocks[0], Part)


def test_pieces_of_a_bar_are_passed_on_where_it_is_shown() -> None:
    """And joined where not."""
    pieces = [Piece(2, 1, b"\r1%"), Piece(2, 2, b"\r2%"), Piece(2, 3, b"\n")]
    assert [line.text for line in whole_lines([Piece(p.stream, p.time, p.text) for p in pieces])] == [b"\r1%\r2%\n"]
    assert [line.text for line in whole_lines(pieces, live=True)] == [b"\r1%", b"\r2%", b"\n"]


def test_a_long_line_is_passed_on_as_it_comes() -> None:
    """It is not held until its end, which may never come; nor is what follows of it, however short."""
    from torchx.supervisor.lines import LONG_LINE

    pieces = [Piece(1, 1, b"x" * LONG_LINE), Piece(1, 2, b"y"), Piece(1, 3, b"z\n"), Piece(1, 4, b"next")]
    found = [(line.text[-1:], type(line.text)) for line in whole_lines(iter(pieces))]
    assert found == [(b"x", Part), (b"y", Part), (b"\n", bytes), (b"t", bytes)]
