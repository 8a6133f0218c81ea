from torchx_plugins.schedulers.acme_scheduler import STATES, create_scheduler

from torchx.specs import AppState
from torchx.testing import SchedulerContract


class TestContract(SchedulerContract):
    can_run = True
    raw_states = STATES

    def create_scheduler(self, folder):
        return create_scheduler("contract")

    def map_state(self, raw):
        return STATES.get(raw, AppState.UNKNOWN)
