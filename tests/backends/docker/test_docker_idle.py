"""Jobs in containers that use nothing, by the samples of their watcher."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.shell import Shell

WORKS = "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done"


def status(shell: Shell, handle: str) -> Any:
    return json.loads(shell.torchx("status", handle, "--json", check=False))


def ends(shell: Shell, handle: str, eventually: Callable[..., object]) -> Any:
    eventually(lambda: status(shell, handle)["state"] not in ("PENDING", "RUNNING"), timeout_s=120, every_s=0.5)
    return status(shell, handle)


@pytest.fixture
def own(shell: Shell, tmp_path: Path) -> Shell:
    """Samples are taken each second."""
    (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 1s\n")
    return Shell(tmp_path, shell.env)


@pytest.fixture
def clean(own: Shell, eventually: Callable[..., object]) -> Iterator[list[str]]:
    handles: list[str] = []
    yield handles
    for handle in handles:
        own.torchx("cancel", handle, check=False)
        ends(own, handle, eventually)
        own.torchx("delete", handle)


def job(shell: Shell, image: str, wish: str, script: str) -> str:
    words = ["-s", "local_docker", "--workspace=", "--idle", wish, "utils.sh", "--image", image]
    return shell.launch(*words, "--", "sh", "-c", script)


def test_idle_containers(docker_image: str, own: Shell, clean: list[str], eventually: Callable[..., object]) -> None:
    """One that works, then sleeps, is ended; one after its step is reported; one that has not begun is neither."""
    works = job(own, docker_image, "8s:cancel", f"{WORKS}; sleep 600")
    steps = job(own, docker_image, "4s", 'sleep 2; : >"$TORCHX_STEPS"; sleep 600')
    waits = job(own, docker_image, "4s:cancel", "sleep 600")
    clean += [works, steps, waits]
    found = ends(own, works, eventually)
    assert (found["state"], found["cause"]["class"]) == ("FAILED", "timeout"), found
    assert found["msg"].startswith("idle for "), found
    assert "at most 0.0" in found["msg"], found
    eventually(lambda: status(own, steps)["hang"], timeout_s=60, every_s=0.5)
    found = status(own, steps)
    assert (found["state"], found["hang"][:9]) == ("RUNNING", "idle for "), json.dumps(found)
    found = status(own, waits)
    assert (found["state"], found["hang"]) == ("RUNNING", None), found
