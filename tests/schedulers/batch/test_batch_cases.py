"""Cases of what all batch backends share in which one operand of a condition decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedulers.batch.test_batch import Toy, fake, log, paths, schedule, slept, toy
from torchx.errors import CommandError, NotFoundError, NotSupportedError, TransientError
from torchx.schedulers.api import DescribeAppResponse, Stream
from torchx.schedulers.batch import logs, queries
from torchx.schedulers.batch.base import Submission
from torchx.schedulers.batch.folders import (
    LogPaths,
)
from torchx.schedulers.batch.logs import BatchLog, Growth, check_query, parse_times
from torchx.schedulers.batch.queries import JobQueries
from torchx.schedulers.batch.sites import PATIENCE_S
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs import AppState
from torchx.testing.commands import FakeCommandRunner

__all__ = ["fake", "slept", "toy"]


# -- queries -----------------------------------------------------------------------------------------


class Asked:
    """Answers queries, at times that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.states: dict[str, AppState] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(queries, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.queries = JobQueries()

    def of(self, *app_ids: str, others: Sequence[str] = (), fresh_s: float = 0.5) -> str:
        """The jobs of the query that this takes; empty if none was needed."""
        self.asked.clear()
        self.queries.of(app_ids, self._ask, fresh_s=fresh_s, others=lambda missing: (*missing, *others))
        return " ".join(self.asked)

    def _ask(self, app_ids: list[str]) -> dict[str, DescribeAppResponse | None]:
        self.asked += app_ids
        return {i: DescribeAppResponse(i, self.states[i]) for i in app_ids if i in self.states}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_how_old_an_answer_may_be(asked: Asked) -> None:
    """It is used until it is as old as the caller allows."""
    asked.states["a"] = AppState.SUCCEEDED
    assert asked.of("a") == "a"
    asked.now += 0.49
    assert asked.of("a") == ""
    asked.now += 0.01
    assert asked.of("a") == "a"
    assert asked.of("b") == "b"
    assert asked.of("b") == ""  # it is known that it is unknown


def test_who_is_watched(asked: Asked) -> None:
    """Jobs that go on are part of each query for a minute after somebody has asked for them; ended ones are not."""
    asked.states.update(a=AppState.RUNNING, b=AppState.SUCCEEDED, c=AppState.PENDING)
    asked.of("a", "b", "nobody", "c")
    asked.now += 59.9
    assert asked.of("d") == "d a c"
    asked.now += 0.1
    assert asked.of("e") == "e"
    asked.now += 1
    assert asked.of("a") == "a"
    asked.states["a"] = AppState.FAILED
    asked.now += 1
    asked.of("a")
    asked.now += 1
    assert asked.of("f") == "f"


def test_who_loops_over_jobs(asked: Asked) -> None:
    """The second query within half a second covers the others that are likely to follow, each once."""
    asked.states.update(a=AppState.RUNNING)
    assert asked.of("a", others=("x",)) == "a"
    asked.now += 0.49
    assert asked.of("b", others=("a", "x", "y")) == "b a x y"
    assert asked.of("x", "y") == ""
    asked.now += 0.5
    assert asked.of("c", others=("z",)) == "c a"


def test_what_is_forgotten(asked: Asked) -> None:
    """One answer after its job was changed; with `clear` all of them, and who is watched."""
    asked.states.update(a=AppState.RUNNING, b=AppState.RUNNING, c=AppState.PENDING)
    asked.of("a", "b", "c")
    assert asked.queries.running(["c", "a", "z", "b"]) == ["a", "b"]
    asked.queries.forget("a")
    assert asked.queries.running(["a", "b"]) == ["b"]
    assert asked.of("a", "b") == "a c"
    asked.queries.clear()
    assert asked.queries.running(["a", "b"]) == []
    asked.now += 1
    assert asked.of("d") == "d"


def test_a_closed_scheduler_asks_again(toy: Toy, fake: FakeCommandRunner) -> None:
    """Nothing is left of earlier answers, or of logs that were read."""
    toy.fresh_s = 1e6
    fake.on("ask", stdout="7 RUNNING\n")
    for _ in range(2):
        toy.describe("7")
    assert len(fake.argvs("ask")) == 1
    toy._growth[1] = Growth(LocalFiles())
    toy.close()
    toy.describe("7")
    assert len(fake.argvs("ask")) == 2
    assert not toy._growth


def test_a_new_job_is_asked_for_at_once(toy: Toy, fake: FakeCommandRunner) -> None:
    """Although it was unknown a moment ago."""
    toy.fresh_s = 1e6
    fake.on("ask", stdout="")
    assert toy.describe("7") is None
    fake.on("sub", stdout="7\n")
    assert schedule(toy) == "7"
    toy.describe("7")
    assert len(fake.argvs("ask")) == 2


# -- commands ----------------------------------------------------------------------------------------


def test_how_long_it_is_tried(toy: Toy, fake: FakeCommandRunner, slept: list[float]) -> None:
    """With pauses that double up to five seconds, in all no longer than the patience."""
    fake.on("ask", returncode=1, stderr="try later")
    for patience, pauses in ((0.2, []), (0.3, [0.25]), (0.74, [0.25]), (0.8, [0.25, 0.5])):
        slept.clear()
        with pytest.raises(TransientError, match="`ask` failed: try later"):
            toy.run_command(toy._here, ["ask"], patience_s=patience)
        assert slept == pauses
    slept.clear()
    with pytest.raises(TransientError):
        toy.run_command(toy._here, ["ask"])
    assert slept == [0.25, 0.5, 1.0, 2.0, 4.0, *[5.0] * 7]
    assert sum(slept) <= PATIENCE_S


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (["env", "A=1", "ask", "B=2"], "ask"),
        (["env", "-u", "A", "ask", "x"], "ask"),
        (["env", "-u", "A", "-u", "B", "C=1", "ask"], "ask"),
    ],
)
def test_a_program_that_env_does_not_find(argv: list[str], program: str, toy: Toy, fake: FakeCommandRunner) -> None:
    """It is named, not `env`."""
    fake.on("env", returncode=127, stderr="env: not found")
    with pytest.raises(CommandError, match=f"`{program}` is not installed on this machine"):
        toy.run_command(toy._here, argv)
    fake.on("other", returncode=127)
    assert toy.run_command(toy._here, ["other"]).returncode == 127


