"""The script that runs the replicas of an LSF job: one file in the job's folder, called as ``replicas.sh ROLE_INDEX
K``.

LSF runs one job per replica, each with this script (its program is ``replica.sh``). The script coordinates the
replicas:

* Replica 0 of a role writes its host to ``rank0.<role index>.<attempt>``. The others wait for that file, and query
  ``bjobs`` if it does not appear.
* A failed replica with retries left exits with ``REQUEUE_CODE``, for which ``bsub -Q`` makes LSF requeue it. With the
  policies APPLICATION and ROLE it also requeues the others (``brequeue``), once for all.
* The first replica without retries that fails ends the others (``bkill``); an elastic role first loses its spare
  replicas.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.schedulers.batch.folders import folder_name
from torchx.schedulers.batch.order import with_hooks
from torchx.schedulers.kit.replicas import Replica
from torchx.schedulers.kit.secrets import revealed, split
from torchx.schedulers.kit.shell import env_words, exports, quote, read_script
from torchx.schedulers.lsf.options import Opts, in_docker
from torchx.schedulers.lsf.order import addresses_of, part
from torchx.schedulers.lsf.parse import group_of, job_name
from torchx.settings import ENV_CHECKPOINT, ENV_PROGRESS, ENV_STEPS
from torchx.specs.api import AppDef, BindMount, DeviceMount, RetryPolicy, Role, VolumeMount
from torchx.specs.mounts import format_mount
from torchx.specs.wishes import Wishes

if TYPE_CHECKING:
    from torchx.specs.order import RoleOrder

REPLICAS_FILE = "replicas.sh"
SUBMIT_FILE = "submit.sh"
REPORTS = "reports"
RESTARTS_FILE = "restarts"
EXIT_FILE = "exit"
UP_FILE = "up"
SILENT_FILE = "silent"
STARTED_FILE = "started"
ENDED_FILE = "ended"
SUBMITTED_FILE = "submitted"
ATTEMPT_FILE = "attempt"
CANCELLED_FILE = "cancelled"
REQUEUE_CODE = 99
_LEFT_OUT = "# ... (torchx_run and its functions, the same in every job)"
# Variables that bash does not allow to be set, but `env` does.
READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
ENV_RANK0_PORT = "TORCHX_RANK0_PORT"


def render_replicas(
    app_id: str,
    app: AppDef,
    members: list[Replica],
    cfg: Opts,
    *,
    whole: bool = True,
    orders: dict[str, RoleOrder] | None = None,
) -> str:
    """Return the text of ``replicas.sh`` for these replicas; not ``whole``:
    without the part that is the same in every job.
    """
    own_network = in_docker(cfg) and not cfg.host_network  # the ports of the host do not apply to replicas
    wishes, more = Wishes.of(app), []
    python, watch = ((sys.executable or "python3") if wish else "" for wish in (wishes.retry, wishes.watchdog))
    parts = [name for name, wished in (("retries.sh", python), ("watchdog.sh", watch)) if wished]
    if parts and whole:
        from torchx.schedulers.batch.attempts import script

        more = [with_hooks(script(__file__, *parts), bool(orders))]
    lines = [
        "#!/bin/bash",
        f"# The replicas of torchx job {app_id}; LSF runs this with the number of the role and of the replica.",
        f"app={quote(app_id)} group={quote(group_of(app_id))} own_network={'1' if own_network else ''}"
        f" total={sum(role.num_replicas for role in app.roles)} python={quote(python)}"
        f" watch={quote(watch)} wish={quote(wishes.texts.get('watchdog', ''))}",
        *more,
        *([part(app, orders, retry=bool(python))] if orders else []),
        with_hooks(read_script(__file__, "replica.sh").strip(), bool(orders)) if whole else _LEFT_OUT,
        'case "$1.$2" in',
    ]
    numbers = {role.name: index for index, role in enumerate(app.roles)}
    late = addresses_of(app)[1] if orders else {}
    for member in members:
        lines += _replica(app_id, numbers[member.role.name], member, cfg, retry=bool(python), late=late)
    return "\n".join([*lines, '*) echo "torchx: no replica $1.$2" >&2; exit 64 ;;', "esac", ""])


def _replica(app_id: str, index: int, member: Replica, cfg: Opts, *, retry: bool, late: Mapping[str, str]) -> list[str]:
    role, k = member.role, member.k
    folder = folder_name(role.name)
    everybody = role.retry_policy is RetryPolicy.APPLICATION
    spare = 0 if role.min_replicas is None else role.num_replicas - role.min_replicas
    name = job_name(app_id, index, role.name, k)
    rank0 = job_name(app_id, index, role.name, 0)
    plain, secret = split(role.env)
    words = env_words(plain, late)
    fixed = [f"{name}={quote(value, late)}" for name, value in plain.items() if name in READ_ONLY]
    words += fixed if words or not fixed else ["env", *fixed]
    container = f"torchx_container {_container(name)}" if in_docker(cfg) else "exec --"
    return [
        f"{index}.{k})",
        f"role={index} k={k} folder={quote(posixpath.join(folder, str(k)))} rank0={quote(rank0)}",
        f"policy={role.retry_policy.value} retries={0 if retry else role.max_retries} spare={spare}"
        + (" scope=$job" if everybody else f" scope=$job/{quote(folder)}"),
        *([f"ports={quote(' '.join(map(str, role.port_map.values())))}"] if late else []),
        f"cwd={quote(role.image)}" if posixpath.isabs(role.image) else "cwd=$PWD",
        "torchx_program() {",
        *exports({name: value for name, value in plain.items() if name not in READ_ONLY}, late),
        *(["torchx_secrets"] if secret else []),
        " ".join([container, *words, get_command(name, role, cfg, late)]),
        "}",
        'torchx_run "$3" ;;' if retry else "torchx_run ;;",
    ]


def render_secrets(app: AppDef, members: list[Replica], known: dict[str, str]) -> str:
    """Return the text of ``secrets.sh``, which replicas read; empty without secrets. ``known``:
    the looked-up values.
    """
    numbers = {role.name: index for index, role in enumerate(app.roles)}
    cases = []
    for member in members:
        lines = exports(revealed(split(member.role.env)[1], known))
        cases += [f"{numbers[member.role.name]}.{member.k})", *lines, ";;"] if lines else []
    return "\n".join(["case $role.$k in", *cases, "esac", ""]) if cases else ""


def _container(name: str) -> str:
    return f'{quote(f"torchx-{name}")}"$suffix"'  # the attempt, because attempts may overlap


def get_command(job_name: str, role: Role, cfg: Opts, known: Mapping[str, str] | None = None) -> str:
    """Return the shell command line of one replica; ``known``: placeholders, with their variables."""
    if in_docker(cfg):
        return get_docker_command(job_name, role, cfg, known)
    return " ".join(quote(word, known) for word in [role.entrypoint, *role.args])


def get_docker_command(job_name: str, role: Role, cfg: Opts, known: Mapping[str, str] | None = None) -> str:
    """Return the shell command line of a replica in a container, run as the user; ``$job`` is the job's folder there,
    too. ``known``: see :func:`get_command`.
    """
    words = []
    late = ['-u "$(id -u):$(id -g)"', '-v "$job:$job"', f"-e {ENV_RANK0_HOST}", f"-e {ENV_RANK0_PORT}"]
    late += ["-e TORCHELASTIC_ERROR_FILE", f"-e {ENV_CHECKPOINT}", f"-e {ENV_PROGRESS}", f"-e {ENV_STEPS}"]
    for mount in role.mounts:
        if isinstance(mount, DeviceMount):
            words += ["--device", f"{mount.src_path}:{mount.dst_path}:{mount.permissions}"]
        elif isinstance(mount, BindMount | VolumeMount):
            words += ["--mount", format_mount(mount)]
    # Names only: the values come from the environment, and stay out of the host's process list.
    words += [word for variable in role.env for word in ("-e", variable)]
    words += ["--network", "host"] if cfg.host_network else []
    for port in sorted(set(role.port_map.values())) if not cfg.host_network else []:
        words += ["-p", f"{port}:{port}"]
    words += ["--shm-size", cfg.shm_size] if cfg.shm_size else []
    words += ["-w", cfg.container_workdir] if cfg.container_workdir else []
    if role.resource.gpu > 0:
        late += ['--gpus "\\"device=$CUDA_VISIBLE_DEVICES\\""']
    end = ["--entrypoint", role.entrypoint, role.image, *role.args]
    head = f"docker run --rm --init --name {_container(job_name)}"
    return " ".join([head, *(quote(w, known) for w in words), *late, *(quote(w, known) for w in end)])
