"""Processes beside local replicas."""

from __future__ import annotations

import os
import signal
import time

import pytest

from torchx.errors import NotFoundError
from torchx.runner import get_runner
from torchx.schedulers.local import inside
from torchx.specs.api import AppDef, AppState, Role
from torchx.supervisor.proctree import environment


def test_a_replica_that_ends_just_now(monkeypatch) -> None:
    """A replica that ends while a process is started beside it is reported as not running."""

    def ended(pid: int) -> dict[str, str]:
        env = environment(pid)
        os.kill(pid, signal.SIGKILL)
        while os.path.exists(f"/proc/{pid}/cwd"):
            time.sleep(0.002)
        return env

    monkeypatch.setattr(inside, "environment", ended)
    with get_runner() as runner:
        handle = runner.run(AppDef("job", [Role("w", "", entrypoint="sleep", args=["60"])]), "local_cwd")
        while (status := runner.status(handle)) is None or status.state is not AppState.RUNNING:
            time.sleep(0.01)
        with pytest.raises(NotFoundError, match=r"replica w/0 of .* is not running: it is just ending"):
            runner.exec(handle, ["true"])
        runner.wait(handle)
