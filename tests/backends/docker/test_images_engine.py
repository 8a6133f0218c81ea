"""The engine's builder and the whole way from the command line: a real engine, a real registry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.docker.faults import FaultyRegistry
from tests.backends.docker.image_stage import build, docker, forget_locally, home, push_base, registry, source
from tests.backends.docker.registry import Registry
from torchx.errors import BackendError

__all__ = ["home", "registry", "source"]


@pytest.fixture
def base(registry: Registry, home: Path) -> str:
    return f"{registry.host}/base/py:1"


def test_dockerfile_gets_its_arguments(registry: Registry, base: str, source: Path) -> None:
    """`IMAGE` is the role's image, `WORKSPACE` the workspace; what it copies and runs is in the image."""
    (source / "Dockerfile.torchx").write_text(
        "ARG IMAGE\nFROM $IMAGE\nARG WORKSPACE\nWORKDIR /else\nCOPY pkg/ here/\nRUN echo $WORKSPACE > told\n"
    )
    image, env = build(source, image=base, repo=f"{registry.host}/args", builder="docker")
    seen = docker("run", "--rm", image, "sh", "-c", "cat told here/deep/er/a.py; ls /opt/app")
    assert seen.split("\n") == [str(source), "a = 1"]
    assert env["TORCHX_IMAGE_DIGEST"].startswith("sha256:")


def test_base_image_that_is_not_used_is_not_pulled(registry: Registry, base: str, source: Path) -> None:
    """A Dockerfile that builds on something else does not need the role's image: it may not even exist."""
    (source / "Dockerfile.torchx").write_text(f"FROM {base}\nCOPY . .\n")
    image, _ = build(source, image="nowhere.invalid/no:1", repo=f"{registry.host}/unused", builder="docker")
    assert docker("run", "--rm", image, "python3", "train.py") == "first"


def test_base_image_is_pulled_when_it_is_missing(
    registry: Registry, docker_image: str, home: Path, source: Path
) -> None:
    """An image that only the registry has is pulled by the build; one that is there is not asked for again."""
    pushed = push_base(registry, f"FROM {docker_image}\nENV PULLED=yes\nWORKDIR /w\n", "base/pulled:1")
    docker("rmi", pushed)
    with FaultyRegistry(registry.host) as proxy:
        base = pushed.replace(registry.host, proxy.host)
        image, _ = build(source, image=base, repo=f"{registry.host}/pulled", builder="docker")
        assert any("/base/pulled/manifests" in r for r in proxy.seen)
        assert docker("run", "--rm", image, "sh", "-c", "echo $PULLED; python3 train.py") == "yes\nfirst"
        proxy.seen.clear()
        build(source, image=base, repo=f"{registry.host}/pulled", builder="docker")
        assert proxy.seen == []
        forget_locally(proxy.host)


def test_push_that_is_refused(registry: Registry, base: str, source: Path) -> None:
    """The engine's push to a registry that is not there is one line with the image's name."""
    with pytest.raises(BackendError, match=r"the push of `127\.0\.0\.1:9/x:\w{12}` failed: .*connection refused"):
        build(source, image=base, repo="127.0.0.1:9/x", builder="docker")


# -- from the command line ----------------------------------------------------------------------------


def torchx(source: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(["torchx", *args], cwd=source, env=env, capture_output=True, text=True, check=False)


def run_args(base: str, registry: Registry, builder: str, *command: str) -> list[str]:
    cfg = f"image_repo={registry.host}/cli/{builder},builder={builder}"
    return [
        "run",
        "-s",
        "local_docker",
        "-cfg",
        cfg,
        "--workspace",
        ".",
        "--wait",
        "--log",
        "utils.sh",
        "--image",
        base,
        *command,
    ]


@pytest.mark.parametrize("builder", ["docker", "oci"])
def test_the_next_run_sees_the_change(builder: str, registry: Registry, base: str, source: Path) -> None:
    """`torchx run`, an edit, `torchx run`: the second job runs the edited file."""
    command = ["python3", "/opt/app/train.py"]
    for text in ("first", "edited"):
        (source / "train.py").write_text(f"print('{text}')\n")
        done = torchx(source, *run_args(base, registry, builder, *command))
        assert done.returncode == 0, done.stderr
        assert f" {text}" in done.stdout + done.stderr
        handle = next(word for word in (done.stdout + done.stderr).split() if word.startswith("local_docker://"))
        torchx(source, "delete", handle)


def test_a_dockerfile_that_fails(registry: Registry, base: str, source: Path) -> None:
    """Its own output, then one line of summary and a hint; no traceback, and no job."""
    (source / "Dockerfile.torchx").write_text(
        "ARG IMAGE\nFROM $IMAGE\nRUN echo collecting; echo no matching distribution >&2; exit 3\n"
    )
    done = torchx(source, *run_args(base, registry, "docker", "true"))
    assert done.returncode == 4
    *output, error, hint = done.stderr.strip().splitlines()
    assert "collecting" in output and "no matching distribution" in output
    assert error.startswith("torchx: error: the image of workspace `") and error.endswith(": exit code 3")
    assert hint.startswith("hint: see the build's output above")
    assert "Traceback" not in done.stderr and "local_docker://" not in done.stdout
