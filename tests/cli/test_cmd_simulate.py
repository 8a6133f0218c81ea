"""`torchx simulate`: says what it would do, asks on a terminal, and does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchx.specs import AppState

from .conftest import Call, end, spawn, state, until
from .test_several_jobs import launch


@pytest.mark.parametrize(("answer", "after"), [("y", "FAILED"), ("", "RUNNING")], ids=["yes", "no"])
def test_it_asks_in_a_terminal(torchx: Call, project: Path, answer: str, after: str) -> None:
    """The question shows the fault and its consequences; Enter means no."""
    torchx("run", "utils.sh", "sleep", "600")
    until(lambda: state(torchx) == "RUNNING")
    child = spawn(project, "simulate", "preempt", "@last")
    child.expect("as if it were preempted; it has no policy for retries .*this may be its end")
    child.expect("simulate `preempt`")
    child.sendline(answer)
    assert end(child) == 0
    if after == "FAILED":
        assert torchx("wait", "--timeout", "60", "@last").code == 1
    until(lambda: state(torchx) == after)
    torchx("cancel", "@last")


def test_nobody_is_asked_elsewhere(torchx: Call, project: Path) -> None:
    """Without a terminal there is no question; the JSON of the status has the failure class."""
    torchx("run", "utils.sh", "sleep", "600")
    until(lambda: state(torchx) == "RUNNING")
    done = torchx("simulate", "timeout", "@last")
    assert done.code == 0
    assert "as if it had reached its time limit" in done.err
    waited = torchx("wait", "--timeout", "60", "@last")
    assert waited.code == 1, waited.err
    assert '"class": "timeout"' in torchx("status", "--json", "@last").out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["kil", "@last"], 2, "did you mean `kill`?"),
        (["kill", "@last/nobody/0"], 3, "has no role `nobody`"),
        (["kill", "@last/sh/7"], 3, "has no replica `7`"),
        (["kill", "nothing-there"], 3, "nothing-there"),
        (["kill"], 2, "no job is given"),
    ],
)
def test_what_is_not_there(torchx: Call, project: Path, words: list[str], code: int, said: str) -> None:
    """Usage errors and unknown targets do not affect the job."""
    torchx("run", "utils.sh", "sleep", "600")
    until(lambda: state(torchx) == "RUNNING")
    done = torchx("simulate", *words)
    assert done.code == code
    assert said in done.err
    until(lambda: state(torchx) == "RUNNING")
    torchx("cancel", "@last")


def test_a_scheduler_that_cannot(torchx: Call, paper: Any) -> None:
    """A scheduler without the ability, and a pending job, are errors."""
    job = launch(torchx, paper, AppState.RUNNING)
    done = torchx("simulate", "kill", job)
    assert (done.code, "`paper` cannot simulate faults" in done.err) == (5, True)
    paper.STATES[job] = AppState.PENDING
    done = torchx("simulate", "kill", job)
    assert (done.code, "does not run yet: it is PENDING" in done.err) == (4, True)
