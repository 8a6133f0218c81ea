"""What the status page says to change after a job ran out of memory."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.cli.waiting import more_memory
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs import AppDef, AppState, AppStatus, ReplicaStatus, Resource, Role, RoleStatus
from torchx.specs.failures import Failure


@pytest.mark.parametrize(
    ("actions", "mem", "more"),
    [
        (("retry", "mem"), 1024, "more:     --mem 2G, or --retry 'oom:1:mem*2'"),
        (("retry",), 1000, "more:     --mem 2000M"),
        ((), -1, "more:     --mem SIZE"),
        (None, 1024, ""),
    ],
)
def test_what_to_change_after_out_of_memory(actions: tuple[str, ...] | None, mem: int, more: str) -> None:
    """Twice the memory; by retries where the backend can; nothing where it limits none, or shared memory is short."""

    class Knows:
        capabilities = Capabilities(resources=actions is not None, retry_actions=actions or ())

        def _scheduler(self, name: str) -> Any:
            return self

        def describe(self, handle: str) -> AppDef:
            return AppDef("a", [Role("w", "", resource=Resource(1, 0, mem))])

    def told(failure: Failure) -> str:
        status = AppStatus(AppState.FAILED, structured_error_msg=failure.to_structured_msg())
        return "\n".join(more_memory(Knows(), "slurm://torchx/1", status))  # type: ignore[arg-type]

    assert told(Failure("worker died", 1, kind="oom", role="w", replica=0)) == more
    assert told(Failure("out of shared memory", 1, kind="oom", role="w", replica=0)) == ""
    assert told(Failure("ValueError: x", 1, kind="error", role="w", replica=0)) == ""


def test_a_sample_is_not_the_peak_of_a_job_that_ran_out() -> None:
    """Memory grows faster than it is sampled: the page says what it knows, and compares no samples."""
    failure = Failure("out of memory: a step used 1058 MiB", 1, kind="oom", role="w", replica=0).to_structured_msg()
    replicas = [
        ReplicaStatus(0, AppState.FAILED, "w", "", failure, memory_peak=207 << 20, memory_limit=1 << 30),
        ReplicaStatus(1, AppState.CANCELLED, "w", "", memory_peak=10 << 20, memory_limit=1 << 30),
    ]
    status = AppStatus(AppState.FAILED, structured_error_msg=failure, roles=[RoleStatus("w", replicas)])
    page = status.format()
    assert "[0] FAILED    memory in the last sample 207 MiB of 1 GiB" in page
    assert "memory:  " not in page
