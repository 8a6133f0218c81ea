"""The image of examples/image/Dockerfile: built by an engine, and a job in it finds torchx and the examples."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.shell import ROOT
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs import AppState, Role
from torchx.version import __version__

docker = pytest.importorskip("docker")

BASE, TAG = "torchx-test/python-with-pip:1", "torchx-test/examples:1"
BASE_DOCKERFILE = """
FROM {image}
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_BREAK_SYSTEM_PACKAGES=1
COPY wheels /wheels
RUN cd /wheels && pip=$(ls pip-*.whl) && python3 "$pip/pip" install "./$pip"
"""


@pytest.fixture(scope="module")
def examples_image(docker_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Built on this machine's own image, because no registry can be reached; what pip needs lies in that image."""
    folder = tmp_path_factory.mktemp("base")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "-w", str(folder / "wheels")]
    subprocess.run([*pip, "docstring_parser>=0.15", "fsspec>=2023.1", "hatchling", "pip"], check=True)
    (folder / "Dockerfile").write_text(BASE_DOCKERFILE.format(image=docker_image))
    build = ["docker", "build", "-q", "--network", "none"]
    subprocess.run([*build, "-t", BASE, str(folder)], check=True)
    source = folder / "source"  # what the .dockerignore beside the Dockerfile admits; older engines do not read it
    for name in ("torchx", "hydra_plugins", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    file = str(source / "examples/image/Dockerfile")
    subprocess.run([*build, "-f", file, "-t", TAG, "--build-arg", f"BASE={BASE}", str(source)], check=True)
    yield TAG
    subprocess.run(["docker", "rmi", "-f", TAG, BASE], check=True, capture_output=True)


def test_a_job_finds_torchx_and_the_examples(scheduler: DockerScheduler, examples_image: str, tmp_path: Path) -> None:
    """In the folder where the code of a user is put."""
    from torchx.runner import Runner
    from torchx.specs import AppDef, Resource

    role = Role(
        name="look",
        image=examples_image,
        entrypoint="sh",
        args=["-c", "pwd; torchx --version; ls examples/ddp_digits/train.py"],
        resource=Resource(cpu=1, gpu=0, memMB=256),
    )
    with Runner("image-test", {"local_docker": lambda *args, **kwargs: scheduler}) as runner:
        handle = runner.run(AppDef("look", [role]), "local_docker")
        status = runner.wait(handle, wait_interval=0.5)
        lines = "".join(runner.log_lines(handle, "look"))
        runner.delete(handle)
    assert status is not None
    assert status.state == AppState.SUCCEEDED, lines
    assert lines.splitlines() == ["/app", f"torchx {__version__}", "examples/ddp_digits/train.py"]
