"""``--idle`` on this machine, with real samples of jobs that work and then sleep."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from torchx.runner import get_runner
from torchx.specs import AppDef, Role


def test_an_idle_job_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real job that sleeps after its first step, sampled each second."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 1s\n")
    role = Role("r", "", entrypoint="sh", args=["-c", 'sleep 6; : >"$TORCHX_STEPS"; sleep 600'])
    with get_runner() as runner:
        began = time.monotonic()
        handle = runner.run(AppDef("a", [role], {"torchx/idle": "3s:cancel"}), "local_cwd")
        status = runner.wait(handle, wait_interval=0.1)
        assert time.monotonic() - began > 8  # of 6 s of work and 3 s of rest, in samples a second apart
        assert status is not None and str(status.state) == "FAILED"
        assert "idle for " in status.msg and "processors in use" in status.msg


def test_a_plain_script_that_works_and_then_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports nothing: its work is enough."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 1s\n")
    work = "import time\nwhile time.process_time() < 2: pass\ntime.sleep(600)"
    role = Role("r", "", entrypoint=sys.executable, args=["-c", work])
    with get_runner() as runner:
        handle = runner.run(AppDef("a", [role], {"torchx/idle": "4s:cancel"}), "local_cwd")
        status = runner.wait(handle, wait_interval=0.1)
    assert status is not None and str(status.state) == "FAILED"
    assert "idle for " in status.msg
