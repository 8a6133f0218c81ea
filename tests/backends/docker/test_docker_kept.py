"""`[logs] keep = end` with containers that are removed afterwards."""

from __future__ import annotations

from pathlib import Path

from tests.backends import kept
from tests.backends.docker import engine
from tests.backends.shell import Shell


def remove(handle: str) -> None:
    app_id = handle.rpartition("/")[2]
    found = engine.run("docker", "ps", "-aq", "--filter", f"name={app_id}").split()
    assert len(found) == 2
    engine.run("docker", "rm", "-f", *found)


def test_logs_outlive_containers(docker_image: str, shell: Shell, tmp_path: Path) -> None:
    kept.outlive(shell, tmp_path, ["-s", "local_docker", "--image", docker_image], remove)
