"""One Slurm job as ``sbatch`` takes it: replicas, their options, and the script rendered from them."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torchx.errors import ConfigError, NotSupportedError
from torchx.schedulers.batch.attempts import script
from torchx.schedulers.batch.folders import SECRETS_FILE, folder_name
from torchx.schedulers.batch.order import with_hooks
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.secrets import revealed, split
from torchx.schedulers.kit.shell import env_words, exports, quote, read_script
from torchx.schedulers.slurm.containers import container_words, environment, setup_lines
from torchx.schedulers.slurm.options import NODE_OPTIONS, SlurmOpts, early_warning, job_words, node_options
from torchx.schedulers.slurm.order import addresses_of, part
from torchx.settings import SAMPLE_S
from torchx.specs.api import AppDef, BindMount, Role
from torchx.util.records import dataclass, field
from torchx.util.secrets import mask_args, mask_env

if TYPE_CHECKING:
    from torchx.schedulers.slurm.sweeps import Arrays
    from torchx.specs.wishes.retries import RetryRules

SAMPLER_FILE = "metrics.py"
APP_ID = "@TORCHX_APP_ID@"
"""Placeholder in requests for the job id, which Slurm assigns."""

RDZV_ID = "@TORCHX_RDZV_ID@"
"""Placeholder for a rendezvous id that changes with each restart."""

RANK0_ENV = "TORCHX_RANK0_HOST"

SCRIPT_FILE = "job.sh"
RETRIES_FILE = "retries.sh"
LAUNCH_FILE = "launch.sh"
MAX_SCRIPT = 3 << 20
"""Maximum size of a script passed to ``sbatch``, bytes; Slurm's default limit is 4 MiB (``max_script_size``)."""

_LONG = 1000  # characters of a word of a replica's command that is written once

_LATE = {APP_ID: "SLURM_JOB_ID", RDZV_ID: "rdzv"}
_REQUEUE = ("requeue", "no-requeue")  # the same for all components
_RDZV_OPTIONS = ("--rdzv_id", "--rdzv-id")

SBATCH_JOB_OPTIONS = frozenset({"comment", "mail-type", "mail-user", "licenses", "signal"})
"""Options of the whole job, passed on the command line."""

SBATCH_GROUP_OPTIONS = frozenset({*NODE_OPTIONS, "exclusive"})
"""Options of each group of nodes, written to the script."""


@dataclass
class SlurmReplicaRequest:
    """One replica: a step of the job.

    Attributes:
        name: role and number.
        srun_opts: options of its step.
        sbatch_opts: options of its node. Replicas with equal ones share a component of the job.
        env: added to the environment of the batch script.
        folder: for its logs, within the job's folder.
        image: folder to run in, or container image.
        code: working directory within a container image: the workspace.
        container: runtime of the image: empty, ``auto``, ``pyxis``, ``apptainer``.
        mounts: of the container: ``source:destination[:ro]``.
        late: placeholders for addresses, with the shell variables that have them.
    """

    name: str
    entrypoint: str
    args: list[str]
    srun_opts: dict[str, str | None]
    sbatch_opts: dict[str, str | None]
    env: dict[str, str]
    role: str = ""
    folder: str = ""
    image: str = ""
    container: str = ""
    mounts: list[str] = field(default_factory=list)
    code: str = ""
    late: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_role(cls, name: str, role: Role, cfg: SlurmOpts | Mapping[str, Any], nomem: bool) -> SlurmReplicaRequest:
        """Return the request of one replica; ``name`` ends with its number, and macros in ``role`` are replaced."""
        opts = cfg if isinstance(cfg, SlurmOpts) else SlurmOpts.from_cfg(cfg)
        sbatch_opts, srun_opts = node_options(role, opts, nomem=nomem)
        k = name.rpartition("-")[2]
        return cls(
            name=name,
            entrypoint=role.entrypoint,
            args=list(role.args),
            srun_opts=srun_opts,
            sbatch_opts=sbatch_opts,
            env=dict(role.env),
            role=role.name,
            folder=f"{folder_name(role.name)}/{k if k.isdigit() else 0}",
            image=opts.container_image or role.image,
            container=opts.container or ("auto" if opts.container_image else ""),
            mounts=[_mount(mount) for mount in role.mounts],
            code=role.image if opts.container_image and _is_path(role.image) else "",
        )

    def materialize(self) -> tuple[list[str], list[str]]:
        """Return the options for ``sbatch``, and the step's shell words: options, program, arguments."""
        sbatch_args = [f"--job-name={self.name}"]
        sbatch_args += [f"--{k}" if v is None else f"--{k}={v}" for k, v in self.sbatch_opts.items()]
        late = {**_LATE, **self.late}
        srun_args = [quote(f"--{k}" if v is None else f"--{k}={v}", late) for k, v in self.srun_opts.items()]
        words = [*env_words(self.env, late), quote(self.entrypoint, late)]
        words += [_argument(self.args, i, late) for i in range(len(self.args))]
        return sbatch_args, [*srun_args, *words]


