"""A look-alike of LSF for the tests of this folder, and a scheduler that submits to it."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.lsf.lookalike.cluster import running
from tests.backends.lsf.lookalike.config import Config
from tests.backends.shell import ROOT, Shell
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppDef, AppState, Resource, Role

Job = Callable[..., str]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """Four hosts of eight slots; its commands are on PATH."""
    folder = str(tmp_path_factory.mktemp("lsf"))
    with running(folder) as config, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LSF_ENVDIR", folder)
        patch.setenv("PATH", f"{config.bindir}:{os.environ['PATH']}")
        yield config


@pytest.fixture
def scheduler(cluster: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LsfScheduler]:
    """A scheduler with a home of its own; all jobs are gone at the end."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    lsf = LsfScheduler("test")
    lsf.fresh_s = 0
    yield lsf
    lsf.close()
    command("bkill", "-r", "0")
    eventually(lambda: not [line for line in command("bjobs", "-noheader").splitlines() if line])


@pytest.fixture
def submit(scheduler: LsfScheduler) -> Job:
    """Submit ``sh -c script`` in ``n`` replicas of role `r`; further keywords are the role's, ``cfg`` the run options."""

    def run(script: str, n: int = 1, *, cfg: dict | None = None, **role: Any) -> str:
        role = {"image": "", "resource": Resource(cpu=1, gpu=0, memMB=512), **role}
        app = AppDef("job", [Role("r", entrypoint="sh", args=["-c", script], num_replicas=n, **role)])
        return scheduler.submit(app, cfg or {})

    return run


@pytest.fixture
def lsf_shell(cluster: Config, shell: Shell, tmp_path: Path) -> Shell:
    """torchx as a user of the cluster types it, with a home of their own."""
    env = {**shell.env, "TORCHX_HOME": str(tmp_path / "home"), "LSF_ENVDIR": cluster.envdir}
    return Shell(ROOT, {**env, "PATH": f"{cluster.bindir}:{shell.env['PATH']}"})


def command(*argv: str) -> str:
    """Output of a command of the look-alike."""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def eventually(condition: Callable[[], object], within_s: float = 180.0) -> object:
    """The condition's value once it is true."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{value!r} after {within_s:g} s"
        time.sleep(0.05)
    return value


def ended(scheduler: LsfScheduler, app_id: str):
    """What became of the job, once it has ended."""
    over = (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)
    return eventually(lambda: d if (d := scheduler.describe(app_id)) and d.state in over else None)


def wait_for(*files: object) -> str:
    """The words of a shell that wait for files."""
    return " && ".join(f"until [ -e {shlex.quote(str(file))} ]; do sleep 0.05; done 2>/dev/null" for file in files)


def lines(scheduler: LsfScheduler, app_id: str, k: int = 0, role: str = "r", **query: Any) -> list[str]:
    """A replica's output."""
    return list(scheduler.log_iter(app_id, role, k, **query))
