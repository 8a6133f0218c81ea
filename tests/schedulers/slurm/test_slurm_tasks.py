"""Cases of the tasks of sweeps on Slurm in which one operand of a condition decides."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedulers.slurm.test_slurm_scheduler import fake, scheduler
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.slurm.client import SlurmQueries
from torchx.schedulers.slurm.sweeps import Sweep, most_tasks
from torchx.specs import AppState

__all__ = ["fake", "scheduler"]


def run(stdout: str = "", returncode: int = 0, stderr: str = "") -> Any:
    """Answers every command with this."""
    return lambda argv, **_: Completed(list(argv), returncode, stdout, stderr)


# -- sweeps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "most"),
    [("MaxArraySize            = 5", 5), ("MaxArraySize = 0", 1), ("", 1001), ("MaxArraySize = 20001\n", 20001)],
)
def test_the_size_of_an_array(text: str, most: int) -> None:
    """As configured; else Slurm's default."""
    assert most_tasks(run(text)) == most


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Of seven tasks, of which five were submitted."""
    (tmp_path / "array.sh").write_text("#!/bin/bash\ncount=7 size=5 width=\n")
    (tmp_path / "chunks").write_text("0 5 11\nx\n1 2\n")
    return Sweep("sweep-11", JobFolder(LocalFiles(), str(tmp_path)), run())


def test_the_arrays_of_a_sweep(sweep: Sweep, tmp_path: Path) -> None:
    """Damaged lines are left out; without any the first array is that of its id."""
    assert (sweep.count, sweep.chunks) == (7, [(0, 5, "11")])
    assert [sweep.element(k) for k in (0, 4, 5)] == ["11_0", "11_4", ""]
    assert sweep.log_path("r", 4).stdout == f"{tmp_path}/r/0+4.log"
    (tmp_path / "chunks").write_text("")
    assert Sweep("sweep-11", sweep.folder, run()).chunks == [(0, 5, "11")]
    (tmp_path / "array.sh").unlink()
    assert Sweep("sweep-11", sweep.folder, run()).look() is None


@pytest.mark.parametrize(
    ("last", "cancelled", "chunks", "due"),
    [
        ("SUCCEEDED", False, "0 5 11\n", True),
        ("RUNNING", False, "0 5 11\n", False),
        ("SUCCEEDED", True, "0 5 11\n", False),
        ("SUCCEEDED", False, "0 5 11\n5 2 12\n", False),
    ],
)
def test_when_more_arrays_are_due(
    last: str, cancelled: bool, chunks: str, due: bool, sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the last task of the previous one has ended, and there are more."""
    (tmp_path / "chunks").write_text(chunks)
    if cancelled:
        (tmp_path / "cancelled").touch()
    asked: list[list[str]] = []
    again = Sweep("sweep-11", sweep.folder, lambda argv: asked.append(argv) or Completed(argv, 0, "", ""))
    states = [AppState.SUCCEEDED] * 4 + [AppState[last]] + [AppState.PENDING] * 2
    again.more(SimpleNamespace(states=states))  # type: ignore[arg-type]  # a stand-in
    assert asked == ([["bash", f"{tmp_path}/array.sh", "more", "11"]] if due else [])


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ("0 0 100\n1 3 100\n", {0: 0, 1: 3}),
        ("0 0 100\n0 3 200\n", {0: 3}),
        ("0 0 200\n0 3 100\n", {0: 0}),
        ("0 0 100\n0 3 100\n", {0: 3}),
        ("0 0\n1\n2 x 100\n3 4 5 6\n4 0 100", {4: 0}),
        ("", {}),
    ],
)
def test_ends_of_tasks(lines: str, codes: dict[int, int], sweep: Sweep, tmp_path: Path) -> None:
    """The last one of each counts; half a line is none."""
    (tmp_path / "ends.n1").write_text(lines)
    (tmp_path / "other").write_text("6 0 999\n")
    assert {k: code for k, (code, _) in sweep._ends().items()} == codes


