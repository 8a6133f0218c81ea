"""What must show: a DDP job writes to two trackers at once from every rank, and a second job is found from the first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import torchx
from tests.backends.shell import Shell

HERE = Path(__file__).parent
RANKS = range(4)


@dataclass
class Place:
    """Where jobs run, with what they need there, and an MLflow server that can be reached from there."""

    scheduler: str
    server: str
    options: tuple[str, ...] = ()
    env: str = ""

    def run(self, project: Shell, nodes: str, script: str, env: str) -> str:
        """The handle of a job of ``dist.ddp`` that has ended."""
        given = ",".join(filter(None, (env, self.env)))
        argv = ["run", "-s", self.scheduler, "--wait", "--workspace=", "dist.ddp", "-j", nodes, *self.options]
        printed = project.torchx(*argv, "--script", str(HERE / script), "--env", given, timeout_s=800)
        return next(line for line in reversed(printed.splitlines()) if "://" in line).split()[-1]


def in_containers(project: Shell, venv: Path, image: str) -> tuple[str, ...]:
    """The Python of the tests, torchx and the tests' scripts, to be read; the project's folder, to be written to."""
    paths = {venv, HERE, *map(Path, (sys.prefix, sys.base_prefix)), Path(torchx.__file__).parents[1]}
    paths = {path.resolve() for path in paths} | paths
    read = [
        f"type=bind,src={p},dst={p},readonly"
        for p in sorted(paths)
        if p != Path("/usr") and not (any(other != p and other in p.parents for other in paths))
    ]
    mounts = ",".join([*read, f"type=bind,src={project.cwd},dst={project.cwd}"])
    return ("--image", image, "--cpu", "1", "--memMB", "2500", "--mounts", mounts)


@pytest.fixture(params=["local_cwd", "local_docker"])
def place(request: pytest.FixtureRequest, project: Shell, venv: Path) -> Place:
    """On this machine; and in two containers of a network of their own."""
    if request.param == "local_cwd":
        return Place("local_cwd", request.getfixturevalue("mlflow_server"))
    options = in_containers(project, venv, request.getfixturevalue("docker_image"))
    env = f"PATH={venv}/bin:/usr/bin:/bin,HOME=/tmp,PYTHONDONTWRITEBYTECODE=1,OMP_NUM_THREADS=1,MLFLOW_DISABLE_TELEMETRY=true"
    return Place("local_docker", request.getfixturevalue("bridged_server"), options, env)


@pytest.fixture
def trained(project: Shell, place: Place) -> Iterator[str]:
    """The handle of a job of 2 x 2 ranks that has ended; the project's file names both trackers."""
    (project.cwd / ".torchxconfig").write_text(
        f"[torchx:tracker]\nfsspec = {project.cwd}/tracked\nmlflow =\n\n[tracker:mlflow]\n"
        f"config = {json.dumps({'tracking_uri': place.server, 'timeout_s': 500})}\n"
    )
    (project.cwd / "checkpoints").mkdir()
    yield place.run(project, "2x2", "ddp_tracked.py", f"CHECKPOINTS={project.cwd}/checkpoints")
    for run in json.loads(project.torchx("list", "--json"))["runs"]:
        project.torchx("delete", run["handle"])


def tracked(project: Shell, tracker: str, *words: str) -> Any:
    return json.loads(project.torchx("tracker", "list", *words, "--tracker", tracker, "--json"))


@pytest.mark.timeout(1800)  # packages are installed, eight interpreters import PyTorch and MLflow, on however few cores
def test_every_rank_and_both_trackers(project: Shell, place: Place, trained: str, python: Callable[..., str]) -> None:
    """Metadata, metrics and an artifact of each of four ranks are in both; then the lineage of a job that used one."""
    evaluated = place.run(project, "1x1", "evaluate_tracked.py", f"TRAINED={trained}")

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
    # What PyTorch says of a store whose owner was quicker to end is its own affair.
    assert not [line for line in log.splitlines() if "tracker `" in line or "mlflow" in line.lower()], log

    seen = json.loads(python(IN_MLFLOW, place.server, trained))
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
