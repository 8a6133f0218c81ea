"""What is submitted to a Docker engine: the containers of a job, rendered from its definition."""

from __future__ import annotations

from torchx.schedulers.docker import parts
from torchx.schedulers.docker.causes import ERROR_FILE
from torchx.schedulers.docker.containers import (
    LABEL_APP_ID,
    LABEL_APP_NAME,
    LABEL_REPLICA_ID,
    LABEL_ROLE,
    LABEL_ROLE_NAME,
    LABEL_SESSION,
    LABEL_SIZES,
    LABEL_VERSION,
)
from torchx.schedulers.docker.gangs import LABEL_RULES, rules_for
from torchx.schedulers.kit.replicas import replicas
from torchx.settings import ENV_IMAGE
from torchx.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import dataclass, field
    from typing import Any

    from torchx.schedulers.docker.options import Opts
    from torchx.specs.api import AppDef
else:
    from torchx.util.records import dataclass, field

ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
ENV_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_SHOWN = 3  # replicas of a role in a dryrun
_UNSHOWN = ("labels", "name", "hostname", "environment", "network", "networking_config", "entrypoint", "memswap_limit")


@dataclass
class DockerContainer:
    """One replica: the arguments of ``client.containers.create`` of the `docker` package.

    Attributes:
        command: the entrypoint and its arguments.
        kwargs: all others, ``name``, ``environment``, ``labels`` and so on.
    """

    image: str
    command: list[str]
    kwargs: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        import shlex

        from torchx.util.secrets import mask_args, mask_env

        shown = {k: v for k, v in self.kwargs.items() if k not in _UNSHOWN and v not in (None, [], {}, False)}
        env: Any = self.kwargs.get("environment") or {}
        return "\n".join(
            [
                f"{self.kwargs.get('name', '')}: {shlex.join(mask_args([str(word) for word in self.command]))}",
                f"  image: {self.image}",
                *(f"  {name}: {parts.readable(name, value)}" for name, value in shown.items()),
                *(f"  {name}={value}" for name, value in sorted(mask_env(env).items())),
            ]
        )

    __repr__ = __str__  # the environment may hold secrets: nowhere is it shown unmasked


@dataclass
class DockerJob:
    """A job: its containers, in the order of their start.

    Attributes:
        images_to_push: image id -> (repository, tag), where the images are pushed as well.
    """

    app_id: str
    containers: list[DockerContainer]
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"app_id: {self.app_id}", f"network: {self.app_id}"]
        lines += [f"push: {repository}:{tag}" for repository, tag in self.images_to_push.values()]
        by_role: dict[str, list[DockerContainer]] = {}
        for container in self.containers:
            by_role.setdefault(label_of(container, LABEL_ROLE_NAME), []).append(container)
        for role, members in by_role.items():
            lines.append(f"role {role}: {len(members)} container{'s' if len(members) != 1 else ''}")
            lines += [f"  {line}" for shown in members[:_SHOWN] for line in str(shown).splitlines()]
            if len(members) > _SHOWN:
                lines.append(f"  ... and {len(members) - _SHOWN:,} more")
        return "\n".join(lines)

    __repr__ = __str__


# -- rendering ------------------------------------------------------------------------------------------


def render_job(
    app: AppDef, app_id: str, opts: Opts, *, session: str, environ: Mapping[str, str], place: str = ""
) -> DockerJob:
    """The containers of a job. ``app`` is not changed.

    Args:
        environ: where ``copy_env`` copies from.
        place: where the job's warden is to run.

    Raises:
        SpecError: names of two roles cannot be told apart in host names.
    """
    hosts = parts.host_names(app)
    rules = rules_for(app, opts.cancel_grace_s, place)
    common = {
        LABEL_VERSION: __version__,
        LABEL_APP_ID: app_id,
        LABEL_APP_NAME: app.name,
        LABEL_SESSION: session,
        LABEL_SIZES: parts.as_json([[role.name, role.num_replicas, role.min_replicas] for role in app.roles]),
        LABEL_RULES: rules.to_json(),
    }
    env = {**parts.copied(opts.copy_env or [], environ), **(opts.env or {})}
    gpus = parts.GpuShares(app)
    made = []
    for replica in replicas(app, app_id, rank0_env=ENV_RANK0_HOST):
        role, k = replica.role, replica.k
        host = f"{hosts[role.name]}-{k}"
        labels = {**common, LABEL_ROLE_NAME: role.name, LABEL_REPLICA_ID: str(k)}
        if k == 0:
            labels[LABEL_ROLE] = parts.definition(next(r for r in app.roles if r.name == role.name))
        name = f"{app_id}-{host}"  # an alias as well: the container may be renamed
        kwargs: dict[str, object] = {
            "name": name,
            "hostname": host,
            "environment": {
                ENV_IMAGE: role.image,
                ENV_RANK0_HOST: f"{hosts[role.name]}-0",
                ENV_ERROR_FILE: ERROR_FILE,
                **env,
                **role.env,
            },
            "labels": labels,
            "network": app_id,
            "networking_config": {app_id: {"Aliases": [host, name]}},
            "entrypoint": [""],  # the image's own is not run: on every backend a role's entrypoint is the program
            **parts.render_mounts(role),
            **parts.render_resource(role.resource),
            "device_requests": gpus.take(role.resource.gpu),
            "ports": parts.render_ports(role),
            "restart_policy": parts.render_retries(*rules.retries[role.name]),
            "privileged": opts.privileged,
        }
        made.append(DockerContainer(role.image, [role.entrypoint, *role.args], kwargs))
    return DockerJob(app_id, made)


def label_of(container: DockerContainer, label: str) -> str:
    """The label's value; empty when it has none."""
    labels: Any = container.kwargs.get("labels") or {}
    return str(labels.get(label, ""))