@dataclass
class Rules:
    """How failures of a role's replicas are handled; at least ``least`` replicas must remain."""

    retries: int
    policy: str
    least: int


@dataclass
class SlurmBatchRequest:
    """One job. ``print`` shows what is submitted, secrets masked.

    Attributes:
        cmd: the submitting command, without the script's path.
        replicas: by name, in order of roles and numbers.
        job_dir: folder with the copy of the code; also contains the job's own folder.
        max_retries: how often the whole job may be restarted.
        name: unique name of the job.
        rules: by role; failures of other roles restart the whole job.
        cwd: working directory of replicas whose image is not a folder.
        retry: the job has a policy for retries by cause, which replaces ``rules`` and ``max_retries``.
        early: how many seconds before the time limit the script is warned; 0: never.
        arrays: the job arrays of a sweep.
        notify: its script sends notices when it ends.
        watchdog: after which silence its script inspects the job, such as ``10m:cancel``; empty: never.
        idle: time without use after which its script acts, such as ``30m:cancel``; empty: never. ``plain``: see
            :meth:`torchx.specs.wishes.Wishes.is_plain`.
        inside: id of the allocation in which it runs as a step, and its nodes; empty for a job of its own.
        spares: nodes beyond those that it needs; ``probe`` is the part of the script that checks all of them.
        broadcast: the part of the script that sends data to the nodes; empty: there is none, or one node.
        order: the part of the script for roles that wait for others; empty: none does.
        sample_s: interval at which the resource usage of replicas is sampled, seconds; 0: never.
        requeue: whether Slurm may requeue the job by itself: ``yes``, ``no``, or ``auto`` for the site's default.
    """

    cmd: list[str]
    replicas: dict[str, SlurmReplicaRequest]
    job_dir: str | None
    max_retries: int
    name: str = "torchx"
    rules: dict[str, Rules] = field(default_factory=dict)
    cwd: str = "/"
    retry: bool = False
    early: int = 0
    requeue: str = "auto"
    arrays: Arrays | None = None
    notify: bool = False
    watchdog: str = ""
    idle: str = ""
    plain: bool = False
    inside: tuple[str, str] = ("", "")
    spares: int = 0
    probe: str = ""
    broadcast: str = ""
    order: str = ""
    sample_s: float = SAMPLE_S

    @property
    def is_watched(self) -> bool:
        """Whether its script starts the watchdog."""
        return bool(self.watchdog or self.idle)

    def materialize(self) -> str:
        """Return the script."""
        return render(self)

    def secrets(self, known: dict[str, str]) -> str:
        """Return the file from which steps read their secrets; empty without any. ``known``: the looked-up values."""
        places: dict[str, list[str]] = {}
        for replica in self.replicas.values():
            lines = exports(revealed(split(replica.env)[1], known), _LATE)
            if lines:
                places.setdefault("\n".join(lines), []).append("*/" + quote(replica.folder or replica.name))
        cases = [f"{'|'.join(paths)})\n{lines} ;;\n" for lines, paths in places.items()]
        return f"case $0 in\n{''.join(cases)}esac\n" if cases else ""

    def check(self) -> None:
        """Render one replica per role, because the others differ by macros only. Raises SpecError for a word that
        cannot be passed to a program, and ConfigError for a run option that ``sbatch`` does not accept.
        """
        sample = copy.copy(self)
        sample.replicas = {replica.role: replica for replica in self.replicas.values()}
        render(sample)

    def without_memory(self) -> SlurmBatchRequest:
        """Return this request without its memory requests, for partitions that reject them."""
        other = copy.deepcopy(self)
        for replica in other.replicas.values():
            replica.sbatch_opts.pop("mem", None)
            replica.srun_opts.pop("mem", None)
        return other

    def __str__(self) -> str:
        shown = copy.deepcopy(self)
        for replica in shown.replicas.values():
            replica.env = mask_env(replica.env)
            replica.args = mask_args(replica.args)
        command = " ".join([*map(quote, mask_args(self.cmd)), f"--chdir=<folder of {self.name}>", "job.sh"])
        names = dict.fromkeys(name for replica in shown.replicas.values() for name in split(replica.env)[1])
        secret = f"# {SECRETS_FILE}, which the steps read: {', '.join(names)}\n" if names else ""
        return f"# submitted with: {command}\n{secret}{render(shown)}"

    __repr__ = __str__


