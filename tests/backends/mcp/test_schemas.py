"""The documents of the verbs about real jobs match the schemas that the package has, on three schedulers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import torchx.cli
from tests.backends.compat.test_dropin_installed import docker_image  # noqa: F401  # a fixture

TORCHX = [sys.executable, "-m", "torchx"]
SCHEMAS = Path(torchx.cli.__file__).parent / "schemas"


def told(schema: str, env: dict[str, str], *args: str) -> Any:
    """The document that a verb prints, which matches its schema."""
    done = subprocess.run([*TORCHX, *args], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    known = json.loads((SCHEMAS / f"{schema}.json").read_text())
    for line in [done.stdout] if schema != "log" else done.stdout.splitlines():
        found = json.loads(line)
        jsonschema.validate(found, known)
    return found


@pytest.mark.parametrize("scheduler", ["local_cwd", "local_docker", "slurm"])
def test_documents(scheduler: str, agent_env: dict[str, str], request: pytest.FixtureRequest) -> None:
    where = ["-s", scheduler]
    if scheduler == "local_docker":
        where += ["--image", request.getfixturevalue("docker_image"), "--workspace", ""]
    if scheduler == "slurm":
        request.getfixturevalue("slurm_cluster")
    live = told("run", agent_env, "run", "--json", "--detach", *where, "--", "sleep", "600")["handle"]
    try:
        bad = told("run-wait", agent_env, "run", "--json", "--wait", *where, "--", "sh", "-c", "echo why >&2; exit 3")[
            "handle"
        ]
        told("run-dryrun", agent_env, "run", "--dryrun", "--json", *where, "--", "true")
        for job in (bad, live):
            told("status", agent_env, "status", "--json", job)
            told("describe", agent_env, "describe", "--json", job)
            told("why", agent_env, "why", "--json", job)
            told("metrics", agent_env, "metrics", "--json", job)
        told("log", agent_env, "log", "--json", bad)
        told("list", agent_env, "list", "--json")
        told("list-scheduler", agent_env, "list", "--json", "-s", scheduler)
        used = told("usage", agent_env, "usage", "--json", "--by", "scheduler")["groups"]
        assert [(group["key"], group["runs"]) for group in used] == [(scheduler, 2)]
        told("diff", agent_env, "diff", "--json", bad, live)
        for _ in range(60):
            if told("status", agent_env, "status", "--json", live)["state"] == "RUNNING":
                break
        assert told("exec", agent_env, "exec", "--json", live, "--", "echo", "hi")["replicas"][0]["stdout"] == "hi\n"
    finally:
        assert told("cancel", agent_env, "cancel", "--json", live)["done"] is True
    told("delete", agent_env, "delete", "--json", bad)
