"""The request of a local job, which ``--dryrun`` shows and the supervisor gets."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.names import FILE_NAME
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.local.path import program_path
from torchx.settings import torchx_home
from torchx.specs.api import AppDef, Role
from torchx.specs.ready import has_order
from torchx.supervisor.gang import RoleRules
from torchx.supervisor.layout import COMBINED_LOG, ERROR_FILE, STDERR_LOG, STDOUT_LOG, folder_name, replica_folder
from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from torchx.schedulers.local.images import ImageProvider
    from torchx.schedulers.local.options import Opts
    from torchx.supervisor.layout import ReplicaRequest, RoleRequest
ENV_CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
ENV_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_MANY = 1 << 30
_SHOWN = 3  # replicas of a role that a dryrun prints


@dataclass
class ReplicaParam:
    """How to start one replica.

    Attributes:
        args: the program and its arguments.
        env: variables that override the caller's environment.
        stdout, stderr, combined: paths of its logs; None: in the replica's log folder.
        cwd: its working directory; None: the caller's.
    """

    args: list[str]
    env: dict[str, str]
    stdout: str | None = None
    stderr: str | None = None
    combined: str | None = None
    cwd: str | None = None


@dataclass
class PopenRequest:
    """A local job.

    Attributes:
        log_dir: folder of this job's logs.
        role_params: replicas by role.
        role_log_dirs: log folders of the replicas, by role.
        role_rules: by role; a missing role has the defaults.
        cancel_grace_s: seconds between SIGTERM and SIGKILL.
        timeout: time limit of an attempt, such as ``2h``; empty: none.
        watchdog: silence after which the job is inspected, and the action then, such as ``10m:cancel``; empty: none.
        idle: time without use of GPUs and processors, and the action then; empty: none.
        order: what roles wait for and which end the job, by role; empty: they start at once.
        retry: the policy by cause, see :class:`torchx.specs.wishes.retries.RetryRules`; empty: none.
    """

    app_id: str
    log_dir: str
    role_params: dict[str, list[ReplicaParam]]
    role_log_dirs: dict[str, list[str]]
    role_rules: dict[str, RoleRules] = field(default_factory=dict)
    cancel_grace_s: float = 10.0
    retry: str = ""
    timeout: str = ""
    watchdog: str = ""
    idle: str = ""
    order: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"app_id: {self.app_id}", f"log_dir: {self.log_dir}", f"cancel_grace_s: {self.cancel_grace_s:g}"]
        for name in ("retry", "timeout", "watchdog", "idle"):
            if value := getattr(self, name):
                lines.append(f"{name}: {value}")
        for role, params in self.role_params.items():
            lines.append(f"role {role}: {len(params)} replica{'s' if len(params) != 1 else ''}{self._rules(role)}")
            for k, param in enumerate(params[:_SHOWN]):
                lines += _shown(k, param)
            if len(params) > _SHOWN:
                lines.append(f"  ... and {len(params) - _SHOWN:,} more")
        return "\n".join(lines)

    __repr__ = __str__  # never show the environment unmasked

    def _rules(self, role: str) -> str:
        rules = self.role_rules.get(role, RoleRules())
        text = f", at least {rules.min_replicas}" if rules.min_replicas is not None else ""
        if rules.max_retries and not self.retry:
            text += f", max_retries {rules.max_retries} ({rules.policy})"
        return text


def render_request(
    app: AppDef, opts: Opts, provider: ImageProvider, *, session: str, extra_paths: Sequence[str] = ()
) -> PopenRequest:
    """Return the request for a job. ``extra_paths`` are folders to search for programs before ``PATH``."""
    app_id = make_unique(FILE_NAME.make(app.name))
    base = os.path.abspath(os.path.expanduser(opts.log_dir)) if opts.log_dir else torchx_home("local")
    logs = os.path.join(base, folder_name(session), app_id)
    search = [*([os.getcwd()] if opts.prepend_cwd else []), *extra_paths]
    path = program_path(os.environ) if search else ""
    rules = {r.name: RoleRules(r.max_retries, r.retry_policy.value, r.min_replicas) for r in app.roles}
    request = PopenRequest(app_id, logs, {}, {}, rules, float(opts.cancel_grace_s))
    for role in app.roles:
        request.role_params[role.name], request.role_log_dirs[role.name] = [], []
    roots: dict[str, str] = {}

    def img_root(role: Role) -> str:
        roots[role.name] = provider.fetch_role(role)
        return roots[role.name]

    addresses = None
    if has_order(app):
        from torchx.schedulers.kit.order import order_requests
        from torchx.schedulers.local.order import addresses_of

        folder = os.path.join(torchx_home("local"), folder_name(session), folder_name(app_id))
        addresses = addresses_of(app, _this_host(), folder)
        request.order = order_requests(app, addresses)
    for replica in replicas(app, app_id, rank0_env=ENV_RANK0_HOST, img_root=img_root, addresses=addresses):
        role = replica.role
        folder = replica_folder(logs, role.name, replica.k)
        role.env.setdefault(ENV_ERROR_FILE, f"{folder}/{ERROR_FILE}")
        role.env.setdefault(ENV_RANK0_HOST, _this_host() if role.num_replicas > 1 else "localhost")
        role.env.setdefault("PET_LOG_DIR", f"{folder}/torchelastic/{role.name}")  # of torchrun
        if search:
            role.env["PATH"] = os.pathsep.join([*search, role.env.get("PATH") or path])
        files = (f"{folder}/{name}" for name in (STDOUT_LOG, STDERR_LOG, COMBINED_LOG))
        request.role_params[role.name].append(provider.get_replica_param(roots[role.name], role, *files))
        request.role_log_dirs[role.name].append(folder)
    return request


def replica_requests(request: PopenRequest, base_env: dict[str, str], *, resolve: bool = True) -> list[RoleRequest]:
    """Return the roles in the format of the supervisor, with folders checked and, if ``resolve``, programs located.

    A replica's own variables override ``base_env``. Raises SpecError if a program or working directory does not exist.
    """
    here = os.getcwd()
    found: dict[tuple[str, str, str], str] = {}
    roles: list[RoleRequest] = []
    for role, params in request.role_params.items():
        rules = request.role_rules.get(role) or RoleRules()
        members: list[ReplicaRequest] = []
        for param, folder in zip(params, request.role_log_dirs[role], strict=True):
            cwd = os.path.join(here, param.cwd) if param.cwd else here
            path = param.env.get("PATH") or base_env.get("PATH", os.defpath)
            key = (param.args[0], path, cwd)
            if resolve and key not in found:
                found[key] = _find(role, *key)
            members.append(
                {
                    "argv": param.args,
                    "exe": found.get(key),
                    "env": param.env,
                    "cwd": cwd,
                    "folder": folder,
                    "stdout": param.stdout or f"{folder}/{STDOUT_LOG}",
                    "stderr": param.stderr or f"{folder}/{STDERR_LOG}",
                }
            )
        roles.append(
            {
                "name": role,
                "max_retries": _MANY if request.retry else rules.max_retries,  # the policy counts
                "policy": rules.policy,
                "min_replicas": rules.min_replicas,
                "replicas": members,
            }
        )
    return roles


def check_scripts(request: PopenRequest, app: AppDef, base_env: Mapping[str, str]) -> None:
    """Reject a job whose script or torchrun does not exist, before anything is started.

    ``metadata["script"]`` of a role, set by components, is the file that its interpreter will run.
    """
    for role in app.roles:
        script: Any = role.metadata.get("script")
        params = request.role_params.get(role.name)
        if not params:
            continue
        cwd = os.path.abspath(params[0].cwd or "")
        named = isinstance(script, str) and "${" not in script
        if named and not os.path.exists(os.path.join(cwd, script)):
            from torchx.schedulers.kit.shell import quote
            from torchx.workspace.similar import similar_file

            meant = similar_file(script, cwd)
            raise SpecError(
                f"role `{role.name}`: script `{script}` does not exist",
                hint=(f"did you mean `{quote(meant)}`? " if meant else "")
                + f"torchx looked in `{cwd}`: run it from there, or give the full path",
            )
        if " ".join(params[0].args[1:3]).startswith("-c torchrun "):
            _check_torchrun(role.name, params[0].env.get("PATH") or base_env.get("PATH", os.defpath), cwd)


def move_logs(roles: list[RoleRequest], old: str, new: str) -> None:
    """Replace the log folder ``old`` by ``new`` in the result of :func:`replica_requests`."""

    def moved(path: str) -> str:
        return new + path[len(old) :] if path.startswith(old + os.sep) else path

    for replica in (replica for role in roles for replica in role["replicas"]):
        for key in ("folder", "stdout", "stderr"):
            replica[key] = moved(replica[key])
        replica["env"] = {name: moved(value) for name, value in replica["env"].items()}


def _check_torchrun(role: str, path: str, cwd: str) -> None:
    from torchx.util.procs import find_program

    if find_program("torchrun", path, cwd) is None:
        raise SpecError(
            f"role `{role}`: `torchrun` is not in PATH: PyTorch is not installed where the job would run",
            hint="`pip install torch` beside torchx, or run torchx from the environment that has it",
        )


def _find(role: str, name: str, path: str, cwd: str) -> str:
    from torchx.util.procs import find_program

    if not os.path.isdir(cwd):
        raise SpecError(
            f"role `{role}`: working directory `{cwd}` does not exist", hint="create it, or start from another folder"
        )
    exe = find_program(name, path, cwd)
    if exe is not None:
        return exe
    file = os.path.join(cwd, name)
    if os.sep in name and os.path.isdir(file):
        raise SpecError(f"role `{role}`: entrypoint `{name}` is a folder", hint="name the program in it")
    if os.sep in name and os.path.isfile(file):
        raise SpecError(f"role `{role}`: entrypoint `{name}` is not executable", hint=f"chmod +x {name}")
    if os.path.isfile(file):
        raise SpecError(
            f"role `{role}`: entrypoint `{name}` is not in PATH",
            hint=f"it is in the current directory: write `./{name}`, or use `-cfg prepend_cwd=True`",
        )
    where = "does not exist" if os.sep in name else "is not in PATH"
    raise SpecError(f"role `{role}`: entrypoint `{name}` {where}", hint="check its name, or install it")


def _shown(k: int, param: ReplicaParam) -> list[str]:
    import shlex

    from torchx.util.secrets import mask_args, mask_env

    lines = [f"  [{k}] {shlex.join(mask_args([str(arg) for arg in param.args]))}"]
    if param.cwd:
        lines.append(f"      cwd: {param.cwd}")
    if param.stdout:
        lines.append(f"      logs: {os.path.dirname(param.stdout)}")
    lines += [f"      {name}={value}" for name, value in sorted(mask_env(param.env).items())]
    return lines


@functools.cache
def _this_host() -> str:
    """Return the name of this host for its own processes: some files of hosts lack it."""
    import _socket

    try:
        _socket.getaddrinfo("localhost", None)
    except OSError:
        return "127.0.0.1"
    return "localhost"
