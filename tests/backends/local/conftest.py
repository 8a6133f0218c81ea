"""Real jobs on this machine: nothing of them may be left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import torchx
from torchx.schedulers.local_scheduler import LocalScheduler, create_scheduler
from torchx.specs.api import AppDef, AppState, Role
from torchx.supervisor import proctree
from torchx.supervisor.client import shared

Job = Callable[..., str]


@pytest.fixture
def scheduler() -> Iterator[LocalScheduler]:
    """A scheduler whose jobs' processes and this process's descriptors must all be gone at the end of the test."""
    shared._start()
    before = set(os.listdir("/proc/self/fd"))
    local = create_scheduler("test")
    yield local
    local.close()
    left = _left_after(60.0)
    for process in left:
        proctree.send(process, signal.SIGKILL)
    assert not left, f"processes of jobs are left: {[(p.pid, p.state) for p in left]}"
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1  # the listing itself is one


@pytest.fixture
def submit(scheduler: LocalScheduler) -> Job:
    """Submit ``sh -c command`` in ``n`` replicas; further keywords are the role's, ``cfg`` the run options."""

    def run(command: str, n: int = 1, *, cfg: dict | None = None, **role: Any) -> str:
        app = AppDef("job", [Role("r", "", entrypoint="sh", args=["-c", command], num_replicas=n, **role)])
        return scheduler.submit(app, {"cancel_grace_s": 1, **(cfg or {})})

    return run


@pytest.fixture
def program(monkeypatch, tmp_path) -> Iterator[Callable[..., None]]:
    """Have jobs launched by this program, in which `{root}` is where torchx is."""

    def use(text: str, **words: str) -> None:
        path = tmp_path / "launcher.py"
        path.write_text(text.format(root=os.path.dirname(os.path.dirname(torchx.__file__)), **words))
        shared.close()
        monkeypatch.setattr("torchx.supervisor.client.PROGRAM", str(path))

    yield use
    shared.close()


def ended(scheduler: LocalScheduler, app_id: str, within_s: float = 120.0):
    """What became of the job, once it has ended."""
    deadline = time.monotonic() + within_s
    while True:
        described = scheduler.describe(app_id)
        if described is None or described.state in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED):
            return described
        left = deadline - time.monotonic()
        assert left > 0, f"{app_id} is {described.state} after {within_s} s"
        scheduler.wait_for_end(app_id, left)


def eventually(condition: Callable[[], object], within_s: float = 120.0):
    """The condition's value once it is true."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {within_s} s"
        time.sleep(0.005)
    return value


def lines(scheduler: LocalScheduler, app_id: str, k: int = 0, **query: Any) -> list[str]:
    """The replica's output."""
    return list(scheduler.log_iter(app_id, "r", k, **query))


def processes_of(scheduler: LocalScheduler, app_id: str) -> list[proctree.Process]:
    """Live processes that carry the job's mark."""
    folder = scheduler._jobs.find(app_id)
    assert folder is not None
    return proctree.marked(folder)


def python(code: str) -> list[str]:
    """Command line of a Python program."""
    return [sys.executable, "-c", code]


def _left_after(grace_s: float) -> list[proctree.Process]:
    home = os.environ["TORCHX_HOME"]
    deadline = time.monotonic() + grace_s
    while True:
        left = [
            p
            for p in proctree.snapshot().values()
            if p.state not in "ZX" and (proctree.environment(p.pid).get(proctree.ENV_JOB) or "").startswith(home)
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)
