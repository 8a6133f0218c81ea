"""A time limit at its limits: when ranks are asked for a checkpoint, how often it is looked for, when the attempt ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from torchx.supervisor.limit import Limit
from torchx.supervisor.watchdog import Watchdog


class Files:
    """What a limit of 100 s, of which 40 s are for a checkpoint, reads and writes."""

    def __init__(self, folder: Path) -> None:
        self.ask, self.done = folder / "ask", folder / "done"
        options: Any = {"seconds": 100, "early_s": 40, "text": "100s", "ask": str(self.ask), "progress": str(self.done)}
        self.limit = Limit(options)
        self.limit.begin(0.0)

    def saved(self, after_s: float) -> None:
        """A checkpoint is written so long after it was asked for."""
        self.done.touch()
        os.utime(self.done, (self.ask.stat().st_mtime + after_s,) * 2)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_ranks_are_asked_once(files: Files) -> None:
    """The file that asks them is not written again, or they would save twice."""
    assert files.limit.due == 60.0
    assert not files.limit.is_over(60.0)
    os.utime(files.ask, (5.0, 5.0))
    assert not files.limit.is_over(61.0)
    assert files.ask.stat().st_mtime == 5.0


def test_how_often_a_checkpoint_is_looked_for(files: Files) -> None:
    """Ten times a second, and for the last time when the time is over."""
    files.limit.is_over(60.0)
    assert files.limit.due == pytest.approx(60.1)
    files.limit.is_over(60.1)
    assert files.limit.due == pytest.approx(60.2)
    files.limit.is_over(99.95)
    assert files.limit.due == 100.0
    assert files.limit.is_over(100.0)


@pytest.mark.parametrize(("after_s", "over"), [(-1.0, False), (0.0, True), (1.0, True)])
def test_a_checkpoint_that_counts(files: Files, after_s: float, over: bool) -> None:
    """One from before it was asked for does not; nor is one looked for before the time."""
    files.limit.is_over(60.0)
    files.saved(after_s)
    assert not files.limit.is_over(60.05)
    assert files.limit.is_over(60.2) is over


def test_a_checkpoint_without_a_request(files: Files) -> None:
    """If ranks cannot be asked, an old mark of progress does not end the attempt before its time."""
    files.ask.mkdir()
    files.done.touch()
    assert not files.limit.is_over(60.0)
    assert not files.limit.is_over(99.9)
    assert files.limit.is_over(100.0)


def test_a_preemption_asks_at_once(files: Files) -> None:
    """Before any time is over; a job that supports no checkpoints is not asked."""
    files.limit.ask()
    assert files.ask.exists()
    Limit({}).ask()


def test_an_attempt_asks_for_itself(files: Files) -> None:
    """In the next attempt ranks are asked again, and the checkpoint of the last one does not count."""
    files.limit.is_over(60.0)
    files.saved(1.0)
    files.limit.forget()
    assert (files.limit.due, files.limit.why, files.limit.is_over(1000.0)) == (None, "", False)
    files.ask.unlink()
    files.limit.begin(200.0)
    assert (files.limit.due, files.limit.why) == (260.0, "it reached its time limit of 100s")
    os.utime(files.done, (5.0, 5.0))
    assert not files.limit.is_over(260.0)
    assert files.ask.exists()


def test_a_limit_that_expires_now(files: Files) -> None:
    """All that is left is the time for a checkpoint."""
    files.limit.expire(10.0)
    assert (files.limit.due, files.limit.why) == (10.0, "it reached its time limit (simulated)")
    assert not files.limit.is_over(10.0)
    assert not files.limit.is_over(49.9)
    assert files.limit.is_over(50.0)
    short = Limit({"seconds": 100})
    short.begin(0.0)
    short.expire(10.0)
    assert (short.is_over(9.9), short.is_over(10.0)) == (False, True)


def test_the_watchdog_of_an_attempt() -> None:
    """It watches while the time of an attempt runs."""
    dog = Watchdog({"seconds": 5}, {}, lambda: 0)
    limit = Limit({}, dog)
    limit.begin(7.0)
    assert dog.due == 7.0
    limit.forget()
    assert dog.due is None
