"""Marks in the output of a process inside a container, and the signals that it gets through them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from torchx.errors import NotFoundError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.inside import STDERR, STDOUT, Tty, described, marks
from torchx.schedulers.kit.inside.marks import Mark, MarkedProcess, kill_words
from torchx.specs.api import AppState, ReplicaStatus, RoleStatus

Piece = tuple[int, bytes]


def pieces(*given: Piece) -> Any:
    """Hands out the given pieces of output, then its end, and nothing after that."""
    left = iter([*given, None])
    return lambda: next(left)


# -- marks in the output ---------------------------------------------------------------------------


def test_marks_are_removed_wherever_the_output_is_cut() -> None:
    """The program's output is passed on whole, and only what may be the beginning of a mark is held back."""
    key = Mark().text
    plain = b"torchx-tor\nhello"
    whole = b"torchx-tor\n%(key)s42\nhello%(key)s= 3\nexit status 3" % {b"key": key.encode()}
    for first in range(len(whole) + 1):
        for second in range(first, len(whole) + 1, 7):
            mark = Mark()
            mark.text = key
            given = [whole[:first], whole[first:second], whole[second:]]
            assert b"".join(map(mark.take, given)) == plain, given
            assert (mark.who, mark.code, mark.absent) == ("42", 3, False), given


@pytest.mark.parametrize("length", range(1, 24))
def test_a_beginning_of_a_mark_is_held_back(length: int) -> None:
    """It is passed on if another text follows, and at the end of the output."""
    mark = Mark()
    start = mark.text[:length].encode()
    assert mark.take(b"out " + start) == b"out "
    assert mark.take(b"!") == start + b"!"
    assert mark.take(start) == b""
    assert mark.read(pieces()) == (STDERR, start)
    assert mark.read(pieces()) is None


def test_a_mark_whose_line_is_incomplete_is_held_back() -> None:
    """What precedes it is not."""
    mark = Mark()
    assert mark.take(f"out {mark.text}4".encode()) == b"out "
    assert (mark.who, mark.take(b"2"), mark.who) == ("", b"", "")
    assert (mark.take(b"\nmore"), mark.who) == (b"more", "42")


@pytest.mark.parametrize(
    ("tty", "ours", "other"), [(None, STDERR, STDOUT), (Tty(), STDOUT, STDERR)], ids=["plain", "tty"]
)
def test_only_one_stream_has_marks(tty: Tty | None, ours: int, other: int) -> None:
    """stderr, or the terminal; the same text on the other one is the program's own."""
    mark = Mark(tty)
    text = f"{mark.text}42\n".encode()
    source = pieces((other, text), (ours, text), (ours, b"a"), (other, b""), (ours, text + b"b"))
    assert [mark.read(source) for _ in range(4)] == [(other, text), (ours, b"a"), (ours, b"b"), None]
    mark = Mark(tty)
    mark.text = text.decode().removesuffix("42\n")
    mark.seek(pieces((other, text)))
    assert mark.who == ""
    mark.seek(pieces((other, text), (ours, b"out" + text), (ours, text.replace(b"42", b"43"))))
    assert mark.who == "42"


def test_a_script_that_found_no_process() -> None:
    """Nothing is read after its mark, and nobody is signalled."""
    mark = Mark()
    done: list[str] = []
    mark.once_known(done.append)
    source = pieces((STDERR, f"{mark.text}-\n".encode()))
    assert mark.read(source) is None
    assert (mark.absent, mark.who, mark.code, done) == (True, "", None, [])
    assert mark.read(source) is None
    mark.seek(source)
    assert source() is None  # nobody has read so far
    mark = Mark()
    mark.seek(pieces((STDERR, f"{mark.text}-\n".encode()), (STDERR, f"{mark.text}42\n".encode())))
    assert (mark.absent, mark.who) == (True, "")


