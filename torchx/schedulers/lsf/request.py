"""One LSF job: the script that submits all of its replicas or none, and the script that they run."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.errors import ConfigError, SpecError
from torchx.schedulers.batch.folders import SECRETS_FILE
from torchx.schedulers.kit.names import NameRule
from torchx.schedulers.kit.replicas import Replica, replicas
from torchx.schedulers.kit.secrets import split
from torchx.schedulers.kit.shell import quote
from torchx.schedulers.lsf.client import NO_LSF
from torchx.schedulers.lsf.options import Opts, bsub_words
from torchx.schedulers.lsf.order import addresses_of
from torchx.schedulers.lsf.parse import group_of, job_name, name_parts
from torchx.schedulers.lsf.replicas import (
    ATTEMPT_FILE,
    ENV_RANK0_HOST,
    REPLICAS_FILE,
    REPORTS,
    REQUEUE_CODE,
    SUBMIT_FILE,
    SUBMITTED_FILE,
    render_replicas,
    render_secrets,
)
from torchx.specs.api import AppDef, Role, parse_app_handle
from torchx.specs.gpu_types import native
from torchx.specs.serialize import masked
from torchx.specs.wishes import Wishes
from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from torchx.schedulers.lsf.sweeps import Arrays
    from torchx.specs.order import RoleOrder

RANK0_HOST = "RANK0_HOST"
"""Placeholder for the host of replica 0, which LSF chooses."""

_SHOWN = 4

NAMES = NameRule(60, "A-Za-z0-9_-", letter_first=True)
"""Names that are valid as job names, job groups and app handles. ``.`` is reserved for the names of LSF jobs."""

# Options of bsub that torchx sets, or that would keep bsub from returning.
_OURS = frozenset(
    [
        *("-J", "-Jd", "-g", "-w", "-ti", "-o", "-oo", "-e", "-eo", "-H", "-Q", "-r", "-rn"),
        *("-I", "-Ip", "-Is", "-IS", "-ISp", "-ISs", "-K", "-pack", "-i", "-is", "-json"),
    ]
)


@dataclass
class LsfBsub:
    """A job as it is submitted.

    Attributes:
        jobdir: folder of the workspace, if there is one.
        app: the job, with macros.
        cmd: the program that runs the submission script.
        after: condition on other jobs for its start, for ``bsub -w``; empty: none.
        arrays: the tasks of a sweep, which replace the only replica.
        orders: of the roles; empty if the job has none.
    """

    jobdir: str | None
    app_id: str
    app: AppDef
    cfg: Opts
    cmd: list[str]
    after: str = ""
    arrays: Arrays | None = None
    orders: dict[str, RoleOrder] = field(default_factory=dict)

    def check(self) -> None:
        """Render one replica per role, because the others differ by macros only. Raises SpecError for a word that
        cannot be passed to a program, and ConfigError for options that ``bsub`` does not accept.
        """
        app = copy.deepcopy(self.app)
        for role in app.roles:
            role.num_replicas = 1
        sample = LsfBsub(self.jobdir, self.app_id, app, self.cfg, self.cmd, self.after, orders=self.orders)
        sample.materialize(), sample.replicas(whole=False)

    def materialize(self, rank0_host: str = RANK0_HOST) -> str:
        """Return the submission script; ``rank0_host`` is the host for replica 0, by default chosen by LSF."""
        return get_submit_script(self.app_id, self.cmd, self.app, self.cfg, rank0_host, self.after, self.arrays)

    def secrets(self, known: dict[str, str]) -> str:
        """Return the file from which replicas read their secrets; empty if there are none. ``known``:
        the looked-up values.
        """
        return render_secrets(self.app, self._members(), known)

    def _members(self) -> list[Replica]:
        addresses = addresses_of(self.app)[0] if self.orders else None
        return list(replicas(self.app, self.app_id, rank0_env=ENV_RANK0_HOST, addresses=addresses))

    def replicas(self, *, whole: bool = True) -> str:
        """Return the script that the LSF jobs run; not ``whole``: without the part that is the same in every job."""
        if self.arrays is not None:
            return self.arrays.script(self.app_id, self._members()[0].role)
        return render_replicas(self.app_id, self.app, self._members(), self.cfg, whole=whole, orders=self.orders)

    def __str__(self) -> str:
        app, rest = shown_part(self.app)
        shown = LsfBsub(self.jobdir, self.app_id, app, self.cfg, self.cmd, self.after, orders=self.orders)
        names = dict.fromkeys(name for role in app.roles for name in split(role.env)[1])
        secret = f"\n# {SECRETS_FILE}, which the replicas read: {', '.join(names)}\n" if names else ""
        text = f"# {SUBMIT_FILE}\n{shown.materialize()}\n# {REPLICAS_FILE}\n{shown.replicas(whole=False)}"
        return f"{text}{secret}{rest}"

    __repr__ = __str__  # masks secrets in the environment


def after(app: AppDef) -> str:
    """Return the condition for ``bsub -w`` under which a job starts. All LSF jobs of an earlier one share a name
    prefix.

    >>> from torchx.specs.api import AppDef
    >>> after(AppDef("a", metadata={"torchx/after": "ok:lsf://torchx/train-x1 fail:lsf://torchx/eval-x2"}))
    'done("train-x1.*") && (ended("eval-x2.*") && !done("eval-x2.*"))'
    """
    words = []
    for condition, handle in Wishes.of(app).after:
        app_id = parse_app_handle(handle).app_id
        if NAMES.make(app_id) != app_id:
            raise SpecError(f"`{handle}` is not a job that LSF knows", hint="`torchx list` shows the jobs")
        done, ended = f'done("{app_id}.*")', f'ended("{app_id}.*")'
        words.append({"ok": done, "any": ended, "fail": f"({ended} && !{done})"}[condition])
    return " && ".join(words)


def get_submit_script(  # noqa: PLR0917  # the signature is part of the public interface
    app_id: str,
    cmd: list[str],
    app: AppDef,
    cfg: Opts,
    rank0_host: str,
    after: str = "",
    arrays: Arrays | None = None,
) -> str:
    """Return the script that submits all replicas or none; it is in the job's folder, next to ``replicas.sh``.

    Args:
        cmd: the program that runs it.
        rank0_host: host for replica 0 of the first role; :data:`RANK0_HOST`: any.
        arrays: submitted instead of the only replica.
    """
    first = job_name(app_id, 0, app.roles[0].name, 0)
    held = f"-J {first}" if arrays is None else f"-g {group_of(app_id)}"
    alone = sum(role.num_replicas for role in app.roles) == 1
    again = bsub_words(app, cfg)
    lines = []
    if arrays is not None:
        lines = [f"{line} || give_up" for line in arrays.bsubs(app_id, app.roles[0], cfg)]
        alone = len(lines) == 1
    for index, role in enumerate(app.roles if arrays is None else ()):
        head = job_name(app_id, index, role.name, 0)
        for k in range(role.num_replicas):
            name = job_name(app_id, index, role.name, k)
            waits_for = "" if alone else first if name == head else head
            lines.append(f"{get_bsub(app_id, name, role, cfg, waits_for, rank0_host, after, again)} || give_up")
    return "\n".join(
        [
            f"#!{' '.join(cmd)}",
            f"# Submits torchx job {app_id} to LSF: all of its replicas, or none.",
            'job=$(cd "$(dirname "$0")" && pwd) || exit 1',
            f'run="/bin/bash $(printf %q "$job/{REPLICAS_FILE}")"',
            f"give_up() {{ trap '' HUP INT TERM; bkill -g {group_of(app_id)} 0 >/dev/null 2>&1; exit 255; }}",
            *([f'attempt=$(cat "$job/{ATTEMPT_FILE}" 2>/dev/null || echo 0)'] if again else []),
            f"command -v bsub >/dev/null || exit {NO_LSF}",
            "trap give_up HUP INT TERM",
            f'mkdir -p "$job/{REPORTS}" && date +%s >"$job/{SUBMITTED_FILE}" || exit 1',
            *lines,
            *([] if alone else [f"bresume {held} 0 || give_up"]),
            f"echo {app_id}",
            "",
        ]
    )


def get_bsub(  # noqa: PLR0917  # the signature is part of the public interface
    app_id: str,
    job_name: str,
    role: Role,
    cfg: Opts,
    head_job_name: str,
    head_job_host: str,
    after: str = "",
    again: Sequence[str] = (),
    elements: str = "",
) -> str:
    """Return the ``bsub`` of one replica, or of an array, as a line of the submission script.

    Args:
        head_job_name: the job that has to start first; the job itself: submit it on hold; empty: none.
        head_job_host: host for the job of that name; :data:`RANK0_HOST` or empty: any.
        after: condition on other jobs, see :func:`after`.
        again: options of a job with a policy for retries by cause, which also gets the number of its attempt.
        elements: indices of an array, and its limit of running elements: ``[1-9]%2``.
    """
    words = ["bsub", "-J", f"{job_name}{elements}", "-g", group_of(app_id)]
    conditions = [after] if after else []
    if head_job_name == job_name:
        words += ["-H"]
    elif head_job_name:
        conditions.insert(0, f'started("{head_job_name}")')
    words += ["-w", " && ".join(conditions)] if conditions else []
    words += ["-ti"] if after and not elements else []  # removes a job that can never start
    bound = head_job_host not in ("", RANK0_HOST) and job_name == head_job_name
    for option, value in (("-q", cfg.lsf_queue), ("-P", cfg.project), ("-app", cfg.app), ("-W", cfg.time)):
        words += [option, value] if value else []
    words += ["-m", head_job_host if bound else str(cfg.hosts)] if bound or cfg.hosts else []
    words += ["-x"] if cfg.exclusive else []
    words += _resource_words(role, cfg)
    words += again or (["-r", "-Q", str(REQUEUE_CODE)] if role.max_retries > 0 else ["-rn"])
    words += _extra_words(cfg)
    parts = name_parts(job_name)
    number = parts[1:] if parts else ("0", "0")
    report = f'"$job/{REPORTS}/{".".join(number)}{".%I" if elements else ""}"'
    return " ".join([*map(quote, words), "-oo", report, f'"$run {" ".join(number)}{" $attempt" if again else ""}"'])


def _resource_words(role: Role, cfg: Opts) -> list[str]:
    wanted = role.resource
    cpus = max(1, wanted.cpu)
    needs = [cfg.resreq] if cfg.resreq else []  # first, because only the first may omit the keyword `select`
    words = ["-n", str(cpus)]
    if wanted.memMB > 0 and cfg.memory != "none" and not wanted.is_unset:
        # With a unit, because the default (LSF_UNIT_FOR_LIMITS) differs between sites.
        words += ["-M", f"{wanted.memMB}MB"]
        share = wanted.memMB if cfg.memory == "host" else -(-wanted.memMB // cpus)
        needs.append(f"rusage[mem={share}MB]")
    if wanted.gpu > 0:
        kind = native(wanted, "lsf")
        if kind and "gmodel=" in (cfg.gpu_options or ""):
            raise ConfigError(f"`gpu_options={cfg.gpu_options}` and the GPU type `{kind}` differ", hint="leave one out")
        more = (f"gmodel={kind}" if kind else "", cfg.gpu_options)
        words += ["-gpu", ":".join([f"num={wanted.gpu}", *filter(None, more)])]
    return [*words, "-R", " ".join([*needs, "span[hosts=1]"])]


def _extra_words(cfg: Opts) -> list[str]:
    try:
        words = shlex.split(cfg.bsub_args or "")
    except ValueError as e:
        raise ConfigError(f"`bsub_args` is `{cfg.bsub_args}`: {e}", hint="write it as in a shell") from e
    ours = [word for word in words if word in _OURS]
    if ours or (words and not words[0].startswith("-")):
        raise ConfigError(
            f"`bsub_args` has `{(ours or words)[0]}` in it",
            hint="it may hold only options of bsub that torchx does not set",
        )
    return words


def cleanup_str(data: str) -> str:
    """Return ``data`` as a part of names in LSF: letters, digits, ``_`` and ``-``, starting with a letter.

    >>> cleanup_str("My Job/7")
    'My-Job-7'
    """
    return NAMES.make(data)


def shown_part(app: AppDef) -> tuple[AppDef, str]:
    """Return the job as a dry run shows it: secrets masked, a few replicas of each role,
    and a note about the others.
    """
    shown = masked(app)
    for role in shown.roles:
        role.num_replicas = min(role.num_replicas, _SHOWN)
    more = sum(role.num_replicas for role in app.roles) - sum(role.num_replicas for role in shown.roles)
    return shown, f"\n# ... and {more:,} more replicas\n" if more else ""
