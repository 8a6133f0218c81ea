"""`torchx tracker`: what jobs wrote, asked of the trackers that the config file names."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchx.tracker.backend.fsspec import create

from .conftest import Call
from .test_json import check

pytest.importorskip("fsspec")
TRAIN = "slurm://torchx/train-1"
EVAL = "slurm://torchx/eval-1"

DOWN = """
class Down:
    def __getattr__(self, name):
        def ask(*args, **kwargs):
            raise ConnectionError("nobody\\nlistens")
        return ask
def create(config):
    return Down()
"""


@pytest.fixture
def runs(project: Path) -> Path:
    """Two runs in a tracker that the project's config file names: an evaluation of a trained model."""
    (project / ".torchxconfig").write_text(f"[torchx:tracker]\nfsspec = {project}/runs\n")
    tracker = create(f"{project}/runs")
    tracker.add_metadata(TRAIN, lr=0.1, model="resnet\x1b[31m", layers=[1, 2])
    tracker.add_artifact(TRAIN, "model", "s3://b/m.pt", {"step": 7})
    tracker.add_artifact(TRAIN, "log", "/logs/1")
    tracker.add_source(EVAL, TRAIN, "model")
    tracker.add_source(EVAL, "s3://data")
    return project


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_jobs(torchx: Call, runs: Path) -> None:
    """Lists all jobs that wrote to the tracker, or those with a given parent."""
    assert sorted(rows(torchx("tracker", "list", "jobs").out)[1:]) == [[EVAL], [TRAIN]]
    assert rows(torchx("tracker", "list", "jobs", "--parent-run-id", TRAIN).out) == [["JOB"], [EVAL]]
    assert rows(torchx("tracker", "list", "jobs", "--parent_run_id", EVAL).out) == [["JOB"]]
    found = check("tracker-jobs", torchx("tracker", "list", "jobs", "--json").out)
    assert (found["tracker"], {job["id"] for job in found["jobs"]}) == ("fsspec", {TRAIN, EVAL})


def test_numbers_that_json_lacks(torchx: Call, runs: Path) -> None:
    """NaN and infinity are null in the document, which strict parsers read, and are shown in the table."""
    create(f"{runs}/runs").add_metadata(TRAIN, loss=float("nan"), bound=[float("-inf"), 1.5])

    def refuse(text: str) -> None:
        raise AssertionError(text)

    out = torchx("tracker", "list", "metadata", TRAIN, "--json").out
    values = json.loads(out, parse_constant=refuse)["metadata"]
    assert (values["loss"], values["bound"], values["lr"]) == (None, [None, 1.5], 0.1)
    assert ["loss", "NaN"] in rows(torchx("tracker", "list", "metadata", TRAIN).out)


def test_metadata(torchx: Call, runs: Path) -> None:
    """Prints names and values sorted by name; control sequences in a value are escaped."""
    assert rows(torchx("tracker", "list", "metadata", TRAIN).out) == [
        ["NAME", "VALUE"],
        ["layers", "[1, 2]"],
        ["lr", "0.1"],
        ["model", "resnet?[31m"],
    ]
    found = check("tracker-metadata", torchx("tracker", "list", "metadata", "--json", TRAIN).out)
    assert found["metadata"] == {"lr": 0.1, "model": "resnet\x1b[31m", "layers": [1, 2]}


def test_what_came_out_of_a_sweep(torchx: Call, runs: Path) -> None:
    """Each task writes under its own handle; the table has a row per task, with its parameters and results."""
    write = (
        "from torchx.tracker import app_run_from_env as a; import sys; a().add_metadata(lr=1, loss=int(sys.argv[1])*2)"
    )
    (runs / "train.py").write_text(f"import sys\nif sys.argv[1] != '7':\n    {write}\n")
    sweep = ["sweep", "-s", "local_cwd", "--grid", "lr=3,5,7", "utils.python", "--script", "train.py", "--", "{lr}"]
    handle = torchx(*sweep).out.strip().splitlines()[-1]
    torchx("wait", handle)
    listed = rows(torchx("tracker", "list", "metadata", "@last").out)
    assert listed == [["TASK", "lr", "loss"], ["0", "3", "6"], ["1", "5", "10"], ["2", "7", ""]]
    found = check("tracker-metadata", torchx("tracker", "list", "metadata", "--json", handle).out)
    assert found["metadata"] == {}
    assert found["tasks"][1] == {"task": 1, "values": {"lr": "5"}, "metadata": {"lr": 1, "loss": 10}}
    assert found["tasks"][2]["metadata"] == {}
    assert rows(torchx("tracker", "list", "metadata", "@last/1").out)[1:] == [["loss", "10"], ["lr", "1"]]


def test_artifacts(torchx: Call, runs: Path) -> None:
    """Lists all artifacts, or the one of a name."""
    assert rows(torchx("tracker", "list", "artifacts", TRAIN).out) == [
        ["ARTIFACT", "PATH", "METADATA"],
        ["model", "s3://b/m.pt", '{"step": 7}'],
        ["log", "/logs/1", ""],
    ]
    found = check("tracker-artifacts", torchx("tracker", "list", "artifacts", "--artifact", "log", "--json", TRAIN).out)
    assert found["artifacts"] == [{"name": "log", "path": "/logs/1", "metadata": None}]
    assert rows(torchx("tracker", "list", "artifacts", EVAL).out) == [["ARTIFACT", "PATH", "METADATA"]]


