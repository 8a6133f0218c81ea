"""Faults on purpose, and time limits, on a real engine: what becomes of the job is what the page says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs.api import AppDef, AppState, Resource, Role, is_terminal
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT

ONCE = "if test -e /tmp/was; then exit 0; fi; touch /tmp/was; trap 'exit 9' TERM; echo up; sleep 600 & wait $!"


def _end(scheduler: DockerScheduler, app_id: str, eventually: Callable[..., object]) -> DescribeAppResponse:
    """The job at its end; between two attempts all of its containers have ended, too."""

    def over() -> DescribeAppResponse | None:
        found = scheduler.describe(app_id)
        return found if found is not None and is_terminal(found.state) else None

    eventually(over)
    found = over()
    assert found is not None
    return found


def _submit(scheduler: DockerScheduler, image: str, replicas: int = 1, **metadata: str) -> str:
    role = Role(
        "r", image, entrypoint="sh", args=["-c", ONCE], num_replicas=replicas, resource=Resource(1, 0, memMB=64)
    )
    keys = {"retry": RETRY, "timeout": TIMEOUT}
    return scheduler.submit(AppDef("simulated", [role], metadata={keys[k]: v for k, v in metadata.items()}), {})


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("timeout", "timeout"), ("kill", "unknown"), ("oom", "oom")],
)
def test_it_goes_on(
    docker_image: str, scheduler: DockerScheduler, eventually: Callable[..., object], fault: str, kind: str
) -> None:
    """One attempt more, of the class that the fault has, and the job succeeds."""
    app_id = _submit(scheduler, docker_image, retry=f"{kind}:1")
    eventually(lambda: "up\n" in list(scheduler.log_iter(app_id, "r")))
    scheduler.simulate(app_id, fault, ("r", 0)).make()
    found = _end(scheduler, app_id, eventually)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again) for a in found.attempts] == [(kind, True)]


def test_a_time_limit(docker_image: str, scheduler: DockerScheduler, eventually: Callable[..., object]) -> None:
    """Both replicas are ended, and the job has failed by it."""
    app_id = _submit(scheduler, docker_image, 2, timeout="2s")
    found = _end(scheduler, app_id, eventually)
    assert found.state is AppState.FAILED
    assert "it reached its time limit of 2s" in found.msg


def test_a_container_hangs(docker_image: str, scheduler: DockerScheduler, eventually: Callable[..., object]) -> None:
    """All of its processes are stopped; it is cancelled all the same."""
    app_id = _submit(scheduler, docker_image)
    eventually(lambda: "up\n" in list(scheduler.log_iter(app_id, "r")))
    scheduler.simulate(app_id, "hang", ("r", 0)).make()
    client = scheduler._client

    def stopped() -> bool:
        found = client.containers.list(filters={"label": f"torchx.pytorch.org/app-id={app_id}"})
        states = [row[0] for row in found[0].top(ps_args="-o s,pid")["Processes"]]
        return len(states) == 2 and set(states) == {"T"}

    eventually(stopped)
    scheduler.cancel(app_id)
    assert _end(scheduler, app_id, eventually).state is AppState.CANCELLED
