"""How a caller of the launcher decides when it cannot know whether its job was taken, and what it leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.supervisor.forks import Clock, for_job, in_fork
from torchx.supervisor import client as client_module
from torchx.supervisor.client import LauncherClient, LauncherError

Told = tuple[Callable[[], object], bytes]


class Doubtful(LauncherClient):
    """Its launchers answer as they are told; before each answer something else may happen."""

    def __init__(self, *told: Told) -> None:
        super().__init__()
        self.told = list(told)
        self.starts = 0

    def _start(self) -> None:
        if self._requests < 0:
            self.starts += 1
            self._requests, self._answers = os.pipe()
            self._process = os.getpid()

    def _exchange(self, message: bytes, meanwhile: Callable[[], None] | None) -> bytes:
        before, answer = self.told.pop(0)
        before()
        return answer


def _nothing() -> None:
    pass


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.0)
    monkeypatch.setattr(client_module, "time", clock)
    return clock


def test_ten_attempts_are_enough(job: Path) -> None:
    """If supervisors die as often as that, something else is wrong."""
    client = Doubtful(*[(_nothing, b"D")] * 11)
    with pytest.raises(LauncherError, match="ended unexpectedly"):
        client.submit(for_job(job))
    assert (len(client.told), client.starts) == (1, 10)
    client.close()


def test_a_supervisor_that_had_the_request_was_killed(job: Path) -> None:
    """The launcher lives, and takes the job once more; what the killed one had made is gone by then."""
    (job / "state").write_text("x")
    os.mkfifo(job / "control")
    seen: list[list[str]] = []
    client = Doubtful((_nothing, b"Djob"), (lambda: seen.append(os.listdir(job)), b"K\n"))
    client.submit(for_job(job))
    assert (seen, client.starts) == ([[]], 1)
    client.close()


@pytest.mark.parametrize(
    ("answers", "left"), [([b"", b"", b"K\n"], 1), ([b"Djob", b"Djob", b"K\n"], 1), ([b"D", b"", b"D", b"K\n"], 0)]
)
def test_two_certain_failures_are_enough(job: Path, answers: list[bytes], left: int) -> None:
    """One that is in doubt does not count among them."""
    client = Doubtful(*((_nothing, answer) for answer in answers))
    if left:
        with pytest.raises(LauncherError, match="ended unexpectedly"):
            client.submit(for_job(job))
    else:
        client.submit(for_job(job))
    assert len(client.told) == left
    client.close()


@pytest.mark.parametrize("answer", [b"Eno room\n", b"E\xff"])
def test_an_error_is_final(job: Path, answer: bytes) -> None:
    """Without any doubt about an earlier attempt its reason is raised, whatever is in the folder."""
    os.mkfifo(job / "control")
    client = Doubtful((_nothing, answer), (_nothing, b"K\n"))
    with pytest.raises(LauncherError) as e:
        client.submit(for_job(job))
    assert (str(e.value), len(client.told)) == (
        "no room" if answer.startswith(b"Eno") else "\N{REPLACEMENT CHARACTER}",
        1,
    )
    client.close()


def test_an_error_after_a_doubt_without_a_fifo(job: Path) -> None:
    """Nobody has the job: the error is the reason."""
    client = Doubtful((_nothing, b"D"), (_nothing, b"Eno room"))
    with pytest.raises(LauncherError, match="no room"):
        client.submit(for_job(job))
    client.close()


# -- whether a job has begun ---------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 999])
def test_a_state_that_is_not_written_yet(job: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """It is waited for, for a second in steps of a millisecond; an empty file is none yet."""
    os.mkfifo(job / "control")
    (job / "state").touch()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == steps:
            (job / "state").write_text("x")

    monkeypatch.setattr(clock, "sleep", sleep)
    assert client_module._has_begun(str(job))
    assert pauses == [0.001] * steps


@pytest.mark.parametrize("held", [True, False])
def test_a_state_that_is_never_written(job: Path, clock: Clock, held: bool) -> None:
    """After a second it counts whether a supervisor still holds the FIFO."""
    os.mkfifo(job / "control")
    reader = os.open(job / "control", os.O_RDONLY | os.O_NONBLOCK)
    if not held:
        os.close(reader)
    assert client_module._has_begun(str(job)) is held
    assert clock.now == pytest.approx(1.0)
    if held:
        os.close(reader)


def test_a_job_that_was_removed_has_begun(job: Path, clock: Clock) -> None:
    """Only one that has ended is removed."""
    assert client_module._has_begun(str(job))
    assert client_module._has_begun(str(job / "none"))
    assert clock.now == 0.0


# -- what is left --------------------------------------------------------------------------------


def test_a_client_lets_go_of_its_launcher() -> None:
    """Its pipes are closed, and the process that started it is waited for; not by a fork of the caller."""

    def steps() -> None:
        client = Doubtful()
        client._start()
        ends = (client._requests, client._answers)
        client._starter = starter = os.posix_spawn("/bin/true", ["true"], {})
        process = client._process
        client._process = 1
        client.close()
        assert (client._requests, client._answers, client._starter) == (*ends, starter)
        client._drop()
        assert os.waitpid(starter, 0)[0] == starter, "it was left to the process that it belongs to"
        assert (client._requests, client._answers, client._starter) == (-1, -1, 0)
        for fd in ends:
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(fd)
        client._process = process
        client.close()

    in_fork(steps)
