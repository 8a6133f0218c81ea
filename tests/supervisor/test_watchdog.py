"""A job that is silent is looked into once, and is left alone, ended or started again, as it was asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import GUARDIAN, Fork, forked, request, role, state
from torchx.supervisor.layout import HANG_FILE, STACKS_FILE
from torchx.supervisor.supervise import Supervisor
from torchx.supervisor.watchdog import Watchdog

SAID = "7 of 8 ranks wait"
Answer = Callable[[str], None]


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pids of the programs that look into the job: earlier tests may have left children, too."""
    spawn, made = os.posix_spawn, []
    monkeypatch.setattr(os, "posix_spawn", lambda *args, **how: made.append(spawn(*args, **how)) or made[-1])
    return made


@pytest.fixture
def answer(tmp_path: Path, programs: list[int]) -> Answer:
    """Has the program that looks into the job print this, and waits for its end."""

    def give(text: str) -> None:
        (tmp_path / "answer").write_text(text)
        os.waitpid(programs.pop(), 0)

    return give


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "stdout.log"
    path.touch()
    return path


@pytest.fixture
def watched(tmp_path: Path, log: Path) -> Watchdog:
    """A job that may be silent for 10 s; what looks into it prints what :func:`answer` has it say."""
    program = ["/bin/sh", "-c", f"cat '{tmp_path}/answer'"]
    asked: Any = {"seconds": 10, "action": "stacks", "program": program, "files": [str(log), str(tmp_path / "mark")]}
    os.mkfifo(tmp_path / "answer")
    watchdog = Watchdog(asked, {"PATH": os.environ["PATH"]})
    watchdog.begin(0.0)
    return watchdog


def test_without_one_nothing_is_ever_due() -> None:
    """A job without a watchdog wakes nobody."""
    watchdog = Watchdog({}, {})
    watchdog.begin(5.0)
    assert watchdog.due is None


def test_silence_is_looked_into_once(watched: Watchdog, log: Path, answer: Answer) -> None:
    """Nothing is said before there is an answer, nothing twice, and then that the job goes on."""
    assert watched.turn(9.9) is None
    assert not watched.silent
    assert watched.turn(10.0) is None
    assert watched.turn(11.0) is None  # the answer is not there yet
    answer(SAID)
    assert watched.turn(12.0) == f"no output for 12 s: {SAID}"
    assert watched.silent
    assert watched.turn(100.0) is None
    log.write_text("more")
    assert watched.turn(200.0) == f"it continued after 3 min; before that, no output for 12 s: {SAID}"
    assert not watched.silent
    assert watched.turn(209.0) is None
    watched.turn(210.0)
    answer("again")
    assert watched.turn(211.0) == "no output for 11 s: again"
    log.write_text("more, and more")
    assert watched.turn(320.0) == "it continued after 2 min; before that, no output for 11 s: again"


@pytest.mark.parametrize("name", ["stdout.log", "mark"])
def test_output_and_progress_are_signs_of_life(watched: Watchdog, tmp_path: Path, name: str, answer: Answer) -> None:
    """Either will do: a line of any replica, or a mark of progress."""
    (tmp_path / name).write_text("x")
    assert watched.turn(9.0) is None
    assert watched.turn(18.9) is None
    assert not watched.silent
    watched.turn(19.0)
    assert watched.silent
    answer("")


def test_who_computes_has_three_times_as_long(watched: Watchdog, answer: Answer) -> None:
    """A slow start, a long evaluation: no alarm; but one that goes on for ever is none of these."""
    watched.turn(10.0)
    answer(f"busy\n{SAID}")
    assert (watched.turn(11.0), watched.silent) == (None, False)
    assert watched.turn(29.0) is None
    watched.turn(30.0)
    answer(f"busy\n{SAID}")
    assert watched.turn(31.0) == f"no output for 31 s: {SAID}"


def test_without_an_answer_it_is_said_all_the_same(watched: Watchdog, answer: Answer) -> None:
    """A program that hangs itself does not keep the alarm back."""
    watched.turn(10.0)
    assert watched.turn(99.0) is None
    assert watched.turn(100.0) == "no output for 1 min: what the ranks are doing is not known"
    answer(SAID)  # too late
    assert watched.turn(101.0) is None