def make_request(
    app: AppDef, opts: SlurmOpts, *, name: str, cwd: str, retry: RetryRules | None = None
) -> SlurmBatchRequest:
    """Return the request of a job; the keywords are attributes of :class:`SlurmBatchRequest`. Raises NotSupportedError
    for mounts without containers.
    """
    if any(role.mounts for role in app.roles) and not (opts.container or opts.container_image):
        raise NotSupportedError(
            "Slurm does not support mounts: roles see the files of their nodes",
            hint="with `container` roles run in containers, which can have bind mounts",
        )
    found = {}
    together = opts.replicas_per_node
    addresses, late = addresses_of(app, together)
    for replica in replicas(app, APP_ID, rank0_env=RANK0_ENV, img_root=lambda role: role.image, addresses=addresses):
        named = f"{replica.role.name}-{replica.k}"
        found[named] = made = SlurmReplicaRequest.from_role(named, replica.role, opts, nomem=opts.nomem)
        made.late = late
    early = early_warning(opts) if retry and retry.rule("timeout").times else 0
    rules = {
        role.name: Rules(
            0 if retry else role.max_retries, role.retry_policy.value, role.min_replicas or role.num_replicas
        )
        for role in app.roles
    }
    return SlurmBatchRequest(
        cmd=["sbatch", "--parsable", *job_words(opts, early)],
        replicas=found,
        job_dir=opts.job_dir,
        max_retries=max((role.max_retries for role in app.roles), default=0),
        name=name,
        rules=rules,
        cwd=cwd,
        retry=retry is not None,
        early=early,
        requeue=opts.requeue,
        order=part(app, together, _places(found.values())) if addresses else "",
    )


def render(request: SlurmBatchRequest) -> str:
    """Return the script of a job."""
    preamble, program = read_script(__file__, SCRIPT_FILE).split("# @JOB@\n")
    replicas = list(request.replicas.values())
    groups = _groups(replicas)
    parts = [RETRIES_FILE] if request.retry else []
    shared: dict[str, str] = {}
    functions = [line for number in range(len(groups)) for line in _functions(request, groups, number, shared)]
    lines = ["#!/bin/bash"]
    if not request.inside[0]:
        lines.append(directive({"job-name": request.name, "open-mode": "append"}))
        for number, group in enumerate(groups):
            lines += ["#SBATCH hetjob"] if number else []
            lines.append(directive(group_options(request, group)))
    locale = os.environ.get("LC_ALL")
    lines += [
        "# Written by torchx. The working directory of the batch job is its folder.",
        f"export LC_ALL={quote(locale)}" if locale else "unset LC_ALL",
        preamble.strip(),
        *(f"{name}={word}" for word, name in shared.items()),
        *functions,
        "# -- settings of the sections below -----------------------------------------------------------------",
        f"cwd={quote(request.cwd)}",
        *([f"inside={quote(request.inside[1])}"] if request.inside[0] else []),
        f"secrets={1 if any(split(replica.env)[1] for replica in replicas) else ''}",
        f"python={quote(sys.executable or 'python3') if request.retry else ''}",
        *([f"notify={quote(sys.executable or 'python3')}"] if request.notify else []),
        *_watching(request),
        f"early={request.early} every={f'{request.sample_s:g}' if request.sample_s else ''}",
        *([f"exclude={quote(replicas[0].sbatch_opts.get('exclude') or '')}"] if request.retry else []),
        *([request.probe] if request.spares else []),
        *([request.broadcast] if request.broadcast else []),
        *([request.order] if request.order else []),
        *_arrays(request, groups),
        *([script(__file__, *parts)] if parts or request.notify or request.is_watched else []),
        with_hooks(program.strip(), bool(request.order)),
    ]
    return "\n".join(lines) + "\n"


def _watching(request: SlurmBatchRequest) -> list[str]:
    if not request.is_watched:
        return []
    lines = [f"watch={quote(sys.executable or 'python3')} wish={quote(request.watchdog)}"]
    return [*lines, f"idle={quote(request.idle)} plain={1 if request.plain else ''}"] if request.idle else lines