@pytest.mark.parametrize(
    ("names", "stopped"),
    [([], []), (["skipped.3", "skipped.x", "skip.4"], [3]), (["cancelled", "skipped.3"], list(range(7)))],
)
def test_tasks_that_were_cancelled(names: list[str], stopped: list[int], sweep: Sweep, tmp_path: Path) -> None:
    """One by one, or all of them."""
    for name in names:
        (tmp_path / name).touch()
    assert [k for k in range(9) if k in sweep._stopped()] == stopped


def test_states_by_number(sweep: Sweep) -> None:
    """Of this sweep's arrays alone; ranges are those of waiting tasks."""
    text = "11_0|RUNNING\n 11_[2-3,4%2]|PENDING|x\n12_1|RUNNING\nodd\n11_1|COMPLETED\n"
    assert {k: state.name for k, state in sweep._by_number(text).items()} == {
        0: "RUNNING", 1: "SUCCEEDED", 2: "PENDING", 3: "PENDING", 4: "PENDING",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "active", "states"),
    [
        ("0 0 9\n1 3 9\n2 137 9\n", "11_3|RUNNING\n11_4|PENDING\n", "S:0 F:3 F:-9 R P P P"),
        ("0 143 9\n1 143 9\n", "11_0|RUNNING\n11_[2-4]|PENDING\n", "R F:-15 P P P P P"),
        ("0 128 9\n1 129 9\n", "11_[2-4]|PENDING\n", "F:128 F:-1 P P P P P"),
    ],
)
def test_states_of_tasks(ends: str, active: str, states: str, sweep: Sweep, tmp_path: Path) -> None:
    """Their own record counts, unless Slurm starts one again that it has terminated; those of later arrays wait."""
    (tmp_path / "ends.n1").write_text(ends)
    again = Sweep("sweep-11", sweep.folder, run(active))
    table = again.look()
    assert table is not None
    shown = [
        state.name[0] + ("" if code is None else f":{code}")
        for state, code in zip(table.states, table.exit_codes, strict=True)
    ]
    assert " ".join(shown) == states
    assert list(table.ended[:1]) == [9.0 if ends[2:5] != "143" else 0.0]
    assert not again.is_over()


def test_a_sweep_is_over(sweep: Sweep, tmp_path: Path) -> None:
    """When each task has ended for good: Slurm may start one again that it terminated, unless it was cancelled."""
    (tmp_path / "ends.n1").write_text("".join(f"{k} 0 9\n" for k in range(6)))
    assert not sweep.is_over()
    (tmp_path / "ends.n2").write_text("0 0 9\n")
    assert not sweep.is_over()
    (tmp_path / "ends.n2").write_text("6 143 9\n")
    assert not sweep.is_over()
    (tmp_path / "skipped.6").touch()
    assert sweep.is_over()


def test_what_vanished_is_looked_up(sweep: Sweep, tmp_path: Path) -> None:
    """In accounting, and among the jobs that Slurm still remembers, which is newer."""
    answers = {
        "env": "11_0|RUNNING\n",
        "sacct": "11_1|COMPLETED\n11_2|NODE_FAIL\n11_3|RUNNING\n",
        "squeue": "11_2|CANCELLED\n",
    }
    seen: list[list[str]] = []

    def asks(argv: list[str]) -> Completed:
        seen.append(argv)
        return Completed(argv, 0, answers[argv[0]], "")

    table = Sweep("sweep-11", sweep.folder, asks).look()
    assert table is not None
    assert [state.name for state in table.states] == [
        "RUNNING", "SUCCEEDED", "CANCELLED", "UNKNOWN", "UNKNOWN", "PENDING", "PENDING",
    ]  # fmt: skip
    assert table.exit_codes == [None, 0, None, None, None, None, None]
    assert [argv[0] for argv in seen] == ["env", "sacct", "squeue"]
    assert all("--jobs=11" in argv for argv in seen)


def test_a_job_with_a_comment() -> None:
    """The first of the user's jobs with exactly this comment."""
    text = "10 torchx:a-1\n9 torchx:a-1\n8 torchx:a-1 more\n7\n6 torchx:a\n"
    queries = SlurmQueries(run(text))
    assert queries.commented("torchx:a-1") == "9"
    assert queries.commented("torchx:b") is None
    assert SlurmQueries(run("10\n9\n")).submitted("a-1") == "9"
    assert SlurmQueries(run("")).submitted("a-1") is None
