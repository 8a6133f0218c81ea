"""A local chain of pieces whose supervisor is killed goes on, in the same folder, once."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchx.runner import Runner, get_runner
from torchx.schedulers.local.jobs import LocalJobs
from torchx.specs import AppDef, AppStatus, Role
from torchx.supervisor.chain import is_chain
from torchx.supervisor.statefile import has_supervisor, read_state

PROGRAM = """
import os, sys, time
path = sys.argv[1]
first = os.path.getsize(path) if os.path.exists(path) else 0
for step in range(first, 8):
    time.sleep(0.25)
    open(path, "a").write(".")
"""


def _start(runner: Runner, tmp_path: Path, **env: str) -> tuple[str, str]:
    metadata = {"torchx/retry": "standard, lost:free, total:5m", "torchx/timeout": "1m"}
    args = ["-c", PROGRAM, str(tmp_path / "steps")]
    handle = runner.run(
        AppDef("c", [Role("c", "", entrypoint=sys.executable, args=args, env=env)], metadata), "local_cwd"
    )
    folder = LocalJobs("torchx").find(handle.rpartition("/")[2])
    assert folder is not None
    _until((tmp_path / "steps").exists)
    return handle, folder


def _until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _status(runner: Runner, handle: str) -> AppStatus:
    status = runner.status(handle)
    assert status is not None
    return status


@pytest.mark.parametrize("killed", ["supervisor", "supervisor and guardian", "all"])
def test_it_goes_on(tmp_path: Path, killed: str) -> None:
    """Steps are neither lost nor repeated; the attempt is on record once, as lost."""
    with get_runner() as runner:
        handle, folder = _start(runner, tmp_path)
        state = read_state(f"{folder}/state")
        pids = {"supervisor": [state.supervisor], "all": [r.pid for r in state.replicas]}.get(killed, [])
        pids += [state.guardian[0], state.supervisor] if killed != "supervisor" else []
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        if killed == "supervisor":
            _until(lambda: has_supervisor(folder))  # without any command
        status = runner.wait(handle, wait_interval=0.1)
        assert status is not None and str(status.state) == "SUCCEEDED", status
        assert (tmp_path / "steps").read_text() == "." * 8
        assert [one.kind for one in _status(runner, handle).attempts] == ["lost"]


def test_credentials_are_not_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from the command that continues; a job whose role has one cannot be continued."""
    monkeypatch.setenv("MY_TOKEN", "canary-of-a-chain")
    with get_runner() as runner:
        handle, folder = _start(runner, tmp_path)
        kept = Path(f"{folder}/chain.json").read_text()
        assert "canary" not in kept and "MY_TOKEN" in json.loads(kept)["hidden"]
        assert os.stat(f"{folder}/chain.json").st_mode & 0o777 == 0o600
        monkeypatch.delenv("MY_TOKEN")
        state = read_state(f"{folder}/state")
        for pid in (state.guardian[0], state.supervisor):
            os.kill(pid, signal.SIGKILL)
        _until(lambda: str(_status(runner, handle).state) == "FAILED")
        (tmp_path / "steps").unlink()
        handle, folder = _start(runner, tmp_path, HF_TOKEN="canary")
        assert not is_chain(folder)
        runner.cancel(handle)