def test_what_is_hidden_from_a_command() -> None:
    """The variables that hold secrets."""
    assert Submission("t", ["sub"], "/f").env == []
    assert Submission("t", ["sub"], "/f", without=("A", "B")).env == ["env", "-u", "A", "-u", "B"]


# -- logs --------------------------------------------------------------------------------------------


class Counted(LocalFiles):
    """Counts queries."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, int], float]] = []

    def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
        self.asked.append(({Path(path).name: at for path, at in offsets.items()}, wait_s))
        return super().grown(offsets, 0)


@pytest.fixture
def growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Growth:
    """Of the files `a`, with ten bytes, and `b`, which is empty."""
    monkeypatch.setattr(logs, "MAX_GROWN", 1 << 20)
    (tmp_path / "a").write_text("0123456789")
    (tmp_path / "b").touch()
    made = Growth(Counted())
    made.begin(str(tmp_path / "a"), 2)
    made.begin(str(tmp_path / "b"), 0)
    return made


def test_data_is_read_once(growth: Growth, tmp_path: Path) -> None:
    """From where a reader stands; what it has passed is dropped, and what it may read again is kept."""
    a = str(tmp_path / "a")
    read = lambda offset, size, keep, ask=False: growth.read(a, offset, size, keep=keep, ask=ask)  # noqa: E731
    assert read(2, 3, 2) == b""
    assert read(2, 3, 2, ask=True) == b"234"
    assert read(5, 9, 5, ask=True) == b"56789"
    assert read(5, 2, 5) == b"56"
    assert growth._held[a] == (5, b"56789")
    assert [offsets for offsets, _ in growth.files.asked] == [{"a": 2}]  # type: ignore[attr-defined]  # it is ours
    assert read(10, 5, 10) == b""
    assert growth._held[a] == (10, b"")
    assert read(12, 5, 10) == b""
    assert growth.reads(a)
    growth.end(a)
    growth.end(a)
    assert not growth.reads(a)


def test_the_end_of_a_log_is_read_directly(growth: Growth, tmp_path: Path) -> None:
    """What lies behind the data that is held is not held."""
    a = str(tmp_path / "a")
    assert growth.read(a, 8, 9, keep=2, ask=True) == b"89"
    assert growth.files.asked == []  # type: ignore[attr-defined]  # it is ours


def test_readers_look_together(growth: Growth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files in one query, at most four times a second; a file with more data than fits waits for its reader."""
    now = [100.0]
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    seen = growth.files.asked  # type: ignore[attr-defined]  # it is ours
    growth.look(wait_s=3)
    assert seen.pop() == ({"a": 2, "b": 0}, 3)
    now[0] += 0.24
    growth.look_if_due()
    assert not seen
    now[0] += 0.01
    growth.look_if_due()
    assert seen.pop() == ({"a": 10, "b": 0}, growth.files.wait_s)
    monkeypatch.setattr(logs, "MAX_GROWN", 8)
    growth.look()
    assert seen.pop()[0] == {"a": 10, "b": 0}
    monkeypatch.setattr(logs, "MAX_GROWN", 7)
    growth.look()
    assert seen.pop()[0] == {"b": 0}