def _groups(replicas: list[SlurmReplicaRequest]) -> list[list[SlurmReplicaRequest]]:
    """Replicas grouped by equal node options: each group is a component of the job."""
    groups: dict[tuple[tuple[str, str | None], ...], list[SlurmReplicaRequest]] = {}
    for replica in replicas:
        options = {k: v for k, v in replica.sbatch_opts.items() if k not in _REQUEUE}
        groups.setdefault(tuple(options.items()), []).append(replica)
    return list(groups.values())


def _per_node(replica: SlurmReplicaRequest) -> int:
    return max(1, int(replica.sbatch_opts.get("ntasks-per-node") or 1))


def group_options(request: SlurmBatchRequest, group: list[SlurmReplicaRequest]) -> dict[str, str | None]:
    """``sbatch`` options of one component."""
    per_node = _per_node(group[0])
    most = -(-len(group) // per_node)
    spare = 0
    for role in {replica.role for replica in group}:
        rule = request.rules.get(role)
        size = sum(replica.role == role for replica in group)
        spare += max(0, size - rule.least) if rule is not None else 0
    again = request.retry or any("requeue" in replica.sbatch_opts for replica in request.replicas.values())
    least = most - spare // per_node
    options: dict[str, str | None] = {"nodes": str(most + request.spares)}
    if again or request.requeue != "auto":
        options["requeue" if again or request.requeue == "yes" else "no-requeue"] = None
    options.update((k, v) for k, v in group[0].sbatch_opts.items() if k not in _REQUEUE)
    if least < most:
        # The job may start with fewer nodes, and continues when one is lost. With `ntasks-per-node` Slurm would never
        # allocate more than the minimum.
        options.update({"nodes": f"{least}-{most}", "no-kill": None})
        options.pop("ntasks-per-node", None)
        if "cpus-per-task" in options:
            options["cpus-per-task"] = str(int(options["cpus-per-task"] or 1) * per_node)
    return options


def _arrays(request: SlurmBatchRequest, groups: list[list[SlurmReplicaRequest]]) -> list[str]:
    """Shell arrays about replicas and roles, by number."""
    replicas = list(request.replicas.values())
    roles = list(dict.fromkeys(replica.role or replica.name for replica in replicas))
    index = {role: number for number, role in enumerate(roles)}
    sizes = [sum((r.role or r.name) == role for r in replicas) for role in roles]
    default = [Rules(request.max_retries, "APPLICATION", size) for size in sizes]
    rules = [request.rules.get(role, default[number]) for number, role in enumerate(roles)]
    place = {
        id(replica): (number, at // _per_node(replica))
        for number, group in enumerate(groups)
        for at, replica in enumerate(group)
    }
    arrays: dict[str, list[Any]] = {
        "paths": [quote(replica.folder or replica.name) for replica in replicas],
        "role_of": [index[replica.role or replica.name] for replica in replicas],
        "group_of": [place[id(replica)][0] for replica in replicas],
        "node_of": [place[id(replica)][1] for replica in replicas],
        "group_nodes": [-(-len(group) // _per_node(group[0])) for group in groups],
        "sizes": sizes,
        "least": [rule.least for rule in rules],
        "retries": [rule.retries for rule in rules],
        "policy": [rule.policy for rule in rules],
    }
    return [f"{name}=({' '.join(map(str, values))})" for name, values in arrays.items()]


def _functions(
    request: SlurmBatchRequest, groups: list[list[SlurmReplicaRequest]], number: int, shared: dict[str, str]
) -> list[str]:
    """Return a shell function for each replica of a group, and one for their common environment.

    Long words, such as those of a set-up, are written once: ``shared`` gets the name of the variable for each of them.
    """
    index = {id(replica): i for i, replica in enumerate(request.replicas.values())}
    group = groups[number]
    envs = {id(replica): environment(replica, split(replica.env)[0]) for replica in group}
    env = envs[id(group[0])]
    for replica in group[1:]:
        env = {k: v for k, v in env.items() if envs[id(replica)].get(k) == v}
    late = {**_LATE, **group[0].late}
    lines = [f"group_{number}() {{", *(f"  {line}" for line in exports(env, late) or [":"]), "}"]
    for at, replica in enumerate(group):
        own = {k: v for k, v in envs[id(replica)].items() if k not in env}
        _, words = replica.materialize()
        options = len(replica.srun_opts)
        asked = [_growing(word) if request.retry else word for word in words[:options]]
        placed = ['--nodelist="${host[$i]}"' if request.spares else f"--relative={at // _per_node(replica)}"]
        placed += [f"--het-group={number}"] if len(groups) > 1 else []
        before, inside = container_words(replica)
        shell = "sh" if before else '"$BASH"'  # other shells drop exported functions; images may have no bash
        lines += [
            f"replica_{index[id(replica)]}() {{",
            f"  group_{number}",
            *(f"  {line}" for line in exports(own, late)),
            f"  choose_dir {quote(_folder_of(replica), _LATE)}",
            *(f"  {line}" for line in setup_lines(replica)),
            f"  step {' '.join([*placed, *asked, *before])} \\",
            f'    {shell} -c "$into" "$folder/"{quote(replica.folder or replica.name)} \\',
            f"    {' '.join([*inside, *(_shared(word, shared, late) for word in words[options:])])}",
            "}",
        ]
    return lines


def _shared(word: str, shared: dict[str, str], late: Mapping[str, str]) -> str:
    is_late = any(f"${{{name}}}" in word for name in late.values())
    if len(word) < _LONG or is_late:
        return word
    return f'"${shared.setdefault(word, f"word_{len(shared)}")}"'


def _growing(option: str) -> str:
    """Return an option of a step whose memory request grows with the job's attempts."""
    size = option.removeprefix("--mem=")
    return f"--mem=$(({size} * memory / 1000))" if option != size and size.isdigit() else option


def directive(options: Mapping[str, str | None]) -> str:
    """Options as a line for ``sbatch``, which has its own quoting rules: https://slurm.schedmd.com/sbatch.html.

    >>> directive({"partition": "gpu", "requeue": None, "comment": 'a "b" #c'})
    '#SBATCH --partition=gpu --requeue --comment="a \\\\"b\\\\" #c"'
    """
    return " ".join(["#SBATCH", *(_option(name, value) for name, value in options.items())])


def _option(name: str, value: str | None) -> str:
    if value is None:
        return f"--{name}"
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ConfigError(
            f"run option `{name}` is `{value!r}`", hint="it must not contain line ends or control characters"
        )
    if all(c.isalnum() or c in "-_=+.,:/@%[]()*&|" for c in value) and value:
        return f"--{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{name}="{escaped}"'


def launcher(script: str) -> str:
    """Return a short script with the same directives that starts the whole script from the job's folder."""
    head = [line for line in script.split("\n", 40)[:40] if line.startswith(("#!", "#SBATCH"))]
    return "\n".join([*head, f'exec bash "$PWD/{SCRIPT_FILE}"']) + "\n"


def choice_of_folder(replica: SlurmReplicaRequest, cwd: str) -> str:
    """Return a shell line that changes to the replica's folder, or to ``cwd`` on nodes without it."""
    return f"cd {quote(_folder_of(replica) or cwd)} 2>/dev/null || cd {quote(cwd)} || exit 78"


def _folder_of(replica: SlurmReplicaRequest) -> str:
    """Return the folder to run in: the image, or the code if the image is a container's."""
    found = replica.code if replica.container else replica.image
    return os.path.abspath(os.path.expanduser(found)) if _is_path(found) else ""


def _places(replicas: Iterable[SlurmReplicaRequest]) -> dict[str, str]:
    """Return the folder of each role that the batch script sees, too."""
    return {replica.role: _folder_of(replica) for replica in replicas if replica.code or not replica.container}


def _is_path(image: str) -> bool:
    return image.startswith(("/", "~", "."))


def _argument(args: list[str], i: int, late: Mapping[str, str]) -> str:
    """One argument as a shell word. torchrun's rendezvous id changes with each restart."""
    arg = args[i]
    if APP_ID in arg:
        if i and args[i - 1] in _RDZV_OPTIONS:
            arg = arg.replace(APP_ID, RDZV_ID)
        for option in _RDZV_OPTIONS:
            for between in ("=", " ", " '", ' "'):
                arg = arg.replace(f"{option}{between}{APP_ID}", f"{option}{between}{RDZV_ID}")
    return quote(arg, late)


def _mount(mount: Any) -> str:
    if not isinstance(mount, BindMount):
        raise ConfigError(f"`{mount}` cannot be mounted on Slurm", hint="a container can have bind mounts only")
    for path in (mount.src_path, mount.dst_path):
        if any(c in path for c in ":,\n"):
            raise ConfigError(f"`{path}` cannot be mounted on Slurm", hint="it must not contain `:`, `,` or a line end")
    return f"{mount.src_path}:{mount.dst_path}" + (":ro" if mount.read_only else "")
