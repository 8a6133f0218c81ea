"""Files of containers that have ended, set-up lines in an image, and what is free."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import docker
import pytest

from torchx.errors import NotFoundError
from torchx.runner import get_runner
from torchx.schedulers.docker.containers import LABEL_APP_ID
from torchx.schedulers.docker.nodes import nodes
from torchx.specs import AppDef, Resource, Role
from torchx.specs.wishes.fetch import FETCH
from torchx.specs.wishes.setup import SETUP


def test_files_of_a_container_that_has_ended(docker_image: str, tmp_path: Path) -> None:
    """Folders, single files, private files, and what is not there; the set-up ran in the container."""
    script = "mkdir -p runs/a; echo $A >runs/a/x; : >runs/.env; echo last >log.txt"
    role = Role("r", docker_image, entrypoint="sh", args=["-c", script], resource=Resource(1, 0, 50))
    app = AppDef("ended", [role], metadata={SETUP: "export A='1 2'", FETCH: f"runs/={tmp_path}/out"})
    with get_runner() as runner:
        handle = runner.run(app, "local_docker")
        try:
            assert str(runner.wait(handle, 0.2).state) == "SUCCEEDED"
            done = runner.fetch(handle)["runs/"]
            assert (done.files, done.left_out) == (1, [".env"])
            assert (tmp_path / "out" / "a" / "x").read_text() == "1 2\n"
            runner.copy(handle, "log.txt", f"{tmp_path}/mine")
            assert (tmp_path / "mine").read_text() == "last\n"
            runner.copy(handle, "runs", str(tmp_path))
            assert (tmp_path / "runs" / "a" / "x").exists()
            with pytest.raises(NotFoundError, match=r"no `nope` where its files are: `.*` of its container"):
                runner.copy(handle, "nope", str(tmp_path))
        finally:
            runner.delete(handle)


def test_what_is_free(docker_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What running torchx containers were given is taken, until they have ended; other tests have some, too."""
    role = Role("r", docker_image, entrypoint="sleep", args=["1000"], resource=Resource(1, 0, 256))
    with get_runner() as runner, closing(docker.from_env()) as client:
        handle = runner.run(AppDef("holds", [role]), "local_docker")
        mine = [f"{LABEL_APP_ID}={handle.rpartition('/')[2]}"]
        listed = client.api.containers
        monkeypatch.setattr(client.api, "containers", lambda filters: listed(filters={"label": mine}))
        try:
            info = client.info()
            (node,) = nodes(client)
            assert (node.cpus, node.memory_mb) == (info["NCPU"], info["MemTotal"] >> 20)
            assert (node.cpus - node.free_cpus, node.memory_mb - node.free_memory_mb) == (1, 256)
            runner.cancel(handle)
            assert runner.wait(handle, 0.2) is not None
            (node,) = nodes(client)
            assert (node.free_cpus, node.free_memory_mb) == (node.cpus, node.memory_mb)
            assert runner.nodes("local_docker", None, Resource(1, 0, 64))[0].fitting in (0, 1)
        finally:
            runner.delete(handle)
