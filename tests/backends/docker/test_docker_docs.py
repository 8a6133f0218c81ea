"""The examples of docs/docker.md that need an engine run as written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.shell import ROOT
from tests.docs.blocks import blocks, run

docker = pytest.importorskip("docker")

NAME = "python:3.12-slim"


@pytest.fixture
def image_of_the_page(docker_image: str) -> Iterator[None]:
    """The test image under the name that the page uses, unless the engine has the real one."""
    client = docker.from_env()
    had = any(NAME in (image.get("RepoTags") or []) for image in client.api.images())
    if not had:
        client.api.tag(docker_image, *NAME.split(":"))
    yield
    if not had:
        client.api.remove_image(NAME, force=True)
    client.close()


@pytest.mark.timeout(600)
def test_blocks_run_as_written(image_of_the_page: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the page's order, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    needy = [b for b in blocks(f"{ROOT}/docs/docker.md") if b.not_run.startswith("needs a Docker engine")]
    assert len(needy) == 2
    for block in needy:
        run(block, {})
