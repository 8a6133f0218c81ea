"""Which output is read for steps."""

from __future__ import annotations

import time

import pytest

from tests.runner.memory_backend import MemoryScheduler
from torchx.runner.watching import pace
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs import AppState, AppStatus, ReplicaStatus, RoleStatus


class Printing(MemoryScheduler):
    """Only the replicas of the second role print steps."""

    capabilities = Capabilities(logs=True)

    def __init__(self) -> None:
        super().__init__("s")
        self.read: list[tuple[str, int]] = []

    def log_iter(self, app_id, role_name, k=0, *_args, **_query):
        self.read.append((role_name, k))
        steps = [f"{role_name}::torchx progress step={step} total=9 rank={k}\n" for step in range(3 + k)]
        return iter(steps if role_name == "trainer" else ["listening\n"])


def _status(*numbers: tuple[str, int]) -> AppStatus:
    roles = [
        RoleStatus(role, [ReplicaStatus(k, AppState.RUNNING, role, "", started_at=time.time()) for k in range(count)])
        for role, count in numbers
    ]
    return AppStatus(AppState.RUNNING, roles=roles)


def test_a_role_that_prints_no_steps_hides_none_of_the_others() -> None:
    """The first replica of each role is read, and all others only if one of these prints steps."""
    backend, status = Printing(), _status(("server", 3), ("trainer", 2))
    pace.fill(status, backend, "app")
    assert status.pace is not None and (status.pace.step, status.pace.ranks) == (2, 2)
    assert sorted(backend.read[:2]) == [("server", 0), ("trainer", 0)]

    backend, status = Printing(), _status(("server", 50))
    pace.fill(status, backend, "app")
    assert (status.pace, backend.read) == (None, [("server", 0)])


@pytest.mark.parametrize(("hint", "step"), [(0.1, 2), (10.0, None)], ids=["on this machine", "elsewhere"])
def test_steps_of_a_job_that_has_ended(hint, step):
    """Where reading the output costs little, its last step is shown, and no time left."""
    backend, status = Printing(), _status(("trainer", 1))
    backend.wait_hint = hint
    status.state = status.roles[0].replicas[0].state = AppState.FAILED
    pace.fill(status, backend, "app")
    assert (status.pace and (status.pace.step, status.pace.left_s)) == (step and (step, None))
