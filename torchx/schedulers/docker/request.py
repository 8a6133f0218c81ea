"""Renders a job as the arguments of ``client.containers.create``, for each of its containers.

https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerCreate
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from os.path import expanduser
from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.devices import get_device_mounts
from torchx.schedulers.docker.attempts import STEPS, marks
from torchx.schedulers.docker.containers import (
    LABEL_APP_ID,
    LABEL_APP_NAME,
    LABEL_REPLICA_ID,
    LABEL_ROLE,
    LABEL_ROLE_NAME,
    LABEL_SESSION,
    LABEL_SIZES,
    LABEL_VERSION,
    Mark,
    join_name,
)
from torchx.schedulers.docker.evidence import ERROR_FILE
from torchx.schedulers.docker.gangs import LABEL_RULES, REPLICA, Rules, rules_for
from torchx.schedulers.docker.options import Opts
from torchx.schedulers.kit.names import DNS_LABEL, NameRule, plain_metadata
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.secrets import split
from torchx.settings import ENV_IMAGE, ENV_STEPS
from torchx.specs.api import AppDef, BindMount, Resource, Role, VolumeMount
from torchx.specs.order import Addresses
from torchx.specs.serialize import masked, role_to_dict
from torchx.util.records import dataclass, field
from torchx.util.secrets import mask_args, mask_env
from torchx.version import __version__

NAME_RULE = NameRule(63)  # the limit of DNS labels
ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
ENV_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_MAX_PRINTED = 3  # replicas of a role in a dry run
_HIDDEN = ("labels", "name", "hostname", "environment", "network", "networking_config", "entrypoint", "memswap_limit")

_SHM_BYTES = 8 << 30
"""Limit of ``/dev/shm`` for a role without a memory request."""


@dataclass
class DockerContainer:
    """One replica: the arguments of ``client.containers.create`` of the `docker` package.

    Attributes:
        command: the entrypoint and its arguments; those of the image's own if ``entrypoint`` of ``kwargs`` is None.
        kwargs: all other arguments: ``name``, ``environment``, ``labels`` and so on.
        secret: secrets, which are kept out of ``environment`` because every user can inspect it; see `secrets.py`.
        may_restart: it may be restarted, by the engine or with its gang.
        waits: it is created and started later, when other roles are ready.
    """

    image: str
    command: list[str]
    kwargs: dict[str, object] = field(default_factory=dict)
    secret: dict[str, str] = field(default_factory=dict)
    may_restart: bool = False
    waits: bool = False

    @property
    def role(self) -> str:
        """Name of its role; empty if it has no such label."""
        labels: Any = self.kwargs.get("labels") or {}
        return str(labels.get(LABEL_ROLE_NAME, ""))

    def __str__(self) -> str:
        printed = {k: v for k, v in self.kwargs.items() if k not in _HIDDEN and v not in (None, [], {}, False)}
        env: Any = self.kwargs.get("environment") or {}
        program = "" if self.kwargs.get("entrypoint") else "(ENTRYPOINT of the image) "
        return "\n".join(
            [
                f"{self.kwargs.get('name', '')}: {program}{shlex.join(mask_args([*map(str, self.command)]))}",
                f"  image: {self.image}",
                *(f"  {name}: {_readable(name, value)}" for name, value in printed.items()),
                *(f"  {name}={value}" for name, value in sorted(mask_env({**env, **self.secret}).items())),
            ]
        )

    __repr__ = __str__  # the environment may hold secrets, which must always be masked


@dataclass
class DockerJob:
    """A job: its containers, in the order in which they are started.

    Attributes:
        images_to_push: image id -> (repository, tag) to push it to.
        rules: how failures are handled.
    """

    app_id: str
    containers: list[DockerContainer]
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)

    def __str__(self) -> str:
        lines = [f"app_id: {self.app_id}", f"network: {self.app_id}"]
        names = {"retry": "policy", "timeout": "timeout", "watchdog": "watchdog", "idle": "idle"}
        lines += [f"{name}: {wish}" for name, rule in names.items() if (wish := getattr(self.rules, rule))]
        lines += [f"push: {repository}:{tag}" for repository, tag in self.images_to_push.values()]
        by_role: dict[str, list[DockerContainer]] = {}
        for container in self.containers:
            by_role.setdefault(container.role, []).append(container)
        for role, members in by_role.items():
            lines.append(f"role {role}: {len(members)} container{'s' if len(members) != 1 else ''}")
            lines += [f"  {line}" for container in members[:_MAX_PRINTED] for line in str(container).splitlines()]
            if len(members) > _MAX_PRINTED:
                lines.append(f"  ... and {len(members) - _MAX_PRINTED:,} more")
        return "\n".join(lines)

    __repr__ = __str__


def render_job(
    app: AppDef, app_id: str, opts: Opts, *, session: str, environ: Mapping[str, str], place: str = "", **wishes: str
) -> DockerJob:
    """Render the containers of a job, without changing ``app``; SpecError if two roles would share a host name.

    ``copy_env`` copies from ``environ``. For ``place`` and ``wishes`` see
    :func:`torchx.schedulers.docker.gangs.rules_for`.
    """
    hosts = _host_names(app)
    rules = rules_for(app, opts.cancel_grace_s, place, **wishes)
    sizes = [[role.name, role.num_replicas, role.min_replicas] for role in app.roles]
    labels_of_app = {
        **plain_metadata(app),
        LABEL_VERSION: __version__,
        LABEL_APP_NAME: app.name,
        LABEL_SIZES: _as_json(sizes),
    }
    common = {**labels_of_app, LABEL_APP_ID: app_id, LABEL_SESSION: session, LABEL_RULES: rules.to_json()}
    env = {**_copied(opts.copy_env or [], environ), **(opts.env or {})}
    if rules.policy or rules.watchdog:
        env = {**marks(rules.policy), **env}
    shares_gpus = sum(role.num_replicas for role in app.roles if role.resource.gpu > 0) > 1
    gpus = 0
    job = DockerJob(app_id, [], rules=rules)
    addresses = Addresses(app, lambda role, k: f"{hosts[role.name]}-{k}") if rules.order else None
    for replica in replicas(app, app_id, rank0_env=ENV_RANK0_HOST, addresses=addresses):
        role, host = replica.role, hosts[replica.role.name]
        labels = {**common, LABEL_ROLE_NAME: role.name, LABEL_REPLICA_ID: str(replica.k)}
        if replica.k == 0:
            labels[LABEL_ROLE] = _definition(next(r for r in app.roles if r.name == role.name))
        plain, secret = split(
            {ENV_RANK0_HOST: f"{host}-0", ENV_ERROR_FILE: ERROR_FILE, ENV_STEPS: STEPS, **env, **role.env}
        )
        kwargs = {
            **_render_place(app_id, f"{host}-{replica.k}"),
            **_render_mounts(role),
            **_render_resource(role.resource),
            "environment": {ENV_IMAGE: role.image, **plain},
            "labels": labels,
            # The role's entrypoint is the program, unless it can only be an option of the image's own.
            "entrypoint": None if opts.keep_entrypoint or is_option(role.entrypoint) else [""],
            "device_requests": _render_gpus(role.resource.gpu, gpus if shares_gpus else None),
            # The engine chooses the published port, as all jobs of `dist.ddp` listen at 29500; `torchx status` shows
            # it. On the loopback address it is private to the machine.
            "ports": {f"{port}/tcp": ("127.0.0.1",) for port in role.port_map.values()},
            "restart_policy": _render_retries(*rules.retries[role.name]),
            "privileged": opts.privileged,
        }
        words = [word for word in (role.entrypoint,) if word] + role.args
        may_restart = bool(rules.policy) or any(r.max_retries for r in app.roles)
        waits = bool(rules.order and role.after)
        if waits:
            kwargs["name"] = join_name(str(kwargs["name"]), Mark(due=True))
        job.containers.append(DockerContainer(role.image, words, kwargs, secret, may_restart, waits))
        gpus += max(role.resource.gpu, 0)
    return job


def is_option(entrypoint: str) -> bool:
    """Return whether an entrypoint is none, or an option of the program that the image starts."""
    return not entrypoint or entrypoint.startswith("-")


def _render_place(app_id: str, host: str) -> dict[str, object]:
    """Return the names of a container. Its name is also a network alias, which stays when the container is renamed."""
    name = f"{app_id}-{host}"
    aliases = {app_id: {"Aliases": [host, name]}}
    return {"name": name, "hostname": host, "network": app_id, "networking_config": aliases}


def _host_names(app: AppDef) -> dict[str, str]:
    """Role -> prefix of its replicas' host names. Raises SpecError if two roles would share it."""
    names: dict[str, str] = {}
    for role in app.roles:
        name = DNS_LABEL.make(role.name, room=len(f"-{role.num_replicas}"))
        other = next((r for r, n in names.items() if n == name), None)
        if other is not None:
            raise SpecError(
                f"roles `{other}` and `{role.name}` would share the host name `{name}`",
                hint="host names have only lower case letters, digits and dashes: rename one of the roles",
            )
        names[role.name] = name
    return names


