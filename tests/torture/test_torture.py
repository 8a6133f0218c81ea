"""A little of each sweep, so that the sweeps themselves keep working; ``make torture`` does the rest."""

from __future__ import annotations

import os
import random
import re
import signal
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests.torture import __main__ as torture
from tests.torture.calls import Call, Ended
from tests.torture.faults import FAULTS, TOP
from tests.torture.kills import sent
from tests.torture.local_jobs import rows
from tests.torture.rows import Result, Round, Row, attempts

A_FEW = {
    "kills": 2,
    "grace": 2,
    "threads": 1,
    "forks": 1,
    "disks": 4,
    "tasks": 2,
    "commands": 3,
    "servers": 4,
    "folders": 4,
    "canaries": 7,
    "versions": 3,
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
    result = attempts(torture.SWEEPS[name], tmp_path / "place", seed=1, count=count)
    assert (result.tried, result.wrong) == (count, [])
    if name != "versions":  # the verbs that it kills may have ended before
        assert bool(result.reached) == (name in ("kills", "grace", "tasks"))


def test_a_round_that_reached_nothing_does_not_count(tmp_path: Path) -> None:
    """Unless it found something; the table says what was reached, and how many rounds are left out."""
    rounds: list[str | Round] = [
        Round("", ("guardian", "replica")),
        Round("", ()),
        Round("it broke", ()),
        Round("", ("replica",)),
        "",
        "odd",
    ]
    result = attempts(Row("x", "", lambda rng, place: iter(rounds)), tmp_path / "place", seed=1, seconds=60)
    assert (result.tried, result.idle) == (5, 1)
    assert result.wrong == ["attempt 2, after 0 s: it broke", "attempt 5, after 0 s: odd"]
    assert result.notes() == "1 guardian, 2 replicas; 1 round reached none, not counted"
    assert attempts(Row("x", "", lambda rng, place: iter([""])), tmp_path / "other", seed=1, count=1).notes() == ""


def test_whom_a_kill_reaches() -> None:
    """A process that is alive; neither one that nobody has waited for yet, nor one that is gone."""
    pid = os.fork()
    if not pid:
        signal.pause()
    assert sent(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not sent(pid)
    os.waitpid(pid, 0)
    assert not sent(pid)


def test_security_md_has_the_rows() -> None:
    """In their order, with their words; its figures are those of a run."""
    text = (TOP / "SECURITY.md").read_text(encoding="utf-8")
    assert torture.HEAD in text
    listed = re.findall(r"^\| (\w+) \| (.*?) \| [\d,]+ \|", text, re.M)
    assert listed == [(row.name, row.what) for row in torture.ROWS]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_can_be_planted(fault, tmp_path: Path) -> None:
    """Its line is in the sources, once, and the result is a program; tests/backends/local finds each by the sweeps."""
    copy = tmp_path / fault.path
    copy.parent.mkdir(parents=True)
    copy.write_text((TOP / fault.path).read_text(encoding="utf-8"), encoding="utf-8")
    fault.plant(tmp_path)
    compile(copy.read_text(encoding="utf-8"), fault.path, "exec")
    with pytest.raises(LookupError, match=f"is not in {fault.path} once"):
        fault._replace(old="no such line").plant(tmp_path)


def test_a_few_rows(tmp_path: Path) -> None:
    """Of some writers, one of which is killed."""
    found = islice(rows(random.Random(1), tmp_path, writers=3, each=10), 20)
    assert [made.problem if isinstance(made, Round) else made for made in found] == [""] * 20


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
    spent = []

    def attempts(row: Row, place: Path, *, seed: int, seconds: float) -> Result:
        spent.append(seconds)
        return Result(1234, ["it broke"], Counter(guardian=2), 0)

    monkeypatch.setattr(torture, "attempts", attempts)
    assert torture.main(["--minutes", "1", "--seed", "7", "kills", "trees"]) == 1
    assert spent == [48.0, 12.0]
    out = capsys.readouterr().out
    assert "seed 7, 1 minutes" in out
    kills, trees = torture.SWEEPS["kills"].what, torture.SWEEPS["trees"].what
    assert f"| kills | {kills} | 1,234 | 1,233 | 1 | 2 guardians |\n" in out
    assert f"| trees | {trees} | 1,234 | 1,233 | 1 | 2 guardians |\n" in out
    assert out.endswith("\nkills: it broke\n\ntrees: it broke\n")
