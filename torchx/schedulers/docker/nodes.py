"""What is free on the machine of a Docker engine: what it has, less what running torchx containers were given."""

from __future__ import annotations

import re
from typing import Any

from torchx.schedulers.docker.client import side_by_side
from torchx.schedulers.docker.containers import LABEL_APP_ID
from torchx.schedulers.docker.doctor import is_here
from torchx.schedulers.kit.nodes import Node
from torchx.util.machine import gpu_ids
from torchx.workspace.images.engine_errors import engine_errors, is_missing

_GPU = re.compile(r"nvidia\.com/gpu=\d+")  # not `=all`, nor the same GPUs by UUID


def nodes(client: Any) -> list[Node]:
    """Return the engine's machine. Containers without limits, and other programs, may use what counts as free."""
    with engine_errors("what the engine's machine has is not known"):
        found = client.info()
        running = client.api.containers(filters={"label": [LABEL_APP_ID]})
        hosts = side_by_side(lambda container: _limits(client, container["Id"]), running)
    cpus, memory, gpus = int(found.get("NCPU") or 0), int(found.get("MemTotal") or 0), _gpus(found)
    taken_cpus = sum(int(host.get("NanoCpus") or 0) for host in hosts) / 1e9
    taken_memory = sum(int(host.get("Memory") or 0) for host in hosts)
    taken_gpus = sum(_held(request, gpus) for host in hosts for request in host.get("DeviceRequests") or ())
    return [
        Node(
            str(found.get("Name") or "the engine's machine"),
            cpus,
            memory >> 20,
            gpus,
            free_cpus=max(int(cpus - taken_cpus), 0),
            free_memory_mb=max(memory - taken_memory, 0) >> 20,
            free_gpus=max(gpus - taken_gpus, 0) if gpus >= 0 else -1,
        )
    ]


def _limits(client: Any, container: str) -> dict[str, Any]:
    import docker.errors

    try:
        return client.api.inspect_container(container)["HostConfig"] or {}
    except docker.errors.APIError as e:
        if is_missing(e):
            return {}  # it was removed meanwhile
        raise


def _gpus(found: dict[str, Any]) -> int:
    """Return the number of GPUs; -1: unknown, as an engine elsewhere only names those that have a CDI description."""
    if is_here(found):
        return len(gpu_ids())
    devices = found.get("DiscoveredDevices")
    if devices is None:
        return -1
    return len({str(device.get("ID")) for device in devices if _GPU.fullmatch(str(device.get("ID")))})


def _held(request: dict[str, Any], total: int) -> int:
    count = int(request.get("Count") or 0)
    return max(total, 0) if count < 0 else count or len(request.get("DeviceIDs") or ())
