"""The local scheduler keeps the contract."""

from typing import Any

import pytest

pytest.importorskip("torchx.schedulers.local_scheduler")

from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import Scheduler
from torchx.testing import SchedulerContract


class TestLocalCwd(SchedulerContract):
    """Jobs really run, below the TORCHX_HOME of the test."""

    scheduler_name = "local_cwd"
    can_run = True

    @pytest.fixture(autouse=True)
    def _both_up(self, tmp_path: Any) -> None:
        up = f"{tmp_path}/up"
        self.gather = f"touch {up}.$1; until [ -e {up}.0 ] && [ -e {up}.1 ]; do sleep 0.02; done"

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        return get_scheduler_factories()[self.scheduler_name]("contract")
