"""A program that subclasses our classes in the ways that others do still works."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torchx.schedulers.local_scheduler")

HERE = os.path.dirname(__file__)


def test_program_runs(tmp_path: Any) -> None:
    """Every override is called, its effect is seen in the real job, and nothing is written to stderr but warnings."""
    done = subprocess.run(
        [sys.executable, "-W", "error", os.path.join(HERE, "program.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    calls = result["calls"]
    assert calls[:5] == [
        "runner.run",
        "runner.dryrun",
        "scheduler._submit_dryrun",
        "runner.schedule",
        "scheduler.schedule",
    ]
    assert {"scheduler.log_iter", "log_iterator.__init__", "log_iterator._check_finished"} <= set(calls)
    assert (result["state"], result["terminal"], result["same_state"], result["ui_url"]) == (
        "SUCCEEDED",
        True,
        True,
        True,
    )
    assert (result["backend"], result["session"]) == ("mine", "compat")
    assert [line.rstrip("\n") for line in result["lines"]] == ["from the image provider, in the dryrun, replica 1"]
    assert [line.rstrip("\n") for line in result["folder"]] == ["from the folder"]
    assert "local_cwd" in result["backends"]
    assert os.path.isdir(tmp_path / "logs")
