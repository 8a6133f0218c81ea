"""What the words of a Docker engine mean: states of containers, and refusals."""

from __future__ import annotations

import re

from torchx.specs.api import AppState

CONTAINER_STATE: dict[str, AppState] = {
    "created": AppState.SUBMITTED,
    "restarting": AppState.PENDING,
    "running": AppState.RUNNING,
    "paused": AppState.PENDING,
    "removing": AppState.PENDING,
    "dead": AppState.FAILED,
}
"""The engine's states, less ``exited``, where the exit code decides.
https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerInspect"""

_PODMAN_STATE: dict[str, AppState] = {
    "configured": AppState.SUBMITTED,
    "initialized": AppState.SUBMITTED,
    "stopping": AppState.RUNNING,
}
"""https://github.com/containers/podman/blob/main/libpod/define/containerstate.go"""

NO_PROGRAM = "its entrypoint is not a program of its image"

_EXITED = ("exited", "stopped")

# What the engine says (Docker 20.10 to 28, Podman 4 and 5) -> what it means, and what to do about it.
_MEANINGS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning, hint)
    for pattern, meaning, hint in (
        (
            r"could not select device driver|nvidia-container|unresolvable CDI devices|"
            r"setting up CDI devices|failed to inject CDI|no CDI devices|unknown device",
            "the engine cannot give it the GPUs that it asks for",
            "install the NVIDIA container toolkit on the engine's machine, ask for fewer GPUs, or run with `gpu=0`",
        ),
        (
            r"Range of CPUs is from",
            "it asks for more CPUs than the engine's machine has",
            "ask for fewer: `--cpu`, or another `-h <named resource>`",
        ),
        (
            r"Minimum memory limit",
            "it asks for less memory than the engine can limit",
            "ask for more: `--memMB`, or another `-h <named resource>`",
        ),
        (
            r"port is already allocated|address already in use",
            "a port that it publishes is in use on the engine's machine",
            "end what uses it (`docker ps`), or choose another port in the role's `port_map`",
        ),
        (
            r"bind source path does not exist|statfs .*: no such file",
            "what it mounts does not exist on the engine's machine",
            "check the `src` of its mounts",
        ),
        (
            r"error gathering device information|not a device node|stat /dev/",
            "a device that it mounts does not exist on the engine's machine",
            "check the `src` of its mounts",
        ),
        (
            r"executable file not found|stat .*: no such file or directory|exec: .*(no such file|permission denied)",
            NO_PROGRAM,
            "check the entrypoint and the image: a program of this machine is not in it",
        ),
        (
            r"no such image|pull access denied|manifest unknown|manifest for .* not found|repository .* not found",
            "there is no such image",
            "check its name; for one of a private registry, `docker login` first",
        ),
        (
            r"non-overlapping IPv4 address pool|pools have been fully subnetted|could not find free subnet",
            "the engine has no address range left for the job's network",
            "delete old jobs (`torchx delete`), or `docker network prune`",
        ),
        (
            r"no such host|dial tcp|TLS handshake|i/o timeout|connection refused|server misbehaving",
            "its registry does not answer",
            "is its registry reachable from the engine's machine? `docker images` shows what is there already",
        ),
        (r"no space left on device", "the engine's disk is full", "`docker system df` shows what fills it"),
    )
)


def container_state(raw: str, exit_code: int | None = None) -> AppState:
    """Our state for the engine's.

    >>> container_state("running"), container_state("exited", 1), container_state("?")
    (RUNNING (3), FAILED (5), UNKNOWN (7))
    """
    if raw in _EXITED:
        if exit_code is None:
            return AppState.UNKNOWN
        return AppState.FAILED if exit_code else AppState.SUCCEEDED
    return CONTAINER_STATE.get(raw) or _PODMAN_STATE.get(raw) or AppState.UNKNOWN


def meaning_of(said: str) -> tuple[str, str]:
    """What an answer of the engine means, and what to do; empty texts when it speaks for itself.

    >>> meaning_of("Bind for 0.0.0.0:80 failed: port is already allocated")[0]
    "a port that it publishes is in use on the engine's machine"
    >>> meaning_of("something else")
    ('', '')
    """
    return next(((meaning, hint) for pattern, meaning, hint in _MEANINGS if pattern.search(said)), ("", ""))
