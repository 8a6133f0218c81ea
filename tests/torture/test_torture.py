"""A little of each sweep, so that the sweeps themselves keep working; ``make torture`` does the rest."""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

import pytest

from tests.torture import __main__ as torture
from tests.torture.calls import Call, Ended
from tests.torture.local_jobs import rows

A_FEW = {
    "kills": 2,
    "threads": 1,
    "forks": 1,
    "disks": 4,
    "tasks": 2,
    "commands": 3,
    "servers": 4,
    "fuzz": 100,
    "trees": 5,
    "secrets": 4,
}


def test_every_sweep_is_tried_here() -> None:
    """The table of `make torture` has no row that only it knows."""
    assert A_FEW.keys() | {"rows"} == torture.SWEEPS.keys()


@pytest.mark.parametrize(("name", "count"), A_FEW.items(), ids=A_FEW)
def test_a_few_attempts(name: str, count: int, tmp_path: Path) -> None:
    """All of them hold."""
    assert torture.attempts(name, tmp_path / "place", seed=1, count=count) == (count, [])


def test_a_few_rows(tmp_path: Path) -> None:
    """Of some writers, one of which is killed."""
    found = []
    for problem in rows(random.Random(1), tmp_path, writers=3, each=10):
        found.append(problem)
        if len(found) == 20:
            break
    assert found == [""] * 20


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (lambda: 0, ""),
        (lambda: 4, ""),
        (lambda: 70, "exit code 70"),
        (lambda: 1 / 0, "traceback: .*ZeroDivisionError"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "exit code -9"),
    ],
    ids=["well", "documented", "a bug", "raises", "crashes"],
)
def test_what_counts_as_broken(work, problem: str) -> None:
    """An undocumented exit code, a traceback, a signal."""
    assert re.match(f"(?s){problem}", Call(work).ended().problem())
    assert bool(problem) == bool(Call(work).ended().problem())


def test_what_hangs_is_ended() -> None:
    """And counts as broken."""
    ended = Call(signal.pause).ended(0.2)
    assert ended == Ended(None, "", "")
    assert ended.problem().startswith("hangs")


def test_the_table(capsys, tmp_path, monkeypatch) -> None:
    """A row for each sweep, with what broke below it; the exit code says whether something did."""
    monkeypatch.setitem(torture.SWEEPS, "fuzz", lambda rng, place: iter(["", "it broke", ""]))
    assert torture.main(["--minutes", "0.001", "--seed", "7", "fuzz"]) in (0, 1)
    monkeypatch.setattr(torture, "attempts", lambda name, place, **options: (1234, ["it broke"]))
    assert torture.main(["--minutes", "1", "--seed", "7", "fuzz", "trees"]) == 1
    out = capsys.readouterr().out
    assert "seed 7, 1 minutes" in out
    assert "| fuzz | 1,234 | 1,233 | 1 |\n| trees | 1,234 | 1,233 | 1 |\n" in out
    assert out.endswith("\nfuzz: it broke\n\ntrees: it broke\n")
