"""`torchx metrics`, and what `torchx status` says of memory: of jobs that run, that have ended, and whose files are gone."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import eventually
from tests.supervisor.forks import state as state_of
from torchx.settings import torchx_home

from .conftest import Call, end, spawn, state, until
from .test_json import check

LIMIT = 8 << 30
ROWS = [
    {"t": 1000.0, "a": 0, "cpu": 2.0, "mem": 1 << 30, "gpu": [[50, 1 << 30, 4 << 30]]},
    {"t": 1015.0, "a": 0, "cpu": 4.0, "mem": 3 << 30, "gpu": [[100, 2 << 30, 4 << 30]]},
]


def _job(torchx: Call, samples: list[dict[str, Any]] | None = ROWS, script: str = "true") -> Path:
    """A job of two replicas that says of the first what it used; returns its folder."""
    handle = torchx("run", "utils.sh", "--num_replicas", "2", "--", script).out.strip()
    if script == "true":
        torchx("wait", "@last")
    folder = Path(torchx_home("local"), "torchx", handle.rpartition("/")[2])
    if samples:
        head = {"memory_limit": LIMIT, "cpus": 4}
        replica = folder / "sh" / "0"
        eventually(replica.is_dir)  # made when the job has been accepted
        (replica / "metrics.jsonl").write_text("\n".join(map(json.dumps, [head, *samples])) + "\n")
    return folder


def test_a_table_for_pipes(torchx: Call, project: Path) -> None:
    """A line per replica, separated by tabs; averages for an ended job; a part of the job can be selected."""
    _job(torchx)
    lines = [line.split("\t") for line in torchx("metrics", "@last").out.splitlines()]
    assert lines[0] == ["REPLICA", "CPU", "MEMORY", "PEAK", "LIMIT", "GPU", "GPU MEMORY"]
    assert lines[1] == ["sh/0", "avg 3.0 of 4", "-", "3 GiB", "8 GiB", "avg 75 %", "2 GiB of 4 GiB"]
    assert lines[2] == ["sh/1", *["-"] * 6]
    assert torchx("metrics", "@last/sh/1").out.splitlines()[1:] == ["sh/1" + "\t-" * 6]
    missing = torchx("metrics", "@last/sh/7")
    assert (missing.code, "no replica `7`" in missing.err) == (3, True)


def test_a_document(torchx: Call, project: Path) -> None:
    """The document has all samples, and a summary of each attempt."""
    _job(torchx, [*ROWS, {**ROWS[1], "t": 1100.0, "a": 1, "mem": 4 << 30, "gpu": []}])
    document = check("metrics", torchx("metrics", "@last", "--json").out)
    first, second = document["replicas"]
    assert (first["memory_peak"], first["memory_limit"], first["cpus"]) == (4 << 30, LIMIT, 4)
    assert [(a["attempt"], a["cpu"], a["memory"], a["gpu"]) for a in first["attempts"]] == [
        (0, 3.0, 3 << 30, 75.0),
        (1, 4.0, 4 << 30, None),
    ]
    assert [s["at"] for s in first["samples"]] == [f"1970-01-01T00:{t}.000Z" for t in ("16:40", "16:55", "18:20")]
    assert (second["samples"], second["memory_peak"], document["state"]) == ([], None, "SUCCEEDED")


def test_a_terminal_has_lines_of_bars(torchx: Call, project: Path) -> None:
    """The live page shows sparklines; Ctrl-C does not end the job."""
    (project / ".torchxconfig").write_text("[metrics]\nevery = 0\n")  # what it uses is what this test says
    _job(torchx, script="sleep 600")
    until(lambda: state(torchx) == "RUNNING")
    child = spawn(project, "metrics", "-w", "@last")
    child.expect(r"sh/0 +4\.0 of 4 ▄█ +3 GiB ▃█ +3 GiB +8 GiB +100 % ▄█ +2 GiB of 4 GiB")
    child.expect("live · Ctrl-C stops, the job continues")
    child.sendintr()
    end(child)
    assert state(torchx) == "RUNNING"
    torchx("cancel", "@last")


def test_watching_a_job_that_has_ended(torchx: Call, project: Path) -> None:
    """In a pipe its metrics are printed once."""
    _job(torchx)
    assert torchx("metrics", "-w", "@last").out == torchx("metrics", "@last").out
    assert len(torchx("metrics", "-w", "@last", "--json").out.splitlines()) == 1


def test_tasks_of_a_sweep(torchx: Call, project: Path) -> None:
    """Every task has its peak, however short it was; tasks that run for long have samples."""
    (project / ".torchxconfig").write_text("[metrics]\nevery = 1\n")
    code = (
        "x = bytearray({mib} << 20); import os, time\nwhile {mib} > 40 and not os.path.exists('go'): time.sleep(0.05)"
    )
    eats = f"exec {sys.executable} -c {shlex.quote(code)}"
    torchx("sweep", "--max-parallel", "4", "--grid", "mib=0,40,80", "utils.sh", eats)
    until(lambda: '"samples": [{' in torchx("metrics", "@last/2", "--json").out)
    (project / "go").touch()
    torchx("wait", "@last")
    found = check("metrics", torchx("metrics", "@last", "--json").out)["replicas"]
    assert [
        (r["replica"], (r["memory_peak"] or 0) >> 20 in range(40 * k, 40 * k + 40)) for k, r in enumerate(found)
    ] == [(k, True) for k in range(3)]
    assert all(r["memory_limit"] and r["attempts"][0]["cpu"] is not None and not r["samples"] for r in found)
    (one,) = check("metrics", torchx("metrics", "@last/2", "--json").out)["replicas"]
    assert one["samples"] and one["memory_peak"] >> 20 in range(80, 120)
    assert re.search(r"\[1\] SUCCEEDED .*peak memory \d+ MiB of", torchx("status", "@last/1").out)
    refused = torchx("metrics", "@last/3")
    assert (refused.code, "has no task `3`" in refused.err) == (3, True)
    (folder,) = Path(torchx_home("local"), "torchx").iterdir()
    torchx("delete", "@last")
    assert not folder.exists()


def test_nothing_to_see(torchx: Call, project: Path, paper: Any) -> None:
    """stderr says why there are no samples; a scheduler without metrics is an error."""
    _job(torchx, None)
    assert "it ended before the first one" in torchx("metrics", "@last").err
    _job(torchx, None, "sleep 600")
    assert "no samples yet" in torchx("metrics", "@last").err
    torchx("cancel", "@last")
    handle = torchx("run", "-s", "paper", "utils.echo").out.split()[-1]
    refused = torchx("metrics", handle)
    assert (refused.code, "`paper` does not report what replicas use" in refused.err) == (5, True)


def _long(torchx: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchx.cli.cmd_status.FIRST_SAMPLE_S", 0.0)
    monkeypatch.setattr("torchx.runner.watching.ends.FIRST_SAMPLE_S", 0.0)


def test_peak_memory_in_a_status(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status shows peak memory against the limit; for short jobs no metrics file is opened."""
    _job(torchx)
    assert "peak" not in torchx("status", "@last").out
    _long(torchx, monkeypatch)
    assert re.search(r"\[0\] SUCCEEDED localhost peak memory 3 GiB of 8 GiB\n", torchx("status", "@last").out)
    document = check("status", torchx("status", "@last", "--json").out)
    peaks = [(r["memory_peak"], r["memory_limit"]) for r in document["roles"][0]["replicas"]]
    assert peaks == [(3 << 30, LIMIT), (None, None)]


