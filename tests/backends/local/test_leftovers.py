"""The watch over what is left behind sees what it must, and not our own launcher."""

from __future__ import annotations

import subprocess

import pytest

from tests.backends.leftovers import gone, living, own_launcher
from torchx.supervisor.client import shared

from .conftest import ended, eventually
from .moments import command


def test_our_own_launcher_is_not_waited_for(scheduler, submit) -> None:
    """With a job of our own on it, and without: nobody else's launcher is there, and ours goes on."""
    app_id = submit("sleep 1000")
    eventually(lambda: living("sleep 1000"))
    assert living("launcher.py")
    eventually(lambda: {p.pid for p in living("launcher.py")} == own_launcher())
    gone("launcher.py")
    assert living("sleep 1000"), "the job's processes are not the launcher's"
    scheduler.cancel(app_id)
    ended(scheduler, app_id)
    gone("launcher.py")
    assert shared._requests >= 0


def test_the_launcher_of_a_command_is_waited_for(scheduler, submit, tmp_path) -> None:
    """It is seen for as long as its job runs, whatever ours does."""
    app_id = submit("sleep 1000")
    eventually(lambda: living("sleep 1000"))
    run = command("run", "utils.sh", "sleep 1001")
    handle = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    with pytest.raises(AssertionError, match="still there"):
        gone("launcher.py", 0.5)
    subprocess.run(command("cancel", handle), cwd=tmp_path, capture_output=True, check=True)
    gone("launcher.py")
    assert living("sleep 1000")
    scheduler.cancel(app_id)
    ended(scheduler, app_id)
