"""The watchdog of jobs in containers: their watcher hears that they are silent, and does what it is told to do then."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.backends.docker.test_docker_training import python_mounts
from tests.backends.shell import ROOT, Shell

HANGS = ROOT / "tests" / "backends" / "distributed" / "hangs.py"
BEATS = HANGS.parent / "beats"
SLEEPS = "2"
"""The seed of a first round in which a rank sleeps."""


def status(shell: Shell, handle: str) -> Any:
    return json.loads(shell.torchx("status", handle, "--json", check=False))


def ends(shell: Shell, handle: str, eventually: Callable[..., object]) -> Any:
    eventually(lambda: status(shell, handle)["state"] not in ("PENDING", "RUNNING"), timeout_s=180, every_s=0.5)
    return status(shell, handle)


@pytest.fixture
def clean(shell: Shell, eventually: Callable[..., object]) -> Any:
    handles: list[str] = []
    yield handles
    for handle in handles:
        shell.torchx("cancel", handle)
        ends(shell, handle, eventually)
        shell.torchx("delete", handle)


def training(shell: Shell, image: str, out: Path, *more: str) -> str:
    mounts = [f"type=bind,src={out},dst=/out", f"type=bind,src={ROOT},dst={ROOT},readonly", *python_mounts()]
    env = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin", "PYTHONPATH": f"{BEATS}:{ROOT}", "OUT": "/out"}
    words = ["-s", "local_docker", "--workspace=", *more, "dist.ddp", "-j", "2x1", "--image", image, "--cpu", "1"]
    words += ["--memMB", "3000", "--mounts", ",".join(mounts), "--script", str(HANGS)]
    return shell.launch(*words, "--env", ",".join(f"{k}={v}" for k, v in env.items()), "--", SLEEPS, "2")


def shell_job(shell: Shell, image: str, wish: str, script: str, *more: str) -> str:
    words = ["-s", "local_docker", "--workspace=", "--watchdog", wish, *more, "utils.sh", "--image", image, "--"]
    return shell.launch(*words, "sh", "-c", script)


@pytest.mark.timeout(600)
def test_a_training_that_hangs_is_looked_into_and_goes_on(
    docker_image: str, shell: Shell, clean: list[str], tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """The page says which rank sleeps; nobody touches the job, and when it writes again that is said, too."""
    pytest.importorskip("torch")
    clean.append(handle := training(shell, docker_image, tmp_path, "--watchdog", "8s"))
    eventually((tmp_path / "round-0").exists, timeout_s=300, every_s=0.5)
    who = json.loads((tmp_path / "round-0").read_text())["who"]
    eventually(lambda: status(shell, handle)["hang"], timeout_s=120, every_s=0.5)
    seen = status(shell, handle)
    assert re.fullmatch(
        rf"no output for \d+ s: hangs/\d rank \d( \(node [^)]+\))? waits in all_reduce( #\d+)? at hangs\.py:\d+; "
        rf"hangs/\d rank {who}( \(node [^)]+\))? is in hangs\.py:\d+",
        seen["hang"],
    ), seen
    assert seen["state"] == "RUNNING"


@pytest.mark.timeout(600)
def test_a_training_that_hangs_is_started_again(
    docker_image: str, shell: Shell, clean: list[str], tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """As the policy says; when that has had enough, the job has failed for what the ranks were doing."""
    pytest.importorskip("torch")
    wish = ("--watchdog", "8s:retry", "--retry", "timeout:1")
    clean.append(handle := training(shell, docker_image, tmp_path, *wish))
    found = ends(shell, handle, eventually)
    assert (found["state"], found["cause"]["class"], len(found["attempts"])) == ("FAILED", "timeout", 2), found
    for attempt in found["attempts"]:
        assert attempt["class"] == "timeout", found
        assert "no output for" in attempt["cause"], found
        assert "all_reduce" in attempt["cause"], found


def test_a_silent_container_is_ended(
    docker_image: str, shell: Shell, clean: list[str], eventually: Callable[..., object]
) -> None:
    """One alone has a watcher for it; what it says when it is told to end is not the cause."""
    clean.append(handle := shell_job(shell, docker_image, "2s:cancel", "trap 'exit 3' TERM; sleep 600 & wait"))
    found = ends(shell, handle, eventually)
    assert (found["state"], found["cause"]["class"]) == ("FAILED", "timeout"), found
    assert found["hang"].startswith("no output for "), found
    assert found["hang"] in found["msg"], found
    client = docker.from_env()
    try:
        (container,) = client.containers.list(all=True, filters={"name": handle.rpartition("/")[2]})
        with tarfile.open(fileobj=io.BytesIO(b"".join(container.get_archive("/.torchx-stacks")[0]))) as tar:
            sentence, _, *stacks = tar.extractfile(".torchx-stacks").read().decode().splitlines()
    finally:
        client.close()
    assert (sentence, stacks[0].split()[0]) == (found["hang"], "sh/0")


def test_signs_of_life(docker_image: str, shell: Shell, clean: list[str], eventually: Callable[..., object]) -> None:
    """Lines, and marks of progress without any."""
    lines = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done"
    marks = 'for i in 1 2 3 4 5 6 7 8; do touch "$TORCHX_PROGRESS"; sleep 1; done'
    clean += [shell_job(shell, docker_image, "4s:cancel", script) for script in (lines, marks)]
    for handle in clean:
        found = ends(shell, handle, eventually)
        assert (found["state"], found["hang"]) == ("SUCCEEDED", None), found