def test_what_waits_for_the_pid_is_done_once_and_in_order() -> None:
    """When it becomes known, or at once."""
    mark = Mark()
    done: list[str] = []
    for name in "ab":
        mark.once_known(lambda who, name=name: done.append(name + who))  # type: ignore[misc]  # a default
    assert done == []
    mark.take(f"{mark.text}42\n".encode())
    assert done == ["a42", "b42"]
    mark.once_known(lambda who: done.append("c" + who))
    assert done == ["a42", "b42", "c42"]


def test_two_marks_differ() -> None:
    """So that no program can print one by chance."""
    assert Mark().text != Mark().text


@pytest.mark.parametrize(("tty", "term"), [(None, "outer"), (Tty(91, 37, "it's"), "it's")], ids=["plain", "tty"])
def test_the_script_reports_its_pid_and_becomes_the_program(tty: Tty | None, term: str) -> None:
    """Its words arrive unchanged, and TERM is that of the terminal."""
    mark = Mark(tty)
    program = ["sh", "-c", 'printf "%s|" "$$" "$TERM" "$@"', "sh", "a b", "$x"]
    done = subprocess.run(
        mark.words(program), env={"PATH": "/usr/bin:/bin", "TERM": "outer"}, capture_output=True, text=True, check=True
    )
    assert mark.take(done.stderr.encode()) == b""
    assert done.stdout == f"{mark.who}|{term}|a b|$x|"


# -- a process that reports its pid ----------------------------------------------------------------


class Link:
    def __init__(self, calls: list[object], broken: bool) -> None:
        self._calls, self._broken = calls, broken

    def settimeout(self, seconds: float) -> None:
        self._calls.append("patience")
        if self._broken:
            raise OSError("it is gone")

    def close(self) -> None:
        self._calls.append("closed")


class Process(MarkedProcess):
    def __init__(self, tty: Tty | None = None, *, over: bool | None = None, broken: bool = False) -> None:
        super().__init__(tty)
        self.calls: list[object] = []
        self.output: Iterable[Piece] = ()
        self._link = Link(self.calls, broken)
        self._broken = broken
        if over is not None:
            self._over = over

    def _piece(self) -> Piece | None:
        self.calls.append("read")
        self.output = iter(self.output)
        return next(self.output, None)

    def _end_stdin(self) -> None:
        self.calls.append("stdin")
        if self._broken:
            raise BrokenPipeError

    def _signal(self, who: str, number: int | None) -> None:
        self.calls.append((who, number))

    def say(self, text: str) -> bytes:
        return f"{self._mark.text}{text}\n".encode()

    def write(self, data: bytes) -> None: ...

    def resize(self, columns: int, rows: int) -> None: ...

    def wait(self) -> int:
        return -1 if self._mark.code is None else self._mark.code


ENDED = ["patience", "read", ("7", None), "closed"]


@pytest.mark.parametrize(
    ("said", "over", "broken", "calls", "code"),
    [
        (["7"], None, False, ENDED, 129),
        (["7", "= 3"], None, False, ["patience", "read", ("7", None), "closed"], 129),
        ([], None, False, ["patience", "read", "closed"], -1),
        (["-"], None, False, ["patience", "read", "closed"], -1),
        (["7"], True, False, ["closed"], -1),
        (["7"], None, True, ["patience", "closed"], -1),
    ],
    ids=["runs", "about to end", "never said", "not found", "is over", "lost"],
)
def test_closing_ends_a_process_as_soon_as_its_pid_is_known(
    said: list[str], over: bool | None, broken: bool, calls: list[object], code: int
) -> None:
    """Whatever has happened, the connection is closed; one that has ended gets no signal."""
    process = Process(over=over, broken=broken)
    process.output = [(STDERR, process.say(text)) for text in said]
    process.close()
    assert (process.calls, process.wait()) == (calls, code)


