"""Exports a job as a file for ``docker compose``: https://docs.docker.com/reference/compose-file/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx.schedulers.docker.request import DockerContainer, DockerJob
from torchx.schedulers.kit.export import MACHINERY, Export, build_lines, refuse_order
from torchx.schedulers.kit.manifests import to_yaml
from torchx.schedulers.kit.shell import quote, read_script

COMPOSE = "compose.yaml"


def export(job: DockerJob, bases: Mapping[str, str]) -> Export:
    """Export a job with one service per replica. For ``bases`` see :func:`torchx.schedulers.kit.export.bases_of`."""
    refuse_order(job.rules.order, "`docker compose`")
    names = {image: f"{job.app_id}:{image.rpartition(':')[2][:12]}" for image in bases}
    services = {str(c.kwargs["hostname"]): _service(c, names) for c in job.containers}
    volumes = {
        str(mount["Source"]): {"name": str(mount["Source"])}
        for c in job.containers
        for mount in _list(c.kwargs.get("mounts"))
        if mount["Type"] == "volume"
    }
    lines, files = build_lines({names[image]: base for image, base in bases.items()}, push=False)
    secrets = [*dict.fromkeys(name for c in job.containers for name in c.secret)]
    notes = []
    if secrets:
        notes.append(f"`docker inspect` shows the values of {', '.join(secrets)} while the containers exist.")
    if any(c.may_restart and not c.kwargs.get("restart_policy") for c in job.containers):
        notes.append("Retries of a role or of the whole job are not exported: the first failure is final.")
    if job.rules.watchdog:
        notes.append(f"No watchdog detects that the job is silent (`{job.rules.watchdog}`).")
    if job.rules.idle:
        notes.append(f"An idle job is not detected (`{job.rules.idle}`).")
    text = to_yaml({"services": services, **({"volumes": volumes} if volumes else {})}, in_lines=True)
    return Export(
        files={COMPOSE: text, MACHINERY: read_script(__file__, "export.sh"), **files},
        about={
            COMPOSE: "the job: a service for each replica, with its image, environment, resources and command",
            MACHINERY: "starts the services, stops all when one has failed, saves the output",
            **({"Dockerfile": "how the code gets into the image"} if files else {}),
        },
        run="\n".join([*lines, f"project={quote(job.app_id)}", f'. "$here/{MACHINERY}"']),
        needs="a Docker engine, and `docker compose` or `docker-compose`",
        logs="`logs/TIME/ROLE-K.stdout.log` and `.stderr.log`",
        secrets=secrets,
        notes=notes,
    )


def _list(value: object) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else []


def _service(container: DockerContainer, names: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = container.kwargs
    image = names.get(container.image, container.image)
    env = {k: image if v == container.image else v for k, v in given["environment"].items()}
    app_id, own = str(given["network"]), given.get("entrypoint", "") is None  # the image's program
    service: dict[str, Any] = {
        "image": image,
        "hostname": given["hostname"],
        "entrypoint": None if own else [_literal(word) for word in container.command],
        "command": [_literal(word) for word in container.command] if own else [],
        "environment": {**{k: _literal(v) for k, v in env.items()}, **dict.fromkeys(container.secret)},
        "networks": {"default": {"aliases": given["networking_config"][app_id]["Aliases"]}},
        "shm_size": given.get("shm_size"),
        "mem_limit": given.get("mem_limit"),
        "memswap_limit": given.get("memswap_limit"),
        "cpus": given["nano_cpus"] / 1e9 if given.get("nano_cpus") else None,
        "volumes": [_volume(mount) for mount in _list(given.get("mounts"))],
        "devices": given.get("devices"),
        "ports": [f"{hosts[0]}::{port.partition('/')[0]}" for port, hosts in (given.get("ports") or {}).items()],
        "privileged": given.get("privileged") or None,
    }
    if restart := given.get("restart_policy"):
        service["restart"] = f"{restart['Name']}:{restart['MaximumRetryCount']}"
    if gpus := _list(given.get("device_requests")):
        service["deploy"] = {"resources": {"reservations": {"devices": [_gpus(request) for request in gpus]}}}
    return {k: v for k, v in service.items() if v not in (None, {}) and (v != [] or k == "command")}


def _volume(mount: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": mount["Type"],
        "source": _literal(mount["Source"]),
        "target": _literal(mount["Target"]),
        "read_only": bool(mount["ReadOnly"]),
    }


def _gpus(request: Mapping[str, Any]) -> dict[str, Any]:
    which = {k: request[k] for k in ("count", "device_ids") if k in request}
    return {"driver": "nvidia", **which, "capabilities": ["gpu", *request["capabilities"][0]]}


def _literal(text: object) -> str:
    """Escapes text so that compose substitutes no variables in it."""
    return str(text).replace("$", "$$")
