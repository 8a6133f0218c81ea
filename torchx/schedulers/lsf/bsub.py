"""The ``bsub`` of each replica of an LSF job, and the script that runs them: all, or none."""

from __future__ import annotations

import os
import posixpath
import re

from torchx.errors import BackendError, CommandError, ConfigError
from torchx.schedulers.kit.commands import LocalCommandRunner
from torchx.schedulers.kit.names import NameRule
from torchx.schedulers.kit.shell import quote
from torchx.schedulers.lsf.rows import free_host, group_of, job_name, name_parts
from torchx.schedulers.lsf.script import REPLICAS_FILE, REPORTS, REQUEUE_CODE, SUBMITTED_FILE, render_docker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.schedulers.kit.commands import Completed
    from torchx.schedulers.lsf.options import Opts
    from torchx.specs.api import AppDef, CfgVal, Role

RANK0_HOST = "RANK0_HOST"
"""Stands for the host of replica 0 as long as LSF has not chosen it."""

_SHOWN = 4

NO_LSF = 127
"""Exit code of the submission script where there is no ``bsub``."""

NAMES = NameRule(60, "A-Za-z0-9_-", letter_first=True)
"""What job names, job groups and app handles have in common. ``.`` is left to the names of LSF jobs."""

# What bsub says -> what to do about it.
HINTS = {
    "No such queue": "`bqueues` shows the queues: `-cfg lsf_queue=NAME`",
    "Queue has been closed": "`bqueues` shows the queues: `-cfg lsf_queue=NAME`",
    "No such application profile": "`bapp` shows them: `-cfg app=NAME`",
    "Bad resource requirement": "see the run options `resreq` and `gpu_options`",
    "project": "name a project of yours: `-cfg project=NAME`",
    "Bad host name": "`bhosts` shows the hosts: `-cfg hosts=NAME`",
    "Request aborted by esub": "the site's own check (esub) refuses it; `-cfg bsub_args=...` may hold what it wants",
}

_TIME = re.compile(r"(\d+:)?\d+")

# Options of bsub that are given here, or under which it would not come back.
_OURS = frozenset(
    [
        *("-J", "-Jd", "-g", "-w", "-ti", "-o", "-oo", "-e", "-eo", "-H", "-Q", "-r", "-rn"),
        *("-I", "-Ip", "-Is", "-IS", "-ISp", "-ISs", "-K", "-pack", "-i", "-is", "-json"),
    ]
)


def get_submit_script(app_id: str, cmd: list[str], app: AppDef, cfg: Opts, rank0_host: str) -> str:
    """The script that submits all replicas, or none; it lies in the folder of the job, next to ``replicas.sh``.

    Args:
        cmd: the program that runs it.
        rank0_host: host for replica 0 of the first role; :data:`RANK0_HOST`: any.
    """
    first = job_name(app_id, 0, app.roles[0].name, 0)
    alone = sum(role.num_replicas for role in app.roles) == 1
    lines = []
    for index, role in enumerate(app.roles):
        head = job_name(app_id, index, role.name, 0)
        for k in range(role.num_replicas):
            name = job_name(app_id, index, role.name, k)
            waits_for = "" if alone else first if name == head else head
            lines.append(f"{get_bsub(app_id, name, role, cfg, waits_for, rank0_host)} || give_up")
    return "\n".join(
        [
            f"#!{' '.join(cmd)}",
            f"# Submits torchx job {app_id} to LSF: all of its replicas, or none.",
            'job=$(cd "$(dirname "$0")" && pwd) || exit 1',
            f'run="/bin/bash $(printf %q "$job/{REPLICAS_FILE}")"',
            f"give_up() {{ trap '' HUP INT TERM; bkill -g {group_of(app_id)} 0 >/dev/null 2>&1; exit 255; }}",
            f"command -v bsub >/dev/null || exit {NO_LSF}",
            "trap give_up HUP INT TERM",
            f'mkdir -p "$job/{REPORTS}" && date +%s >"$job/{SUBMITTED_FILE}" || exit 1',
            *lines,
            *([] if alone else [f"bresume -J {first} 0 || give_up"]),
            f"echo {app_id}",
            "",
        ]
    )


def get_bsub(  # noqa: PLR0917  # the signature is part of the public interface
    app_id: str, job_name: str, role: Role, cfg: Opts, head_job_name: str, head_job_host: str
) -> str:
    """The ``bsub`` of one replica, as a line of the submission script.

    Args:
        head_job_name: the job that has to start first. The job itself: it is submitted on hold. Empty: none.
        head_job_host: host for the job of that name; :data:`RANK0_HOST` or empty: any.
    """
    words = ["bsub", "-J", job_name, "-g", group_of(app_id)]
    if head_job_name == job_name:
        words += ["-H"]
    elif head_job_name:
        words += ["-w", f'started("{head_job_name}")']
    bound = head_job_host not in ("", RANK0_HOST) and job_name == head_job_name
    for option, value in (("-q", cfg.lsf_queue), ("-P", cfg.project), ("-app", cfg.app), ("-W", cfg.time)):
        words += [option, value] if value else []
    words += ["-m", head_job_host if bound else str(cfg.hosts)] if bound or cfg.hosts else []
    words += ["-x"] if cfg.exclusive else []
    words += _resource_words(role, cfg)
    words += ["-r", "-Q", str(REQUEUE_CODE)] if role.max_retries > 0 else ["-rn"]
    words += _extra_words(cfg)
    parts = name_parts(job_name)
    number = parts[1:] if parts else ("0", "0")
    report = f'"$job/{REPORTS}/{".".join(number)}"'
    return " ".join([*map(quote, words), "-oo", report, f'"$run {" ".join(number)}"'])


