"""The tracker on a real MLflow server with a SQLite store."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.backends.trackers.conftest import QUIET

pytestmark = pytest.mark.timeout(1800)  # packages are installed, nine interpreters import MLflow

PROGRAM = Path(__file__).with_name("mlflow_program.py")
RUN = "slurm://nightly/train-1"


@pytest.fixture(scope="module")
def answers(venv: Path, mlflow_server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("mlflow_client")
    env = {**os.environ, **QUIET, "HOME": str(folder), "TMPDIR": str(folder)}
    argv = [str(venv / "bin/python"), str(PROGRAM), mlflow_server, "all"]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_values(answers: Any) -> None:
    """They come back with their types and under their names, the newest of each; MLflow's own parameters are beside them."""
    assert answers["values"] == {
        "lr": 0.2,
        "model": "vit",
        "layers": [1, 2],
        "optim": {"lr": 0.1, "nesterov": True},
        "none": None,
        "train/loss": 0.5,
        "a:b é": 1,
        "../x": 2,
        "-u2f-": 3,
        "//": 4,
        "beside": 1,
        "cfg.data.path": "/d",
        "cfg.data.shards.0": "3",
        "cfg.data.shards.1": "4",
        "cfg.data.new": "1",
    }
    assert answers["many"] is True


def test_a_value_that_is_too_long(answers: Any) -> None:
    """It is refused by name, with what to do; what was written in the same call is there."""
    kind, text = answers["long"]
    assert kind == "ValueError"
    assert "`long` is 6002 characters long, and MLflow keeps 5000" in text


def test_artifacts_and_lineage(answers: Any) -> None:
    """As with any tracker; ids with quotes are no trouble."""
    assert answers["artifacts"] == {"model: best": ["s3://b/m.pt", {"step": 7}], "log": ["/logs", None]}
    assert answers["sources"] == [["s3://data's", None], [RUN, "model: best"]]
    assert answers["sources of an artifact"] == [RUN]
    assert answers["descendants"] == [[], ["eval"]]
    assert answers["children"] == [["eval"], ["eval"], []]
    assert answers["runs"] == sorted(["eval", "many", RUN])
    assert answers["unknown"] == [{}, []]


def test_ranks_that_begin_together(answers: Any) -> None:
    """Eight processes make one MLflow run between them, and nothing is lost; it ends with rank 0, and restarts with it."""
    together = answers["together"]
    assert together["codes"] == [0] * 8
    steps = [f"rank{rank}_step{step}" for rank in range(8) for step in range(5)]
    assert together["values"] == sorted([*steps, "same", "other"])
    assert together["mlflow runs"] == 1
    assert together["status"] == ["FINISHED", "RUNNING", "FINISHED"]


def test_ranks_whose_clocks_differ(answers: Any) -> None:
    """The one that was slower takes the run that the other has chosen, whatever its clock says; who is about to say which
    run it would take is waited for."""
    assert answers["slower to make"] == [True, {"early": 1, "late": 1}, 1]
    assert answers["waited for"] == [True, True, ["early", "impatient", "late"], 1]


def test_a_run_that_is_deleted_meanwhile(answers: Any) -> None:
    """The job goes on with a new MLflow run of the same name."""
    assert answers["deleted"] == [{"b": 2}, True]


def test_the_experiment(answers: Any) -> None:
    """It is made with the first run; one that was deleted is an error that says what to do."""
    assert answers["experiment"] == ["kinds", True, None]
    assert answers["run"] == RUN
    assert answers["deleted experiment"] == ["BackendError", "the MLflow experiment `kinds` was deleted"]


def test_without_a_server(answers: Any) -> None:
    """MLflow's store of plain files, which newer versions must be told to allow, does as well."""
    assert answers["files"] == [{"a": 1}, ["eval"]]


def test_configs(answers: Any) -> None:
    """A setting that is none is named."""
    assert answers["wrong key"] == ["ConfigError", "the tracker `mlflow` has no setting `experiment`"]
