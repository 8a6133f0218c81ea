"""`torchx usage`: tables and documents of what was used, its prices, and the question before a large job."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest

import torchx.cli
from torchx.runs import default_registry

from .conftest import Call, end, runs, spawn

SCHEMA = json.loads((Path(torchx.cli.__file__).parent / "schemas/usage.json").read_text())
GPUS = ("run", "--gpu", "8", "--timeout")


@pytest.fixture
def two_hours(torchx: Call, project: Path) -> None:
    """A run on record with 2 GPUs for two hours, and one of a quarter of an hour without GPUs."""
    torchx("run", "--gpu", "2", "--name", "echo", "--", "true")
    torchx("run", "--cpu", "4", "--", "true")
    for app_id, hours in (("echo", 2.0), ("sh", 0.25)):
        torchx("wait", f"@{app_id}")
        run = default_registry().find(f"@{app_id}")
        sql = "UPDATE runs SET started_at = ?, ended_at = ? WHERE id = ?"
        default_registry().store().execute(sql, (1.7e9, 1.7e9 + hours * 3600, run.id))


def test_tables(torchx: Call, two_hours: None) -> None:
    """The group with the most GPU-hours comes first, the sum last; a pipe gets tabs."""
    outcome = torchx("usage")
    assert outcome.code == 0
    rows = [line.split("\t") for line in outcome.out.splitlines()]
    assert rows[0] == ["NAME", "RUNS", "GPU HOURS", "CPU HOURS"]
    assert [(row[0], row[1], row[2]) for row in rows[1:]] == [
        ("echo", "1", "4.0"),
        ("sh", "1", "0.0"),
        ("total", "2", "4.0"),
    ]
    assert torchx("usage", "--since", "1d").out.splitlines()[1:] == ["total\t0\t0.0\t0.0"]


def test_prices(torchx: Call, project: Path, two_hours: None, caplog: pytest.LogCaptureFixture) -> None:
    """That of a scheduler counts before the general one; a wrong one is named with its line."""
    config = project / ".torchxconfig"
    config.write_text("[prices]\ncurrency = EUR\ngpu_hour = 9\nlocal_cwd.gpu_hour = 2.5\ncpu_hour = 0.1\n")
    rows = [*csv.DictReader(io.StringIO(torchx("usage", "--csv").out))]
    assert [(row["NAME"], row["GPU HOURS"]) for row in rows] == [("echo", "4.000"), ("sh", "0.000")]
    for row in rows:
        cost = float(row["GPU HOURS"]) * 2.5 + float(row["CPU HOURS"]) * 0.1
        assert float(row["COST EUR"]) == pytest.approx(cost, abs=0.006)
    config.write_text("[prices]\ngpu_hour = cheap\ngpu_our = 2\n")
    outcome = torchx("usage")
    assert (outcome.code, outcome.hint()) == (2, "a price, such as 2.50")
    assert "2: `gpu_hour` is `cheap`" in outcome.err
    config.write_text("[prices]\ngpu_hour = 1\ngpu_our = 2\n")
    assert torchx("usage").code == 0
    assert "`[prices]` has no key `gpu_our`, did you mean `gpu_hour`?" in caplog.text


@pytest.mark.parametrize("by", ["name", "user", "scheduler", "day"])
def test_documents(torchx: Call, two_hours: None, by: str) -> None:
    document = json.loads(torchx("usage", "--json", "--by", by).out)
    jsonschema.validate(document, SCHEMA)
    assert document["total"]["gpu_hours"] == pytest.approx(4.0)
    assert sum(group["gpu_hours"] for group in document["groups"]) == pytest.approx(4.0)
    if by == "day":
        assert next(group["key"] for group in document["groups"]).startswith("2023-11-1")


def test_two_formats(torchx: Call, project: Path) -> None:
    assert torchx("usage", "--csv", "--json").code == 2
    assert torchx("usage", "--by", "moon").code == 2


def test_a_sweep_counts_the_time_of_each_task(torchx: Call, project: Path) -> None:
    """The tasks run one after the other, and each asks for two CPUs."""
    torchx("sweep", "--cpu", "2", "--max-parallel", "1", "--grid", "x=1,1,1", "--", "sleep", "{x}")
    torchx("wait", "@last")
    runs(torchx)
    [group] = json.loads(torchx("usage", "--json").out)["groups"]
    assert 6 / 3600 <= group["cpu_hours"] < 30 / 3600
    assert (group["runs"], group["unseen"]) == (1, 0)


@pytest.mark.parametrize("limit", ["10", "16.5"])
def test_a_question_before_a_large_job(torchx: Call, project: Path, limit: str) -> None:
    """Without a terminal the job is refused unless `--yes` is given; `rerun` and `sweep` do the same."""
    (project / ".torchxconfig").write_text(f"[cli]\nmax_gpu_hours = {limit}\n")
    permitted = limit == "16.5"
    outcome = torchx(*GPUS, "2h", "--", "true")
    assert outcome.code == (0 if permitted else 2)
    if permitted:
        return
    assert "8 GPUs x 2 h = 16 GPU-hours; .torchxconfig:2 permits 10 without a question" in outcome.err
    assert "`--yes` submits it" in outcome.hint()
    assert "8 GPUs without a time limit" in torchx("run", "--gpu", "8", "--", "true").err
    sweep = ("sweep", "--gpu", "1", "--timeout", "4h", "--grid", "x=1,2,3")
    assert "3 x 1 GPU x 4 h = 12 GPU-hours" in torchx(*sweep, "--", "echo", "{x}").err
    chain = torchx(*GPUS, "2h", "--total", "5d", "--", "true").err
    assert "8 GPUs x 5 d = 960 GPU-hours" in chain, "all pieces count, however often the job may fail"
    assert not runs(torchx)
    assert torchx(*GPUS, "2h", "--yes", "--", "true").code == 0
    assert torchx("rerun", "@last").code == 2
    assert torchx("rerun", "@last", "--yes").code == 0
    assert torchx(*GPUS, "1h", "--", "true").code == 0
    assert len(runs(torchx)) == 3


def test_a_person_is_asked(torchx: Call, project: Path) -> None:
    (project / ".torchxconfig").write_text("[cli]\nmax_gpu_hours = 10\n")
    for answer, code in (("n", 2), ("y", 0)):
        child = spawn(project, *GPUS, "2h", "-d", "--", "true")
        child.expect_exact("Submit it? [y/N]")
        child.sendline(answer)
        assert end(child) == code
    assert [run["state"] for run in runs(torchx)] != []


@pytest.mark.parametrize("limit", ["many", "nan", "-5", "1,000", ""])
def test_a_limit_that_is_not_a_number(torchx: Call, project: Path, limit: str) -> None:
    (project / ".torchxconfig").write_text(f"[cli]\nmax_gpu_hours = {limit}\n")
    outcome = torchx(*GPUS, "2h", "--", "true")
    assert (outcome.code, outcome.hint()) == (2, "a number, such as 100")
    assert default_registry().list() == []