def test_a_full_answer_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader asks for more, without being told to."""
    monkeypatch.setattr(logs, "MAX_GROWN", 8)
    (tmp_path / "a").write_text("01234567")
    growth = Growth(Counted())
    growth.begin(str(tmp_path / "a"), 0)
    growth.look()
    (tmp_path / "a").write_text("0123456789")
    assert growth.read(str(tmp_path / "a"), 8, 9, keep=8, ask=False) == b"89"
    (tmp_path / "a").write_text("0123456789ab")
    assert growth.read(str(tmp_path / "a"), 10, 9, keep=10, ask=False) == b""


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({}, ["o1\n", "e1\n", "o2\n"]),
        ({"stream": Stream.STDOUT}, ["o1\n", "o2\n"]),
        ({"stream": Stream.STDERR}, ["e1\n"]),
        ({"since": 11.0}, ["e1\n", "o2\n"]),
        ({"until": 10.5}, ["o1\n"]),
        ({"since": 11.0, "stream": Stream.STDOUT}, ["o2\n"]),
        ({"since": 13.0}, []),
    ],
)
def test_what_a_query_selects(query: dict[str, Any], shown: list[str], tmp_path: Path) -> None:
    """One stream or both, in the order of their times, and a part of the time."""
    where = paths(tmp_path, "o1\no2\n", "e1\n", "10 3 0\n11 3 3\n12 6 3\n")
    assert list(log(where, **query)) == shown


def test_one_stream_needs_no_times(tmp_path: Path) -> None:
    """The index is not read then."""
    where = paths(tmp_path, "o1\n", "e1\n", "10 3 3\n")
    Path(where.times).unlink()
    Path(where.times).mkdir()  # reading it would fail
    assert list(log(where, stream=Stream.STDOUT)) == ["o1\n"]


@pytest.mark.parametrize(
    ("query", "known", "refused"),
    [
        ({"since": 1.0}, False, True),
        ({"until": 1.0}, False, True),
        ({"timestamps": True}, False, True),
        ({}, False, False),
        ({"since": 1.0}, True, False),
        ({"timestamps": True}, True, False),
    ],
)
def test_times_that_nobody_recorded(query: dict[str, Any], known: bool, refused: bool, tmp_path: Path) -> None:
    """They are not made up, unless there is no output."""
    where = paths(tmp_path, "o1\n", "", "10 3 0\n" if known else "")
    if not known:
        where = LogPaths(where.stdout, where.stderr)
    if refused:
        with pytest.raises(NotSupportedError, match="times of this job's lines are not known") as no:
            list(log(where, **query))
        assert "--since" in no.value.hint
        Path(where.stdout).write_text("")
        assert list(log(where, **query)) == []
    else:
        assert len(list(log(where, **query))) == 1


def test_the_attempt_before(tmp_path: Path) -> None:
    """Between its offsets; a replica that was not restarted has none."""
    where = paths(tmp_path, "one\ntwo\nthree\n", "e1\ne2\n")
    with pytest.raises(NotFoundError, match="was not started again"):
        list(log(where, previous=True))
    where.begin, where.end, where.again = (4, 3), (8, 6), True
    assert list(log(where, previous=True, stream=Stream.STDOUT)) == ["two\n"]
    assert list(log(where, previous=True, stream=Stream.STDERR)) == ["e2\n"]


def test_whether_it_is_over_is_asked_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every two seconds, while there is no news."""
    now, calls = [100.0], []
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    where = paths(tmp_path, "")
    reader = BatchLog(LocalFiles(), where, LogQuery(), lambda: bool(calls.append(now[0])))
    for _ in range(5):
        assert not reader._ended(patient=True)
        now[0] += 1.0
    assert calls == [100.0, 102.0, 104.0]


def test_times_of_a_clock_that_is_set_back(tmp_path: Path) -> None:
    """Lines in the index that go back in time, or are damaged, are left out."""
    assert parse_times("10 1 0\nx\n11 2\n12 3 4 5\n") == [(10.0, 1, 0), (12.0, 3, 4)]
    where = paths(tmp_path, "o1\no2\no3\n", "", "10 3 0\n9 6 0\n10 6 0\n12 9 0\n")
    assert list(log(where, until=11.0)) == ["o1\n", "o2\n"]


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"since": 0.0}, "--since"),
        ({"until": 0.0}, "--until"),
        ({"timestamps": True}, "--timestamps"),
        ({"previous": True}, "--previous"),
        ({"stream": Stream.STDERR}, "stderr is not separate"),
        ({"stream": Stream.STDOUT}, "stdout is not separate"),
        ({}, ""),
        ({"stream": Stream.COMBINED}, ""),
    ],
)
def test_what_the_log_of_a_task_cannot_answer(query: dict[str, Any], word: str) -> None:
    """It is one file without times."""
    if word:
        with pytest.raises(NotSupportedError, match=word):
            check_query(LogQuery(**query))
    else:
        check_query(LogQuery(**query))