@pytest.mark.parametrize(
    ("said", "calls", "code"),
    [
        (["7"], ["patience", ("7", None), "closed"], 129),
        (["7", "= 3"], ["closed"], 3),
        (["= 3"], ["closed"], 3),
    ],
    ids=["runs", "has ended", "has ended without a pid"],
)
def test_closing_after_its_output_was_read(said: list[str], calls: list[object], code: int) -> None:
    """A pid that is known is not sought again, and one whose exit code is known gets no signal."""
    process = Process()
    process.output = [(STDERR, b"".join(map(process.say, said)) + b"!")]
    process.read()
    process.calls.clear()
    with process as same:
        assert same is process
    assert (process.calls, process.wait()) == (calls, code)


@pytest.mark.parametrize(
    ("tty", "broken", "calls"), [(None, False, ["stdin"]), (None, True, ["stdin"]), (Tty(), False, [])]
)
def test_its_stdin_is_closed_unless_it_is_a_terminal(tty: Tty | None, broken: bool, calls: list[str]) -> None:
    """A process that has ended does not mind."""
    process = Process(tty, broken=broken)
    process.close_stdin()
    assert process.calls == calls


def test_a_signal_waits_for_the_pid() -> None:
    """It is sent when the pid has been read."""
    process = Process()
    process.send_signal(10)
    assert process.calls == []
    process.output = [(STDERR, process.say("7") + b"x")]
    assert process.read() == (STDERR, b"x")
    process.send_signal(12)
    assert process.calls == ["read", ("7", 10), ("7", 12)]


def test_patience_with_a_process_that_does_not_say_its_pid() -> None:
    """It is seconds, not for ever."""
    assert 5 <= marks._END_S <= 10


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "member"])
@pytest.mark.parametrize(("number", "by"), [(None, signal.SIGHUP), (signal.SIGUSR1, signal.SIGUSR1)])
def test_the_words_that_signal_a_process(number: int | None, by: int, leads: bool) -> None:
    """They reach its group, or it alone if it leads none; None sends SIGHUP, then SIGTERM."""
    with subprocess.Popen(["sleep", "600"], start_new_session=leads) as process:
        subprocess.run(kill_words(str(process.pid), number), stderr=subprocess.DEVNULL, check=False)
        assert process.wait() == -by
    script = "trap '' HUP; echo; exec sleep 600"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=leads) as process:
        assert process.stdout.readline() == b"\n"
        subprocess.run(kill_words(str(process.pid), None), stderr=subprocess.DEVNULL, check=False)
        assert process.wait() == -signal.SIGTERM


# -- what cannot be entered ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "said", "hint"),
    [
        (None, "there is no job `j` any more", "on record"),
        (AppState.SUBMITTED, "is not running: it is SUBMITTED", "try again"),
        (AppState.PENDING, "replica w/1 of `j` is not running: it is PENDING", "try again"),
        (AppState.RUNNING, "it is just ending, or starting", "try again"),
        (AppState.SUCCEEDED, "it is SUCCEEDED", "torchx log"),
        (AppState.FAILED, "it is FAILED", "torchx log"),
        (AppState.CANCELLED, "it is CANCELLED", "torchx log"),
    ],
)
def test_why_a_replica_cannot_be_entered(state: AppState | None, said: str, hint: str) -> None:
    """By the state of the replica; if the scheduler does not know the replica, by that of the job."""
    for known in (True, False):
        replicas = [ReplicaStatus(k, AppState.UNSUBMITTED if k == 0 or not known else state, "w", "") for k in range(3)]
        found = DescribeAppResponse(
            app_id="j",
            state=AppState.UNKNOWN if known else state or AppState.UNKNOWN,
            roles_statuses=[RoleStatus("w" if known else "v", replicas)],
        )
        error = described(found if state is not None else None, "j", "w", 1)
        assert isinstance(error, NotFoundError)
        assert said in str(error) and hint in str(error.hint)


def test_the_streams_and_a_terminal_whose_size_nobody_knows() -> None:
    """The streams have the numbers of their descriptors, and the terminal is the usual one."""
    assert (STDOUT, STDERR) == (1, 2)
    assert Tty() == (80, 24, "xterm-256color")
