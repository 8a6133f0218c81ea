"""Exports a local job as a script that needs only bash."""

from __future__ import annotations

import os

from torchx.schedulers.kit.export import CODE, MACHINERY, Export, refuse_order
from torchx.schedulers.kit.secrets import split
from torchx.schedulers.kit.shell import env_words, exports, quote, read_script
from torchx.schedulers.local.request import PopenRequest, ReplicaParam
from torchx.specs.wishes.timeouts import parse_timeout
from torchx.supervisor.gang import RoleRules

SCRIPT = "job.sh"


def export(request: PopenRequest) -> Export:
    """Return the script of a job, and the part that is the same for every job."""
    refuse_order(request.order, "a script")
    roles = request.role_params
    late = {request.log_dir: "logs"}
    members = [(role, param) for role, params in roles.items() for param in params]
    envs = [split(param.env)[0] for _, param in members]
    secrets = dict.fromkeys(name for _, param in members for name in split(param.env)[1])
    common = {k: v for k, v in envs[0].items() if all(env.get(k) == v for env in envs)}
    folders = [os.path.relpath(f, request.log_dir) for dirs in request.role_log_dirs.values() for f in dirs]
    rules = {role: request.role_rules.get(role) or RoleRules() for role in roles}
    lines = [
        "#!/bin/bash",
        f"# Runs the job {request.app_id}: replicas, environment, commands. It needs bash, and nothing of torchx.",
        'here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1',
        f'cd -- "$here/{CODE}" || exit 1',
        "logs=$here/logs/$(date +%Y%m%d-%H%M%S)-$$",
        f"paths=({' '.join(map(quote, folders))})",
        f"role_of=({' '.join(str(number) for number, params in enumerate(roles.values()) for _ in params)})",
        f"sizes=({' '.join(str(len(params)) for params in roles.values())})",
        f"least=({' '.join(str(rule.min_replicas or len(roles[role])) for role, rule in rules.items())})",
        f"retries=({' '.join(str(0 if request.retry else rule.max_retries) for rule in rules.values())})",
        f"policy=({' '.join(rule.policy for rule in rules.values())})",
        f"grace={int(request.cancel_grace_s)} limit={int(parse_timeout(request.timeout)) if request.timeout else 0}",
        "environment() {",
        *(f"  {line}" for line in exports(common, late) or [":"]),
        "}",
    ]
    for number, ((_, param), env) in enumerate(zip(members, envs, strict=True)):
        own = {k: v for k, v in env.items() if k not in common}
        lines += _replica(number, param, own, late)
    lines.append(f'. "$here/{MACHINERY}"')
    kept = {
        f"The retry policy `{request.retry}` is not applied: a job that fails is not restarted.": request.retry,
        f"`--idle {request.idle}` is not applied: an idle job is not detected.": request.idle,
        f"The watchdog `{request.watchdog}` is not applied: a silent job is not detected.": request.watchdog,
    }
    notes = [note for note, asked in kept.items() if asked]
    return Export(
        files={SCRIPT: "\n".join(lines) + "\n", MACHINERY: read_script(__file__, "export.sh")},
        about={
            SCRIPT: "the job: its replicas, their environment and their commands",
            MACHINERY: "starts the replicas, restarts them if the job allows it, and ends all when one has failed",
        },
        run=f'exec bash -- "$here/{SCRIPT}"',
        needs="bash 4.4 or newer, and the programs that the job runs",
        logs="`logs/TIME/ROLE/K/stdout.log` and `stderr.log`",
        secrets=[*secrets],
        notes=notes,
    )


def _replica(number: int, param: ReplicaParam, env: dict[str, str], late: dict[str, str]) -> list[str]:
    words = [*env_words(env, late), *(quote(str(arg), late) for arg in param.args)]
    return [
        f"replica_{number}() {{",
        "  environment",
        *(f"  {line}" for line in exports(env, late)),
        *([f"  cd -- {quote(_below_here(param.cwd))} || exit 78"] if _below_here(param.cwd) != "." else []),
        f"  exec {' '.join(words)}",
        "}",
    ]


def _below_here(cwd: str | None) -> str:
    """Return the folder of a replica, relative to that of the code if it is inside of it."""
    inside = os.path.relpath(os.path.realpath(cwd or "."), os.path.realpath("."))
    return str(cwd) if inside.split("/")[0] == ".." else inside
