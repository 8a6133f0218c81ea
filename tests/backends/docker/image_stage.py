"""What the tests of image builders share: registries, base images, workspaces, and looking into images."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.docker import engine
from tests.backends.docker.registry import Registry, running
from torchx.specs.api import AppDef, Role, Workspace
from torchx.workspace.docker_workspace import DockerWorkspaceMixin

# Everything that could go wrong in a name: for tar, for shells, for JSON, for people.
HOSTILE = [
    *(
        "-rf",
        " lead",
        "trail ",
        "new\nline",
        "tab\there",
        "quo'te\"s",
        "back\\slash",
        "$(id)",
        "`id`",
        "a;b",
        "*",
        "#x",
    ),
    *("ü", "\u202e.py", "日本", os.fsdecode(b"\xff\xfe"), "x" * 255, ".hidden", "Dockerfile", "a:b", "percent%41", "~"),
]
_LIST = r"""
import hashlib, os, stat, sys
found = {}
top = os.fsencode(sys.argv[1])
for folder, folders, files in os.walk(top):
    for name in folders + files:
        path = os.path.join(folder, name)
        s = os.lstat(path)
        kind = "d" if stat.S_ISDIR(s.st_mode) else "l" if stat.S_ISLNK(s.st_mode) else "f"
        of = os.readlink(path) if kind == "l" else hashlib.sha256(open(path, "rb").read()).digest() if kind == "f" else b""
        found[os.path.relpath(path, top)] = (kind, oct(s.st_mode & 0o7777), s.st_uid, s.st_gid, of)
print(ascii(found))
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, docker_image: str) -> Iterator[Registry]:
    """An open registry on loopback, with the test image in it as ``base/py:1``."""
    with running(Registry(tmp_path_factory.mktemp("registry"))) as started:
        push_base(started, f"FROM {docker_image}\nWORKDIR /opt/app\n", "base/py:1")
        yield started
    for host in (started.host, "127.0.0.1:9"):
        forget_locally(host)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No login and no cache of this machine counts."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "torchx-home"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker-config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A workspace with some of everything."""
    root = tmp_path / "source"
    (root / "pkg" / "deep" / "er").mkdir(parents=True)
    (root / "train.py").write_text("print('first')\n")
    (root / "pkg" / "deep" / "er" / "a.py").write_text("a = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_text("s")
    (root / "secret").chmod(0o600)
    (root / "link").symlink_to("pkg/deep")
    (root / "empty").mkdir(mode=0o700)
    return root


def push_base(registry: Registry, dockerfile: str, name: str) -> str:
    """Builds an image with the engine and pushes it; returns its name."""
    image = f"{registry.host}/{name}"
    build = ["docker", "build", "-q", "-t", image, "-"]
    subprocess.run(build, input=dockerfile.encode(), check=True, capture_output=True)
    docker("push", "-q", image)
    return image


def docker(*args: str) -> str:
    return engine.run("docker", *args)


def build(
    workspace: Path | str | dict[str, str], *, image: str, repo: str, builder: str, **cfg: Any
) -> tuple[str, dict[str, str]]:
    """Builds and pushes as a scheduler does; the pushed image, and the role's environment."""
    mixin = DockerWorkspaceMixin()
    projects = workspace if isinstance(workspace, dict) else {str(workspace): ""}
    app = AppDef("a", [Role("r", image=image, entrypoint="x", workspace=Workspace(projects))])
    values = {"image_repo": repo, "builder": builder, "quiet": True, **cfg}
    mixin.build_workspaces(app.roles, values)
    mixin.push_images(mixin.dryrun_push_images(app, values))
    return app.roles[0].image, app.roles[0].env


def files_in(image: str, folder: str = "/opt/app") -> dict[bytes, tuple[str, str, int, int, bytes]]:
    """Path -> kind, mode, user, group, and link target or hash, of all that a container sees below a folder."""
    seen = docker("run", "--rm", "--pull", "always", image, "python3", "-c", _LIST, folder)
    found: dict[bytes, tuple[str, str, int, int, bytes]] = ast.literal_eval(seen)
    return found


def forget_locally(host: str) -> None:
    """Removes what the engine has pulled from a registry, or built for it."""
    for _ in range(4):  # an image on which others are built goes after them
        names = docker("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines()
        ours = [name for name in names if name.startswith(f"{host}/")]
        if not ours:
            return
        engine.run("docker", "rmi", "-f", *ours, check=False)


def manifest_of(registry: Registry, name: str) -> dict[str, Any]:
    """The manifest under a name, as the registry has it."""
    import urllib.request

    repository, _, reference = name.removeprefix(registry.host + "/").rpartition("@" if "@" in name else ":")
    kinds = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
    request = urllib.request.Request(
        f"http://{registry.host}/v2/{repository}/manifests/{reference}", headers={"Accept": kinds}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
