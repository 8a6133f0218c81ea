"""What every scheduler promises, on a real Slurm cluster."""

from __future__ import annotations

from typing import ClassVar

from torchx.schedulers.slurm_scheduler import SLURM_STATES, SlurmScheduler, appstate_from_slurm_state, create_scheduler
from torchx.specs import AppState
from torchx.testing.contract import SchedulerContract


class TestSlurmContract(SchedulerContract):
    """Jobs really run."""

    can_run: ClassVar[bool] = True
    timeout_s: ClassVar[float] = 180.0
    unknown_id: ClassVar[str] = "999999999"
    runtime_macros: ClassVar[frozenset[str]] = frozenset({"app_id"})
    raw_states = SLURM_STATES

    def create_scheduler(self, folder: str) -> SlurmScheduler:
        made = create_scheduler("contract")
        made.fresh_s = 0.05
        return made

    def map_state(self, raw: str) -> AppState:
        return appstate_from_slurm_state(raw)

    def request_name(self, info) -> str:
        return str(info.request.name)
