"""Maps a Docker engine's container states to ours."""

from __future__ import annotations

from torchx.specs.api import AppState

CONTAINER_STATE: dict[str, AppState] = {
    "created": AppState.SUBMITTED,
    "restarting": AppState.PENDING,
    "running": AppState.RUNNING,
    "paused": AppState.PENDING,
    "removing": AppState.PENDING,
    "dead": AppState.FAILED,
}
"""The engine's states, except ``exited``, where the exit code decides.
https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerInspect"""

_PODMAN_STATE: dict[str, AppState] = {
    "configured": AppState.SUBMITTED,
    "initialized": AppState.SUBMITTED,
    "stopping": AppState.RUNNING,
}
"""https://github.com/containers/podman/blob/main/libpod/define/containerstate.go"""

_EXITED = ("exited", "stopped")


def container_state(raw: str, exit_code: int | None = None) -> AppState:
    """Return the state of a container in the engine's state ``raw``.

    >>> container_state("running"), container_state("exited", 1), container_state("?")
    (RUNNING (3), FAILED (5), UNKNOWN (7))
    """
    if raw in _EXITED:
        if exit_code is None:
            return AppState.UNKNOWN
        return AppState.FAILED if exit_code else AppState.SUCCEEDED
    return CONTAINER_STATE.get(raw) or _PODMAN_STATE.get(raw) or AppState.UNKNOWN
