"""The watchdog at its limits: when it looks, what it makes of an answer, what it leaves open, what it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchx.supervisor import proctree
from torchx.supervisor.layout import HANG_FILE, STACKS_FILE
from torchx.supervisor.watchdog import Watchdog, marks, page, put_down, seen

SAID = "7 of 8 ranks wait"


class Watched:
    """A watchdog whose program is the test: :meth:`prints` is what it has printed, :meth:`ends` is its end."""

    def __init__(self, seconds: float) -> None:
        self.sign = 0
        self.ends_: list[int] = []
        self.dog = Watchdog({"seconds": seconds, "program": ["inspect"]}, {"A": "b"}, lambda: self.sign)
        self.dog.begin(0.0)

    def spawn(self, program: str, argv: list[str], env: dict[str, str], *, file_actions: list[tuple[int, ...]]) -> int:
        assert (program, argv, env) == ("inspect", ["inspect"], {"A": "b"})
        self.ends_ += [os.dup(action[1]) for action in file_actions if action[0] == os.POSIX_SPAWN_DUP2]
        return 4711

    def prints(self, text: str) -> None:
        os.write(self.ends_[-1], text.encode())

    def ends(self, text: str = "") -> None:
        self.prints(text)
        os.close(self.ends_.pop())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Watched]]:
    made: list[Watched] = []

    def make(seconds: float = 100.0) -> Watched:
        made.append(Watched(seconds))
        monkeypatch.setattr(proctree, "spawn", made[-1].spawn)
        return made[-1]

    before = os.listdir("/proc/self/fd")
    yield make
    for one in made:
        one.dog.begin(0.0)  # hangs up
        while one.ends_:
            os.close(one.ends_.pop())
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(("seconds", "pause_s"), [(10.0, 0.5), (600.0, 30.0), (6000.0, 30.0)])
def test_how_often_it_looks(watched: Callable[[float], Watched], seconds: float, pause_s: float) -> None:
    """Twenty times before the job counts as silent, twice a minute at least; five times a second for an answer."""
    one = watched(seconds)
    assert one.dog.due == 0.0
    one.dog.turn(1.0)
    assert one.dog.due == pytest.approx(1.0 + pause_s)
    one.dog.turn(seconds)
    one.dog.turn(seconds + 1)
    assert one.dog.due == pytest.approx(seconds + 1.2)
    one.ends()
    one.dog.turn(seconds + 2)
    assert one.dog.due == pytest.approx(seconds + 2 + pause_s)


def test_an_answer_that_comes_in_pieces(watched: Callable[[], Watched]) -> None:
    """It counts when it is complete: the first line is the sentence, the others are the stacks."""
    one = watched()
    one.dog.turn(100.0)
    one.prints("7 of 8 ")
    assert one.dog.turn(101.0) is None
    one.ends(f"ranks wait\n\nr/0 rank 0\n  {'x' * 10_000}\n")
    assert one.dog.turn(102.0) == f"no output for 1 min: {SAID}"
    assert one.dog.stacks == f"\nr/0 rank 0\n  {'x' * 10_000}"
    assert page(one.dog) == f"no output for 1 min: {SAID}\n{one.dog.stacks}\n"


@pytest.mark.parametrize(
    ("answer", "said", "stacks"),
    [
        (f"busy\n{SAID}\na\nb\n", SAID, "a\nb"),
        (f"busy {SAID}\n", f"busy {SAID}", ""),
        ("a \udcff\n", "a \N{REPLACEMENT CHARACTER}", ""),
    ],
)
def test_what_is_said_of_ranks_that_compute(
    watched: Callable[[], Watched], answer: str, said: str, stacks: str
) -> None:
    """The first line alone says that they do, and no sentence repeats it."""
    one = watched()
    one.dog._patience = 3
    one.dog.turn(300.0)
    os.write(one.ends_[-1], answer.encode("utf-8", "surrogateescape"))
    one.ends()
    assert one.dog.turn(301.0) == f"no output for 5 min: {said}"
    assert (one.dog.stacks, one.dog.silent) == (stacks, True)


def test_ranks_that_compute_are_waited_for_once_per_silence(watched: Callable[[], Watched]) -> None:
    """Three times as long; after output, or in a new attempt, the time is what it was, and they get it again."""
    one = watched()
    for begin in (0.0, 1000.0):
        one.dog.turn(begin + 100.0)
        one.ends(f"busy\n{SAID}\n")
        assert one.dog.turn(begin + 101.0) is None
        one.dog.turn(begin + 299.9)
        assert not one.ends_
        one.sign += 1
        one.dog.turn(begin + 350.0)
        one.dog.turn(begin + 449.9)
        assert not one.ends_
        one.dog.turn(begin + 450.0)
        one.ends(f"busy\n{SAID}\n")
        assert (one.dog.turn(begin + 451.0), one.dog.silent) == (None, False)
        one.dog.begin(begin + 1000.0)


def test_an_answer_of_an_attempt_that_is_over(watched: Callable[[], Watched]) -> None:
    """The next attempt does not hear it, and nothing stays open for it."""
    one = watched()
    one.dog.turn(100.0)
    one.prints("old\n")
    one.dog.turn(100.5)
    one.dog.begin(200.0)
    assert (one.dog.due, one.dog.silent) == (200.0, False)
    with pytest.raises(BrokenPipeError):
        one.prints("older\n")
    os.close(one.ends_.pop())
    one.dog.turn(299.9)
    assert not one.ends_
    one.dog.turn(300.0)
    one.ends("new\n")
    assert one.dog.turn(301.0) == "no output for 1 min: new"


@pytest.mark.parametrize("at", [189.9, 190.0])
def test_how_long_an_answer_is_waited_for(watched: Callable[[], Watched], at: float) -> None:
    """A minute and a half, to the moment; what was printed until then is said."""
    one = watched()
    one.dog.turn(100.0)
    one.prints(f"{SAID}\n")
    assert (one.dog.turn(at) is None) is (at < 190.0)
    if at >= 190.0:
        assert one.dog.text == f"no output for 3 min: {SAID}"


@pytest.mark.parametrize(
    ("quiet_s", "span"),
    [(100, "1 min"), (119.9, "1 min"), (120, "2 min"), (3599, "59 min"), (3600, "1 h 0 min"), (90060, "25 h 1 min")],
)
def test_how_long_it_has_been_silent(watched: Callable[[], Watched], quiet_s: float, span: str) -> None:
    """In seconds below a minute, then in minutes, and in hours and minutes."""
    one = watched()
    one.dog.turn(quiet_s)
    one.ends(SAID)
    assert one.dog.turn(quiet_s) == f"no output for {span}: {SAID}"


@pytest.mark.parametrize(("quiet_s", "span"), [(59.9, "59 s"), (60.0, "1 min")])
def test_a_short_silence(watched: Callable[[float], Watched], quiet_s: float, span: str) -> None:
    """A minute is the first that is not given in seconds."""
    one = watched(10.0)
    one.dog.turn(10.0)
    one.ends(SAID)
    assert one.dog.turn(quiet_s) == f"no output for {span}: {SAID}"


def test_signs_of_files(tmp_path: Path) -> None:
    """Their sizes and times: a file that appears, grows or is only touched is a sign; nothing stays open."""
    path = tmp_path / "log"
    paths = [str(path), str(tmp_path / "none")]
    before = os.listdir("/proc/self/fd")
    found = [marks(paths)]
    path.write_text("a")
    os.utime(path, ns=(5, 5))
    found.append(marks(paths))
    path.write_text("ab")
    os.utime(path, ns=(5, 5))
    found.append(marks(paths))
    os.utime(path, ns=(6, 6))
    found.append(marks(paths))
    assert found == [[(0, 0), (0, 0)], [(1, 5), (0, 0)], [(2, 5), (0, 0)], [(2, 6), (0, 0)]]
    assert os.listdir("/proc/self/fd") == before


def test_what_is_left_in_the_folder(tmp_path: Path) -> None:
    """The report, and the report with its stacks; a folder that is gone, or a full disk, is no error."""
    dog = Watchdog({}, {})
    dog.text, dog.stacks = "silent", "a stack"
    assert seen(str(tmp_path)) == ""
    put_down(str(tmp_path), dog)
    assert seen(str(tmp_path)) == "silent"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        HANG_FILE: "silent",
        STACKS_FILE: "silent\na stack\n",
    }
    put_down(str(tmp_path / "none"), dog)
    (tmp_path / HANG_FILE).write_bytes(b"a \xff")
    assert seen(str(tmp_path)) == "a \N{REPLACEMENT CHARACTER}"
