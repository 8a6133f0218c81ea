"""What must show: a DDP job writes to two trackers at once from every rank, and a second job is found from the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.shell import Shell

HERE = Path(__file__).parent
RANKS = range(4)


@pytest.fixture
def trained(project: Shell, mlflow_server: str) -> str:
    """The handle of a job of 2 x 2 ranks that has ended; the project's file names both trackers."""
    (project.cwd / ".torchxconfig").write_text(
        f"[torchx:tracker]\nfsspec = {project.cwd}/tracked\nmlflow =\n\n[tracker:mlflow]\nconfig = {mlflow_server}\n"
    )
    (project.cwd / "checkpoints").mkdir()
    env = f"CHECKPOINTS={project.cwd}/checkpoints"
    script = str(HERE / "ddp_tracked.py")
    printed = project.torchx(
        *("run", "-s", "local_cwd", "--wait", "dist.ddp", "-j", "2x2", "--script", script, "--env", env), timeout_s=300
    )
    return next(line for line in reversed(printed.splitlines()) if "://" in line).split()[-1]


def tracked(project: Shell, tracker: str, *words: str) -> Any:
    return json.loads(project.torchx("tracker", "list", *words, "--tracker", tracker, "--json"))


def test_every_rank_and_both_trackers(
    project: Shell, trained: str, mlflow_server: str, python: Callable[..., str]
) -> None:
    """Metadata, metrics and an artifact of each of four ranks are in both; then the lineage of a job that used one."""
    script = str(HERE / "evaluate_tracked.py")
    env = f"TRAINED={trained}"
    project.torchx("run", "-s", "local_cwd", "--wait", "dist.ddp", "-j", "1x1", "--script", script, "--env", env)
    (evaluated,) = [r["handle"] for r in json.loads(project.torchx("list", "--json"))["runs"] if r["handle"] != trained]

    both = []
    for name in ("fsspec", "mlflow"):
        metadata = tracked(project, name, "metadata", trained)["metadata"]
        assert (metadata["world_size"], metadata["optimizer"]) == (4, "sgd")
        for rank in RANKS:
            assert metadata[f"rank{rank}"] == {"local_rank": rank % 2, "device": "cpu"}
            assert metadata[f"step/rank{rank}"] == 4
            assert metadata[f"loss/rank{rank}"] >= 0
        artifacts = tracked(project, name, "artifacts", trained)["artifacts"]
        assert sorted(a["name"] for a in artifacts) == [f"checkpoint-{rank}" for rank in RANKS]
        for artifact in artifacts:
            assert Path(artifact["path"]).is_file()
            assert artifact["metadata"]["step"] == 4

        lineage = tracked(project, name, "lineage", evaluated)
        assert lineage["sources"] == [{"id": trained, "artifact": "checkpoint-0"}]
        assert tracked(project, name, "lineage", trained)["descendants"] == [{"id": evaluated}]
        assert tracked(project, name, "jobs", "--parent-run-id", trained)["jobs"] == [{"id": evaluated}]
        both.append(metadata)

    assert both[0] == both[1]
    assert tracked(project, "fsspec", "lineage", trained, "--artifact", "checkpoint-1")["descendants"] == []
    assert 1 < tracked(project, "fsspec", "metadata", evaluated)["metadata"]["weight"] < 2
    people = project.torchx("tracker", "list", "lineage", "@last")
    assert people == f"RELATION\tJOB\tARTIFACT\nmade from\t{trained}\tcheckpoint-0\n"
    log = project.torchx("log", "--no-prefix", trained)
    assert log == "", "nothing went wrong, and what a job prints is its own affair"

    seen = json.loads(python(IN_MLFLOW, mlflow_server, trained))
    assert seen["runs"] == 1, "four ranks began at once, and MLflow shows one run"
    assert seen["status"] == "FINISHED"
    assert seen["steps"] == [0, 1, 2, 3, 4]
    assert seen["params"]["optimizer"] == "sgd"


IN_MLFLOW = """
import json, sys
from mlflow import MlflowClient
uri, name = sys.argv[1:]
client = MlflowClient(uri)
experiment = client.get_experiment_by_name("torchx").experiment_id
runs = [r for r in client.search_runs([experiment]) if r.info.run_name == name]
steps = sorted(client.get_metric_history(runs[0].info.run_id, "step/rank3"), key=lambda m: m.timestamp)
print(json.dumps({"runs": len(runs), "status": runs[0].info.status, "params": runs[0].data.params,
                  "steps": [m.value for m in steps]}))
"""