@pytest.mark.parametrize("verb", [["wait", "@last"], ["list"]], ids=lambda verb: verb[0])
def test_a_summary_outlives_the_files(
    torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    """The process that sees the end records a summary, which stays when the job's files are deleted."""
    _long(torchx, monkeypatch)
    gate = project / "go"
    folder = _job(torchx, script=f"while ! test -e '{gate}'; do sleep 0.05; done")
    gate.touch()
    eventually(lambda: state_of(folder).ended)
    torchx(*verb)
    shutil.rmtree(folder)
    rows = [line.split("\t") for line in torchx("metrics", "@last").out.splitlines()]
    assert rows[1:] == [["sh/0", "avg 3.0 of 4", "-", "3 GiB", "8 GiB", "avg 75 %", "-"]]
    document = check("metrics", torchx("metrics", "@last", "--json").out)
    assert document["replicas"][0]["attempts"] == [
        {"attempt": 0, "cpu": 3.0, "memory": 3 << 30, "gpu": 75.0, "seconds": 15.0, "gpu_memory": 2 << 30}
    ]


def test_how_often(torchx: Call, project: Path) -> None:
    """`[metrics] every` sets the interval or turns sampling off; an invalid value is an error with its line."""
    config = project / ".torchxconfig"
    config.write_text("[metrics]\nevery = 0.2s\n")
    folder = _job(torchx, None, "sleep 600")
    path = folder / "sh" / "1" / "metrics.jsonl"
    eventually(lambda: path.exists() and path.read_text().count("\n") > 1)
    torchx("cancel", "@last")
    config.write_text("[metrics]\nevery = often\n")
    refused = torchx("run", "utils.echo")
    assert (refused.code, ".torchxconfig:2: `every` is `often`" in refused.err) == (2, True)
    config.write_text("[metrics]\nevery = 0\n")
    assert torchx("run", "--wait", "utils.echo").code == 0
