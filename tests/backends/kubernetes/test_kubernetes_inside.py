"""Processes inside pods."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.inside import InsideContract, Place
from tests.backends.kubernetes.jobs import Gate, Jobs
from tests.backends.shell import Shell
from torchx.specs import AppState


@pytest.fixture
def place(jobs: Jobs, gate: Gate, tmp_path: Path, eventually: Callable[..., object]) -> Place:
    env = {"GREETING": "hello, 世界", "MARK_FILE": "mark"}
    app_id = jobs.run("cd /; : >mark; : >/gate/up; exec sleep 1000", env=env, mounts=[gate.mount])
    jobs.until(app_id, lambda job: job.state is AppState.RUNNING)
    eventually((tmp_path / "gate/up").exists)

    def end() -> None:
        jobs.scheduler.cancel(app_id)
        jobs.until(app_id)

    return Place(jobs.scheduler, app_id, "main", end)


class TestInsideKubernetes(InsideContract):
    """The contract."""


def test_a_session(torchx: object, image: str, shell: Shell, eventually: Callable[..., object]) -> None:
    """A shell in a pod that ends with it."""
    shell.env.update({name: value for name, value in os.environ.items() if name.startswith(("KUBE", "TORCHX_"))})
    words = ["-s", "kubernetes", "--workspace=", "utils.session", "--image", image, "--memMB", "64"]
    handle = shell.session(*words)
    eventually(lambda: "CANCELLED" in shell.torchx("status", handle, check=False))
