"""LSF keeps the contract of all schedulers; its jobs really run, on the look-alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.backends.lsf.lookalike.config import Config
from torchx.schedulers.api import Scheduler
from torchx.schedulers.lsf_scheduler import JOB_STATE, LsfScheduler, get_job_state
from torchx.specs.api import AppState
from torchx.testing import SchedulerContract


class TestLsf(SchedulerContract):
    """Every test of the contract."""

    can_run = True
    timeout_s = 180.0
    raw_states = JOB_STATE
    name_rule = r"[A-Za-z][A-Za-z0-9_-]{0,90}"

    @pytest.fixture(autouse=True)
    def _home(self, cluster: Config, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
        up = f"{tmp_path}/up"  # LSF starts replicas one by one
        self.gather = f"touch {up}.$1; until [ -e {up}.0 ] && [ -e {up}.1 ]; do sleep 0.05; done"
        yield

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        return LsfScheduler("contract")

    def map_state(self, raw: str) -> AppState:
        return get_job_state(raw, "1")