def get_command(job_name: str, role: Role, cfg: Opts) -> str:
    """The command line of one replica, as the shell reads it."""
    if in_docker(cfg):
        return get_docker_command(job_name, role, cfg)
    return " ".join(map(quote, [role.entrypoint, *role.args]))


def get_docker_command(job_name: str, role: Role, cfg: Opts) -> str:
    """The same in a container of the role's image: as the user, without privileges, and gone with the replica.

    Within ``replicas.sh``: ``$job`` is the job's folder, which the container sees under the same path.
    """
    return render_docker(
        job_name, role, workdir=cfg.container_workdir, host_network=cfg.host_network, shm_size=cfg.shm_size
    )


def _resource_words(role: Role, cfg: Opts) -> list[str]:
    wanted = role.resource
    cpus = max(1, wanted.cpu)
    needs = [cfg.resreq] if cfg.resreq else []  # first: a selection may stand without the word
    words = ["-n", str(cpus)]
    if wanted.memMB > 0 and cfg.memory != "none":
        # With its unit: without one it would be that of LSF_UNIT_FOR_LIMITS, which differs from site to site.
        words += ["-M", f"{wanted.memMB}MB"]
        share = wanted.memMB if cfg.memory == "host" else -(-wanted.memMB // cpus)
        needs.append(f"rusage[mem={share}MB]")
    if wanted.gpu > 0:
        words += ["-gpu", f"num={wanted.gpu}" + (f":{cfg.gpu_options}" if cfg.gpu_options else "")]
    return [*words, "-R", " ".join([*needs, "span[hosts=1]"])]


def _extra_words(cfg: Opts) -> list[str]:
    import shlex

    try:
        words = shlex.split(cfg.bsub_args or "")
    except ValueError as e:
        raise ConfigError(f"`bsub_args` is `{cfg.bsub_args}`: {e}", hint="write it as in a shell") from e
    ours = [word for word in words if word in _OURS]
    if ours or (words and not words[0].startswith("-")):
        raise ConfigError(
            f"`bsub_args` has `{(ours or words)[0]}` in it",
            hint="it holds options of bsub that torchx does not give itself",
        )
    return words


def job_dir(cfg: Mapping[str, CfgVal]) -> str | None:
    """The option ``jobdir``; on this machine as an absolute path."""
    given = str(cfg.get("jobdir") or "")
    if not given:
        return None
    return given if cfg.get("ssh") else os.path.abspath(os.path.expanduser(given))


def in_docker(cfg: Opts) -> bool:
    """Whether replicas run in containers: asked for, or implied by an option that only containers have."""
    return cfg.docker or cfg.host_network or bool(cfg.container_workdir or cfg.shm_size)


def cleanup_str(data: str) -> str:
    """``data`` as a part of names in LSF: letters, digits, ``_`` and ``-``, the first a letter.

    >>> cleanup_str("My Job/7")
    'My-Job-7'
    """
    return NAMES.make(data)


def find_rank0_host(role: Role) -> str:
    """A host that has room for a replica of this role now; asks ``bhosts``.

    Raises:
        BackendError: there is none.
    """
    return find_rank0_host_from_bhosts_stdout(LocalCommandRunner().run(["bhosts"]).check().stdout, role)


def find_rank0_host_from_bhosts_stdout(msg: str, role: Role) -> str:
    """The same out of the answer of ``bhosts``."""
    host = free_host(msg, max(1, role.resource.cpu))
    if host is None:
        raise BackendError(f"no host has {max(1, role.resource.cpu)} free slots", hint="`bhosts` shows the hosts")
    return host


def sample(app: AppDef) -> tuple[AppDef, str]:
    """The job as a dryrun shows it: secrets masked, with a few replicas of each role, and a line that says so."""
    from torchx.specs.serialize import masked

    shown = masked(app)
    for role in shown.roles:
        role.num_replicas = min(role.num_replicas, _SHOWN)
    more = sum(role.num_replicas for role in app.roles) - sum(role.num_replicas for role in shown.roles)
    return shown, f"\n# ... and {more:,} more replicas\n" if more else ""


def refusal(done: Completed) -> CommandError:
    """The error for a submission that LSF refused: in LSF's words."""
    said = done.stderr.strip().splitlines() or [f"its submission ended with exit code {done.returncode}"]
    return CommandError(
        f"LSF did not take the job: {said[-1]}",
        argv=done.argv,
        returncode=done.returncode,
        stderr=done.stderr,
        hint=next((hint for words, hint in HINTS.items() if words in done.stderr), ""),
    )


def check(app: AppDef, opts: Opts) -> None:
    """Refuses what LSF could not run, before anything is submitted."""
    docker = in_docker(opts)
    if opts.time and not _TIME.fullmatch(opts.time):
        raise ConfigError(f"`time` is `{opts.time}`", hint="write `90` (minutes) or `1:30`")
    if opts.memory not in ("host", "task", "none"):
        raise ConfigError(f"`memory` is `{opts.memory}`", hint="one of `host`, `task`, `none`")
    if opts.jobdir and "%" in opts.jobdir:
        raise ConfigError(
            f"`jobdir` is `{opts.jobdir}`", hint="LSF replaces what follows a `%` in paths: choose another"
        )
    for role in app.roles:
        if role.mounts and not docker:
            raise ConfigError(f"role `{role.name}` has mounts", hint="they need containers: `-cfg docker=true`")
        if docker and (not role.image or posixpath.isabs(role.image)):
            raise ConfigError(
                f"role `{role.name}` has the image `{role.image}`, which is no container image",
                hint="name one (`--image`), or leave the options of docker away",
            )