def test_a_program_that_ends_without_a_word_is_not_waited_for(log: Path, programs: list[int]) -> None:
    """Nor is one that cannot be started."""
    for program in ("/bin/false", "/no/such/program"):
        watchdog = Watchdog({"seconds": 10, "action": "stacks", "program": [program], "files": [str(log)]}, {})
        watchdog.begin(0.0)
        watchdog.turn(10.0)
        while programs:
            os.waitpid(programs.pop(), 0)
        assert watchdog.turn(10.2) == "no output for 10 s: what the ranks are doing is not known"


def test_whoever_sees_the_job_through_may_say_what_a_sign_is(programs: list[int]) -> None:
    """An engine has no files."""
    lines = ["a"]
    asked: Any = {"seconds": 10, "action": "stacks", "program": ["/bin/false"]}
    watchdog = Watchdog(asked, {}, lambda: len(lines))
    watchdog.begin(0.0)
    lines.append("b")
    assert watchdog.turn(9.0) is None
    assert watchdog.turn(18.0) is None
    assert not watchdog.silent
    watchdog.turn(19.0)
    assert watchdog.silent
    os.waitpid(programs.pop(), 0)


def test_who_goes_on_while_it_is_looked_into_was_not_silent(watched: Watchdog, log: Path, answer: Answer) -> None:
    """A look takes seconds: nothing is said, and the time counts from then on."""
    watched.turn(10.0)
    log.write_text("more")
    answer(SAID)
    assert (watched.turn(12.0), watched.silent) == (None, False)
    assert watched.turn(13.0) is None
    assert watched.turn(22.9) is None
    assert not watched.silent
    watched.turn(23.0)
    assert watched.silent
    answer("")


def test_between_two_attempts_nobody_watches(watched: Watchdog) -> None:
    """And the next one has all of its time."""
    watched.forget()
    assert watched.due is None
    watched.begin(100.0)
    assert watched.due == 100.0
    assert watched.turn(109.0) is None
    assert not watched.silent


# -- in a supervisor -----------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> str:
    return str(tmp_path / "job")


def run(job: str, script: str, action: str, *, again: str = "") -> Fork:
    """A job that is silent from its start; who looks into it answers at once."""
    asked = request(job, role(script), grace_s=5.0)
    program = ["/bin/sh", "-c", f"echo '{SAID}'; echo; echo 'r/0 rank 0'; echo '    train.py:3'"]
    asked["watchdog"] = {"seconds": 0.3, "action": action, "program": program, "files": [f"{job}/x"]}
    if again:
        asked["again"] = ["/bin/sh", "-c", again]
    with forked(lambda: Supervisor(asked, GUARDIAN).run()) as fork:
        assert fork.end() == 0
    return fork


def test_it_never_ends_a_job_unasked(job: str) -> None:
    """What was seen is on record while the job runs, and after it."""
    path = os.path.join(job, HANG_FILE)
    run(job, f'while ! test -e "{path}"; do sleep 0.02; done; exit 0', "stacks")
    ended = state(job)
    assert (ended.state, ended.msg, ended.kind) == ("SUCCEEDED", "", "")
    assert Path(path).read_text().endswith(f": {SAID}")
    assert Path(job, STACKS_FILE).read_text() == f"{Path(path).read_text()}\n\nr/0 rank 0\n    train.py:3\n"


def test_it_ends_a_job_that_it_is_told_to_end(job: str) -> None:
    """The reason is what the ranks were doing; a policy for retries is not asked."""
    run(job, "sleep 600", "cancel", again="true")
    ended = state(job)
    assert (ended.state, ended.kind, ended.restarts) == ("FAILED", "timeout", 0)
    assert ended.msg.endswith(f": {SAID}")


def test_it_ends_an_attempt_and_watches_the_next(job: str, tmp_path: Path) -> None:
    """Whether there is another one is decided as ever."""
    count = f"echo x >>'{tmp_path}/asked'; test $(wc -l <'{tmp_path}/asked') -lt 2"
    run(job, "sleep 600", "retry", again=count)
    ended = state(job)
    assert (ended.state, ended.kind, ended.restarts) == ("FAILED", "timeout", 1)
