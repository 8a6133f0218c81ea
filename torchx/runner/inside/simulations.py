"""Prepares the injection of a fault into a job: checks the owner and the state, and selects the replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.errors import BackendError, ConfigError, NotFoundError, NotSupportedError
from torchx.runs import Run
from torchx.runs.registry import user_name
from torchx.schedulers.kit.abilities import Simulates
from torchx.schedulers.kit.simulations import FAULTS, Simulation
from torchx.specs.api import AppState, is_terminal
from torchx.specs.wishes import Wishes
from torchx.util.strings import did_you_mean

if TYPE_CHECKING:
    from torchx.runner.watching.verbs import Watches


def plan(runner: Watches, reference: str, fault: str, chosen: Sequence[tuple[str, int]] | None) -> Simulation:
    """Implement :meth:`Runner.simulate`; nothing happens before ``make`` of the result is called."""
    if fault not in FAULTS:
        raise ConfigError(
            f"there is no fault `{fault}`", hint=did_you_mean(fault, FAULTS) or f"the faults are: {', '.join(FAULTS)}"
        )
    handle, backend, app_id = runner._locate(reference)
    run, status = runner.recorded(handle), runner.status(handle)
    if run is None or run.user != user_name():
        raise NotSupportedError(f"`{handle}` is not one of your jobs: faults can be simulated only in your own")
    if status is None or status.gone or is_terminal(status.state):
        raise BackendError(f"`{handle}` has ended", hint="`torchx list --state running` lists those that run")
    if status.state is not AppState.RUNNING:
        raise BackendError(
            f"`{handle}` does not run yet: it is {status.state.name}", hint="`torchx status JOB` says what it waits for"
        )
    if not isinstance(backend, Simulates):
        raise NotSupportedError(f"`{run.scheduler}` cannot simulate faults")
    replicas = backend.log_replicas(app_id)
    if not replicas:
        raise NotFoundError(f"no replica of `{handle}` is known")
    if chosen is not None and len(chosen) > 1:
        raise ConfigError(f"{len(chosen)} replicas were given", hint="give one: `JOB/ROLE/0`")
    return backend.simulate(handle.rpartition("/")[2], fault, (chosen or replicas)[0])


def what_follows(run: Run, fault: str) -> str:
    """Return what will happen to a job after a fault, as a clause for the user."""
    wishes = Wishes.of(run.appdef()).texts
    if fault == "hang":
        limit = wishes.get("timeout_s")
        return f"its time limit of {limit} ends that" if limit else "nothing ends that but `torchx cancel`"
    if policy := wishes.get("retry"):
        return f"its policy `{policy}` says what follows"
    return "it has no policy for retries (`--retry`): this may be its end"