def test_lineage(torchx: Call, runs: Path) -> None:
    """Lists sources and descendants, one of them, or only those of an artifact."""
    assert rows(torchx("tracker", "list", "lineage", EVAL).out)[1:] == [
        ["made from", TRAIN, "model"],
        ["made from", "s3://data", ""],
    ]
    assert rows(torchx("tracker", "list", "lineage", TRAIN).out)[1:] == [["used by", EVAL, ""]]
    assert rows(torchx("tracker", "list", "lineage", TRAIN, "--artifact", "log").out)[1:] == []
    assert rows(torchx("tracker", "list", "lineage", TRAIN, "--artifact", "model").out)[1:] == [["used by", EVAL, ""]]
    found = check("tracker-lineage", torchx("tracker", "list", "lineage", "--sources-only", "--json", EVAL).out)
    assert found["sources"] == [{"id": TRAIN, "artifact": "model"}, {"id": "s3://data", "artifact": None}]
    assert found["descendants"] is None
    found = check("tracker-lineage", torchx("tracker", "list", "lineage", "--descendants-only", "--json", TRAIN).out)
    assert (found["sources"], found["descendants"]) == (None, [{"id": EVAL}])
    assert torchx("tracker", "list", "lineage", "--sources-only", "--descendants-only", TRAIN).code == 2


def test_a_short_reference(torchx: Call, runs: Path) -> None:
    """`@last` and app ids work as for other verbs."""
    handle = torchx("run", "-s", "local_cwd", "--wait", "utils.echo").out.strip().splitlines()[-1]
    create(f"{runs}/runs").add_metadata(handle, a=1)
    for reference in ("@last", handle.rpartition("/")[2]):
        assert rows(torchx("tracker", "list", "metadata", reference).out)[1:] == [["a", "1"]]
    for words in ((), ("list",), ("list", "metadata")):
        assert rows(torchx("tracker", *words).out)[1:] == [["a", "1"]], "without a job, it is the newest run"


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (["metadata", "slurm://torchx/train-2"], 3, "has no job `slurm://torchx/train-2`", f"did you mean `{TRAIN}`?"),
        (["artifacts", "x"], 3, "the tracker `fsspec` has no job `x`", "`torchx tracker list jobs` shows"),
        (["lineage", "x"], 3, "the tracker `fsspec` has no job `x`", "`torchx tracker list jobs` shows"),
        (["metadata", "@last"], 3, "there is no run on record", "`torchx list`"),
        (["jobs", "--tracker", "fspec"], 3, "no tracker `fspec` is configured", "did you mean `fsspec`?"),
        (["jobs", "--tracker", "zz"], 3, "no tracker `zz` is configured", "configured: fsspec"),
        (["metadata"], 3, "there is no run on record", "`torchx list`"),
        ([], 3, "there is no run on record", "`torchx list`"),
    ],
)
def test_mistakes(torchx: Call, runs: Path, words: list[str], code: int, message: str, hint: str) -> None:
    """An error line, a hint, and the exit code of the kind of error."""
    outcome = torchx("tracker", "list", *words)
    assert outcome.code == code
    assert len(outcome.error_lines()) == 1
    assert message in outcome.err
    assert hint in outcome.hint()


def test_no_tracker(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a configured tracker the hint shows how to configure one; inside a job its variables are enough."""
    outcome = torchx("tracker", "list", "jobs")
    assert (outcome.code, outcome.error_lines()) == (2, ["torchx: error: no tracker is configured"])
    assert "[torchx:tracker]" in outcome.hint()
    monkeypatch.setenv("TORCHX_TRACKERS", "fsspec")
    monkeypatch.setenv("TORCHX_TRACKER_FSSPEC_CONFIG", str(project / "runs"))
    assert torchx("tracker", "list", "jobs").out == "JOB\n"


def test_a_tracker_that_is_down(torchx: Call, runs: Path, install_plugin: Callable[..., None]) -> None:
    """A tracker that fails is one line and exit code 4; no other tracker is used instead."""
    install_plugin("down_tracker", {"torchx.tracker": ["down = down_tracker:create"]}, DOWN)
    (runs / ".torchxconfig").write_text(f"[torchx:tracker]\ndown =\nfsspec = {runs}/runs\n")
    outcome = torchx("tracker", "list", "jobs")
    assert (outcome.code, outcome.out) == (4, "")
    assert outcome.error_lines() == ["torchx: error: the tracker `down` cannot be read: nobody listens"]
    assert TRAIN in torchx("tracker", "list", "jobs", "--tracker", "fsspec").out


def test_on_a_terminal(torchx: Call, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets columns, or a sentence instead of an empty table."""
    from torchx.cli.cmd_tracker import CmdTracker
    from torchx.cli.main import run_main

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    out, err = Tty(), Tty()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    run_main({"tracker": CmdTracker()}, ["tracker", "list", "lineage", EVAL])
    run_main({"tracker": CmdTracker()}, ["tracker", "list", "artifacts", EVAL])
    assert out.getvalue().splitlines() == [
        "RELATION   JOB                     ARTIFACT",
        f"made from  {TRAIN}  model",
        "made from  s3://data",
    ]
    assert err.getvalue() == f"`{EVAL}` has no such artifact\n"


def test_the_tracker_of_the_command(runs: Path) -> None:
    """The property `tracker` is the first configured tracker."""
    from torchx.cli.cmd_tracker import CmdTracker

    assert dict(CmdTracker().tracker.metadata(TRAIN))["lr"] == 0.1


def test_the_only_verb_is_proposed(torchx: Call, runs: Path) -> None:
    """`torchx tracker metadata` lacks a word; the hint has it."""
    outcome = torchx("tracker", "metadata")
    assert (outcome.code, outcome.hint()) == (2, "did you mean `torchx tracker list metadata`?")
