"""Simulates faults of containers."""

from __future__ import annotations

from functools import partial
from typing import Any

from torchx.errors import BackendError, NotSupportedError
from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.client import stop_all
from torchx.schedulers.docker.containers import Container, Job
from torchx.schedulers.kit.simulations import Simulation, cannot
from torchx.specs.api import AppState, is_terminal
from torchx.util.strings import size_text
from torchx.workspace.images.engine_errors import engine_errors

_WHY_NOT = {
    "preempt": ("an engine does not preempt containers", "timeout"),
    "node": ("all jobs share the engine's machine", "kill"),
}
# All processes except the shell itself and PID 1, which no process of its own container can stop.
_STOP = "kill -STOP -1"
# `tail` buffers an endless line. The OOM killer takes the process with the highest score, so raise that of the job's
# processes; memory use adds to the score, so spread it over several `tail`s.
_FILL = """for p in /proc/[0-9]*; do [ $p = /proc/$$ ] || echo 1000 >$p/oom_score_adj; done
for i in 1 2 3 4 5 6 7 8; do tail /dev/zero & done
wait"""


def simulation(client: Any, job: Job, fault: str, replica: tuple[str, int]) -> Simulation:
    """See :class:`torchx.schedulers.kit.abilities.Simulates`."""
    if fault in _WHY_NOT:
        why, instead = _WHY_NOT[fault]
        raise cannot("local_docker", fault, why, instead=instead)
    if fault == "timeout":
        live = [c for c in job.containers if not is_terminal(c.state)]
        what = "its container is" if len(live) == 1 else f"its {len(live)} containers are"
        return Simulation(f"{what} stopped, as at the job's time limit", partial(_expire, client, job, live))
    container = job.need(*replica)
    if container.state is not AppState.RUNNING:
        raise BackendError(f"container {container.name} does not run just now")
    if fault == "kill":
        says, make = "gets SIGKILL", partial(_signal, client, container, "SIGKILL")
    elif fault == "hang":
        says, make = "has all of its processes stopped by SIGSTOP", partial(_hang, client, container)
    else:
        with engine_errors(f"container {container.name} cannot be inspected"):
            limit = client.api.inspect_container(container.id)["HostConfig"].get("Memory") or 0
        if not limit:
            raise NotSupportedError(
                f"container {container.name} has no memory limit, and filling the machine's memory would affect others",
                hint="submit the job with `--memMB`",
            )
        says, make = f"has its {size_text(limit)} filled up, from inside", partial(_inside, client, container, _FILL)
    return Simulation(f"container {container.name} {says}", make)


def _expire(client: Any, job: Job, live: list[Container]) -> None:
    with engine_errors(f"`{job.app_id}` could not be ended"):
        stop_all(client, None, live, gangs.rules_of(job).grace_s, late=True)


def _signal(client: Any, container: Container, name: str) -> None:
    with engine_errors(f"container {container.name} could not be signalled"):
        client.api.kill(container.id, signal=name)


def _hang(client: Any, container: Container) -> None:
    _inside(client, container, _STOP)
    _signal(client, container, "SIGSTOP")


def _inside(client: Any, container: Container, script: str) -> None:
    """Start a shell script in the container, and does not wait for it."""
    with engine_errors(f"nothing can be run in container {container.name}"):
        made = client.api.exec_create(container.id, ["sh", "-c", script], user="root")
        client.api.exec_start(made["Id"], detach=True)
