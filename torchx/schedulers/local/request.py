"""The request of a local job: what ``--dryrun`` shows, and what its supervisor gets."""

from __future__ import annotations

import os

from torchx.errors import SpecError
from torchx.supervisor.layout import STDERR_LOG, STDOUT_LOG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass, field
    from typing import Any

    from torchx.specs.api import AppDef
else:
    from torchx.util.records import dataclass, field

_SHOWN = 3  # replicas of a role that a dryrun prints


@dataclass
class ReplicaParam:
    """How one replica is started.

    Attributes:
        args: the program and its arguments.
        env: on top of the caller's environment.
        stdout, stderr, combined: paths of its logs; below the replica's folder of logs when None.
        cwd: its working directory; the caller's when None.
    """

    args: list[str]
    env: dict[str, str]
    stdout: str | None = None
    stderr: str | None = None
    combined: str | None = None
    cwd: str | None = None


@dataclass
class RoleRules:
    """How failures in a role are dealt with; see :class:`torchx.supervisor.gang.Gang`."""

    max_retries: int = 0
    policy: str = "APPLICATION"
    min_replicas: int | None = None


@dataclass
class PopenRequest:
    """A local job.

    Attributes:
        log_dir: folder of this job's logs.
        role_params: replicas by role.
        role_log_dirs: folder of each replica's logs, by role.
        role_rules: by role; the defaults for one that is missing.
        cancel_grace_s: seconds between SIGTERM and SIGKILL.
    """

    app_id: str
    log_dir: str
    role_params: dict[str, list[ReplicaParam]]
    role_log_dirs: dict[str, list[str]]
    role_rules: dict[str, RoleRules] = field(default_factory=dict)
    cancel_grace_s: float = 10.0

    def __str__(self) -> str:
        lines = [f"app_id: {self.app_id}", f"log_dir: {self.log_dir}", f"cancel_grace_s: {self.cancel_grace_s:g}"]
        for role, params in self.role_params.items():
            lines.append(f"role {role}: {len(params)} replica{'s' if len(params) != 1 else ''}{self._rules(role)}")
            for k, param in enumerate(params[:_SHOWN]):
                lines += _shown(k, param)
            if len(params) > _SHOWN:
                lines.append(f"  ... and {len(params) - _SHOWN:,} more")
        return "\n".join(lines)

    __repr__ = __str__  # the environment may hold secrets: nowhere is it shown unmasked

    def _rules(self, role: str) -> str:
        rules = self.role_rules.get(role, RoleRules())
        text = f", at least {rules.min_replicas}" if rules.min_replicas is not None else ""
        if rules.max_retries:
            text += f", max_retries {rules.max_retries} ({rules.policy})"
        return text


def replica_requests(request: PopenRequest, base_env: dict[str, str]) -> list[dict[str, Any]]:
    """The roles as a supervisor takes them: programs found, folders checked.

    Args:
        base_env: what all replicas get; each one's own comes on top.

    Raises:
        SpecError: a program or a working directory does not exist.
    """
    here = ""
    found: dict[tuple[str, str, str], str] = {}
    roles: list[dict[str, Any]] = []
    for role, params in request.role_params.items():
        rules = request.role_rules.get(role) or RoleRules()
        replicas = []
        for param, folder in zip(params, request.role_log_dirs[role], strict=True):
            here = here or os.getcwd()
            cwd = os.path.join(here, param.cwd) if param.cwd else here
            path = param.env.get("PATH") or base_env.get("PATH", os.defpath)
            key = (param.args[0], path, cwd)
            exe = found.get(key)
            if exe is None:
                exe = found[key] = _find(role, *key)
            replicas.append(
                {
                    "argv": param.args,
                    "exe": exe,
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
                "max_retries": rules.max_retries,
                "policy": rules.policy,
                "min_replicas": rules.min_replicas,
                "replicas": replicas,
            }
        )
    return roles


def check_scripts(request: PopenRequest, app: AppDef) -> None:
    """Refuse a job whose script is not there, before anything is started.

    Components say in ``Role.metadata["script"]`` which file the role's interpreter is going to read.

    Raises:
        SpecError: the file does not exist.
    """
    for role in app.roles:
        script = role.metadata.get("script")
        params = request.role_params.get(role.name)
        if not params or not isinstance(script, str) or "${" in script:
            continue
        cwd = os.path.abspath(params[0].cwd or "")
        if not os.path.exists(os.path.join(cwd, script)):
            raise SpecError(
                f"role `{role.name}`: script `{script}` does not exist",
                hint=f"it is looked for in `{cwd}`; start from the folder that it is in, or give its path",
            )


def move_logs(roles: list[dict[str, Any]], old: str, new: str) -> None:
    """Let the replicas of :func:`replica_requests` write below ``new`` what they would have written below ``old``."""

    def moved(path: str) -> str:
        return new + path[len(old) :] if path.startswith(old + os.sep) else path

    for replica in (replica for role in roles for replica in role["replicas"]):
        for key in ("folder", "stdout", "stderr"):
            replica[key] = moved(replica[key])
        replica["env"] = {name: moved(value) for name, value in replica["env"].items()}


def _find(role: str, name: str, path: str, cwd: str) -> str:
    from torchx.util.procs import find_program

    if not os.path.isdir(cwd):
        raise SpecError(f"role `{role}`: working directory `{cwd}` does not exist", hint="make it, or start elsewhere")
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
