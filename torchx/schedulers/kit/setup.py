"""Makes each replica of a job run the set-up lines of its site and its user before its program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.kit.shell import quote, read_script
from torchx.settings import ENV_REPLICA_ID
from torchx.specs.api import RetryPolicy, macros
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.scripts import is_script
from torchx.util.notices import logger

if TYPE_CHECKING:
    from torchx.schedulers.api import Scheduler
    from torchx.specs.api import AppDef, Role

OPTION = "setup"
HELP = "lines of shell that each replica runs before its program, for example `module load cuda/12.4`"
_WISHES = ("setup", "uv", "stage", "check_nodes")
_BASH = 'bash=$(command -v bash) || bash=sh; exec "$bash" -c "$0" torchx "$@"'


def with_setup(app: AppDef, cfg: Mapping[str, Any], scheduler: str, backend: Scheduler[Any]) -> AppDef:
    """Return the job that ``backend`` runs: ``app`` itself if it has no set-up, else a copy.

    Raises:
        NotSupportedError: the backend, or a batch script, cannot run the lines.
        SpecError: ``uv`` has no lock file.
    """
    wishes = Wishes.of(app)
    site = str(cfg.get(OPTION) or "").strip()
    given = [name for name in _WISHES if getattr(wishes, name)]
    if not (site or given):
        return app
    if wishes.spares and backend.backend != "slurm":
        raise NotSupportedError(f"`{scheduler}` cannot ask for spare nodes", hint="omit `--spares`")
    option = "--" + (given or ["setup"])[0].replace("_", "-")
    if not backend.capabilities.setup:
        raise NotSupportedError(f"`{scheduler}` cannot run set-up lines", hint=f"omit `{option}`")
    if is_script(app.roles) and backend.backend == "slurm":
        if given:
            raise NotSupportedError("a batch script has its own set-up", hint=f"omit `{option}`, or add it there")
        logger("torchx").warning("`setup` of the section of `%s` is not used: a batch script has its own", scheduler)
        return app
    if wishes.uv:
        for role in app.roles:
            _check_lock(role)
    uv = read_script(__file__, "uv.sh") if wishes.uv else ""
    lines = "\n".join(filter(None, [site, wishes.setup, uv, _stages(wishes.stage)]))
    program = read_script(__file__, "setup.sh")
    # `sh` may drop exported functions, such as `module`; an image may lack bash
    contained = cfg.get("container") or cfg.get("container_image") or backend.capabilities.setup == "sh"
    start = ["sh", "-c", _BASH, program] if contained else ["bash", "-c", program, "torchx"]
    entrypoint, *words = (word.replace("${", "$${") for word in [*start, lines])  # macros are of the program only
    new: AppDef = app.__class__.__new__(app.__class__)
    new.__dict__.update(app.__dict__)
    new.roles = []
    for number, role in enumerate(app.roles):
        check = _check(role, wishes.check_nodes, number) if wishes.check_nodes else ""
        new.roles.append(_wrapped(role, entrypoint, [*words[:-1], words[-1] + check]))
    return new


def _check(role: Role, checks: tuple[str, ...], number: int) -> str:
    """Return the line that checks the node of a replica, after the lines that may provide its Python."""
    alone = role.min_replicas is not None or (role.max_retries > 0 and role.retry_policy is RetryPolicy.REPLICA)
    count = 1 if alone else role.num_replicas  # replicas that come and go by themselves do not wait for each other
    sizes = f"{count} {max(role.resource.gpu, 0)} '{macros.rank0_env}' {number}"
    rest = f'"${ENV_REPLICA_ID}" {sizes}'  # no macro, so that the words of all replicas are the same
    return f"\n{shell_function('check_node')}\ncheck_node {','.join(checks)} {rest}"


def _stages(stages: tuple[tuple[str, str], ...]) -> str:
    """Return the lines that copy data to the node."""
    if not stages:
        return ""
    head = [shell_function("stage_node"), read_script(__file__, "stage.sh")]
    return "\n".join([*head, *(f"torchx_stage {quote(source)} {quote(path)}" for source, path in stages)])


def shell_function(name: str) -> str:
    """Return a function of the shell that runs a Python program, whose code is thus not in the name of a failure."""
    import base64
    import zlib

    packed = base64.b64encode(zlib.compress(read_script(__file__, f"{name}.py").encode(), 9)).decode()
    code = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    return f'{name}() {{ python3 -c "{code}" "$@"; }}'


def _wrapped(role: Role, entrypoint: str, words: list[str]) -> Role:
    new: Role = role.__class__.__new__(role.__class__)
    new.__dict__.update(role.__dict__)
    new.args = [*words, role.entrypoint, *role.args]
    new.entrypoint = entrypoint
    return new


def _check_lock(role: Role) -> None:
    places = [*role.workspace.projects] if role.workspace else [os.getcwd()]
    paths = [place.removeprefix("file://") for place in places if "://" not in place.removeprefix("file://")]
    if paths and not any(os.path.isfile(os.path.join(path, "uv.lock")) for path in paths):
        raise SpecError(
            f"`--uv`: there is no `uv.lock` in `{paths[0]}`", hint=f"make one: `uv lock --project {quote(paths[0])}`"
        )