def _definition(role: Role) -> str:
    """Return the role as JSON, with secrets masked: every user of the engine can read labels."""
    return _as_json(role_to_dict(masked(AppDef("", [role])).roles[0], fallback=repr))


def _as_json(value: object) -> str:
    """Compact JSON; values of other types become strings."""
    return json.dumps(value, default=str, separators=(",", ":"))


def _readable(name: str, value: object) -> str:
    """Return an argument of ``create`` in readable units.

    >>> _readable("mem_limit", 1 << 30), _readable("nano_cpus", 1500000000), _readable("ports", {"80/tcp": 80})
    ('1024 MiB', '1.5 CPUs', '{"80/tcp":80}')
    """
    if name in ("mem_limit", "shm_size") and isinstance(value, int):
        return f"{value / (1 << 20):g} MiB"
    if name == "nano_cpus" and isinstance(value, int):
        return f"{value / 1e9:g} CPUs"
    return value if isinstance(value, str) else _as_json(value)


def _copied(patterns: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names match one of the patterns.

    >>> _copied(["NCCL_*"], {"NCCL_DEBUG": "INFO", "HOME": "/"})
    {'NCCL_DEBUG': 'INFO'}
    """
    return {name: value for name, value in environ.items() if any(fnmatchcase(name, p) for p in patterns)}


def _render_mounts(role: Role) -> dict[str, object]:
    """``mounts`` and ``devices`` of ``create``: the role's mounts, and the device files of its resource's devices."""
    mounts: list[dict[str, object]] = []
    devices: list[str] = []
    for mount in [*role.mounts, *get_device_mounts(role.resource.devices)]:
        if isinstance(mount, (BindMount, VolumeMount)):
            source = expanduser(mount.src_path) if isinstance(mount, BindMount) else mount.src
            kind = "bind" if isinstance(mount, BindMount) else "volume"
            mounts.append({"Type": kind, "Source": source, "Target": mount.dst_path, "ReadOnly": mount.read_only})
        else:
            devices.append(f"{mount.src_path}:{mount.dst_path}:{mount.permissions}")
    return {"mounts": mounts, "devices": devices}


def _render_resource(resource: Resource) -> dict[str, object]:
    """Limits for CPUs, memory (without swap) and ``/dev/shm``.

    ``/dev/shm`` may use all of the memory: PyTorch's data loaders pass batches through it. Docker's default is 64 MB.
    """
    limits: dict[str, object] = {"shm_size": _SHM_BYTES}
    if resource.is_unset:
        return limits
    if resource.cpu > 0:
        limits["nano_cpus"] = int(resource.cpu * 1e9)
    if resource.memMB > 0:
        memory = resource.memMB << 20
        limits.update(mem_limit=memory, memswap_limit=memory, shm_size=memory)
    return limits


def _render_gpus(count: int, first: int | None) -> list[dict[str, object]]:
    """``device_requests`` for GPUs ``first`` to ``first + count - 1``; for any GPUs if ``first`` is None.

    ``compute`` and ``utility`` are CUDA and ``nvidia-smi``:
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html#driver-capabilities
    """
    if count <= 0:
        return []
    which = {"count": count} if first is None else {"device_ids": [str(i) for i in range(first, first + count)]}
    return [{**which, "capabilities": [["compute", "utility"]]}]


def _render_retries(most: int, policy: str) -> dict[str, object] | None:
    """Return the engine's restart policy: https://docs.docker.com/engine/containers/start-containers-automatically/"""
    if most <= 0 or policy != REPLICA:
        return None
    return {"Name": "on-failure", "MaximumRetryCount": most}
