"""Secrets of local jobs: in memory, whatever becomes of the job."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.backends.canaries import SHOW, Canaries
from tests.backends.local.conftest import Job
from torchx.schedulers.local_scheduler import LocalScheduler
from torchx.specs.api import AppState, is_terminal


@pytest.mark.parametrize(
    ("after", "state"),
    [("exit 0", AppState.SUCCEEDED), ("exit 3", AppState.FAILED), ("exec sleep 600", AppState.CANCELLED)],
    ids=["succeeds", "fails", "is cancelled"],
)
def test_in_no_file_and_on_no_command_line(
    scheduler: LocalScheduler,
    submit: Job,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., object],
    after: str,
    state: AppState,
) -> None:
    """While the job runs, while it starts again, and after its end."""
    canaries = Canaries()
    monkeypatch.setenv("MY_CANARY", canaries.values[0])
    app_id = submit(f"{SHOW}; {after}", env=canaries.env, max_retries=1)
    eventually(lambda: list(scheduler.log_iter(app_id, "r", 0))[:2] == canaries.shown())
    assert canaries.command_lines() == []
    assert canaries.files_below(os.environ["TORCHX_HOME"]) == []
    if state is AppState.CANCELLED:
        scheduler.cancel(app_id)
    eventually(lambda: (found := scheduler.describe(app_id)) is not None and is_terminal(found.state))
    assert scheduler.describe(app_id).state is state
    assert list(scheduler.log_iter(app_id, "r", 0))[-2:] == canaries.shown()
    assert canaries.files_below(os.environ["TORCHX_HOME"]) == []
