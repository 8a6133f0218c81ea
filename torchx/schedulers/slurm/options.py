"""The run options of Slurm, and the node requests that follow from them and a role's resource."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchx.errors import ConfigError
from torchx.schedulers.api import StructuredOpts
from torchx.specs.api import Resource, Role
from torchx.specs.gpu_types import native
from torchx.util.records import dataclass

Options = dict[str, str | None]

_COUNT = re.compile(r"([0-9]+)([kmgtp]?)", re.IGNORECASE)  # in generic resources

NODE_OPTIONS = ("account", "constraint", "exclude", "nodelist", "partition", "qos", "reservation", "time")
"""Run options that say which nodes a job gets, by the names that ``sbatch`` has for them."""

# Options of sbatch that torchx needs for itself: with other values jobs would run differently or be lost.
_OURS = frozenset(
    [
        *("array", "chdir", "error", "export", "het-group", "input", "job-name", "no-kill", "no-requeue", "nodes"),
        *("ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "test-only", "wait", "wrap"),
        *("help", "usage", "version", "clusters"),
    ]
)

_VARIABLES = {"mem": "MEM_PER_NODE", "switches": "REQ_SWITCH", "time": "TIMELIMIT"}
_FAMILIES = (
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("gpus", "gpus-per-node", "gpus-per-task", "gres"),
    ("cpus-per-task", "cpus-per-gpu"),
)
"""Options that contradict each other."""


@dataclass
class SlurmOpts(StructuredOpts):
    """Run options of ``slurm``."""

    _names = (("mail_type", "mail-type"), ("mail_user", "mail-user"), ("in_", "in"))

    account: str | None = None
    """account to charge the job to"""

    comment: str | None = None
    """comment on the job"""

    constraint: str | None = None
    """features that the nodes must have: `a100`, `intel&gpu`, `[rack1|rack2]`"""

    container: str | None = None
    """run the roles in containers, by `pyxis`, `apptainer`, or `auto`: whichever the nodes have"""

    container_image: str | None = None
    """image of the containers; default: the image of each role. Without `container` it means `container=auto`"""

    exclude: str | None = None
    """nodes not to use: `n[1-3],n7`"""

    exclusive: bool = False
    """share the nodes with no other job"""

    extra: list[str] | None = None
    """further options of sbatch, comma-separated: `--begin=now+1hour,--nice=100`"""

    gres: str | None = None
    """generic resources of each replica: `gpu:a100` selects the type of its GPUs, `nvme:1,shard:2` requests others"""

    in_: str | None = None
    """run at once in the allocation that you hold, as a step: its id or handle, or `current`; options that
    choose nodes do not apply"""

    job_dir: str | None = None
    """new folder, on a file system that all nodes share, to copy the workspace to and run in"""

    licenses: str | None = None
    """licenses of the job: `matlab:2`"""

    mail_type: str | None = None
    """events to send mail on: NONE, BEGIN, END, FAIL, REQUEUE, ALL, ..."""

    mail_user: str | None = None
    """address for that mail; default: the user"""

    nodelist: str | None = None
    """nodes that the job must get: `n[1-3]`"""

    nomem: bool = False
    """request no memory; rarely needed: if a partition rejects the memory request, the job is resubmitted without it"""

    partition: str | None = None
    """partition to submit to; `auto`: the one in which the job starts first; default: the cluster's"""

    qos: str | None = None
    """quality of service"""

    replicas_per_node: int = 1
    """how many replicas of a role share a node"""

    reservation: str | None = None
    """reservation to run in"""

    signal: str | None = None
    """signal to send to the replicas before the time limit, and how many seconds before: `USR1@120`"""

    time: str | None = None
    """time limit: minutes, `hours:minutes:seconds` or `days-hours`"""

    requeue: str = "auto"
    """requeue the job when it is preempted or loses a node: `yes`, `no`, or `auto` (the site's default); always `yes`
    for jobs with retries"""

    def check(self) -> None:
        """Raise ConfigError for values that Slurm would reject later, or accept although they break the job."""
        if self.job_dir and any(c in self.job_dir for c in "\\\n"):
            raise ConfigError(
                f"run option `job_dir` is `{self.job_dir!r}`", hint="it must not contain a backslash or a line end"
            )
        for option in self.extra or ():
            name = option.partition("=")[0]
            if not name.startswith("--") or len(name) < 4:
                raise ConfigError(
                    f"run option `extra`: `{option}` is not an option of sbatch", hint="write `--name=value`"
                )
            if name[2:] in _OURS:
                raise ConfigError(f"run option `extra`: `{name}` is set by torchx", hint="omit it")


def early_warning(opts: SlurmOpts) -> int:
    """How many seconds before the time limit a job is warned that restarts after it.

    As ``signal`` says; else 120, or three quarters of a short limit: Slurm checks limits twice a minute, so warnings
    may be half a minute late.

    >>> early_warning(SlurmOpts(signal="USR1@300")), early_warning(SlurmOpts()), early_warning(SlurmOpts(time="2:00"))
    (300, 120, 90)
    """
    seconds = (opts.signal or "").partition("@")[2]
    if seconds.isdigit():
        return int(seconds)
    from torchx.schedulers.slurm.scripts.sbatch import seconds as parse_limit

    limit = parse_limit(opts.time or "")
    return min(120, limit * 3 // 4) if limit else 120


def outranking(script: str, argv: Iterable[str]) -> list[str]:
    """Return the variables that would count more than the options in a script, or contradict those of its submission.

    >>> outranking("#SBATCH --time=5\\n", ["sbatch", "--gpus=1"])
    ['SBATCH_GPUS', 'SBATCH_GPUS_PER_NODE', 'SBATCH_GPUS_PER_TASK', 'SBATCH_GRES', 'SBATCH_TIMELIMIT']
    """
    lines = [line for line in script.split("\n", 40)[:40] if line.startswith("#SBATCH")]
    given = {*re.findall(r"(?<!\S)--([a-z-]+)", "\n".join([*lines, *argv]))}
    given.update(*(family for family in _FAMILIES if not given.isdisjoint(family)))
    return sorted(f"SBATCH_{_VARIABLES.get(name, name.upper().replace('-', '_'))}" for name in given - _OURS)


def job_words(opts: SlurmOpts, early: int = 0) -> list[str]:
    """Return the job's options for sbatch; its script alone gets the signal ``early``,
    so many seconds before the limit.
    """
    given = {
        "comment": opts.comment,
        "mail-type": opts.mail_type,
        "mail-user": opts.mail_user,
        "licenses": opts.licenses,
        "signal": f"B:USR1@{early}" if early else opts.signal,
    }
    return [*(f"--{name}={value}" for name, value in given.items() if value), *(opts.extra or ())]


def node_options(role: Role, opts: SlurmOpts, *, nomem: bool) -> tuple[Options, Options]:
    """Return what a role's replicas request from a node, for ``sbatch``; and each one's share, for ``srun``."""
    together = opts.replicas_per_node
    resource = role.resource
    sbatch: Options = {"requeue": None} if role.max_retries > 0 else {}
    for name in NODE_OPTIONS:
        if value := getattr(opts, name):
            sbatch[name] = str(value)
    if opts.exclusive:
        sbatch["exclusive"] = None
    sbatch["ntasks-per-node"] = str(together)
    srun: Options = {}
    asked = not resource.is_unset  # otherwise the cluster's defaults apply
    if asked and resource.cpu > 0:
        sbatch["cpus-per-task"] = srun["cpus-per-task"] = str(resource.cpu)
    # Each step has explicit requests: in a heterogeneous job it would inherit those of another role.
    if asked and resource.memMB > 0 and not (nomem or opts.nomem):
        sbatch["mem"] = str(resource.memMB * together)
        srun["mem"] = str(resource.memMB)
    if gres := _gres(resource, opts.gres, 1):
        sbatch["gres"] = _gres(resource, opts.gres, together)
        srun["gres"] = gres
    if together > 1:
        srun["exact"] = None
    return sbatch, srun


def _gres(resource: Resource, given: str | None, times: int) -> str:
    """Return the generic resources of ``times`` replicas: ``gpu:a100:4,nvme:1``; https://slurm.schedmd.com/gres.html."""
    kind = native(resource, "slurm")
    gpu, more = f"gpu:{kind}" if kind else "gpu", {}
    for item in filter(None, (part.strip() for part in (given or "").split(","))):
        name, _, count = item.rpartition(":")
        number = _COUNT.fullmatch(count)
        if number is not None:
            more[name] = int(number[1]) * 1024 ** " kmgtp".index(number[2].lower() or " ")
        elif item.partition(":")[0] == "gpu":
            if kind and item not in ("gpu", gpu):
                raise ConfigError(f"`gres={item}` and the GPU type `{kind}` differ", hint="leave one of them out")
            gpu = gpu if kind else item
        else:
            more[item] = 1
    found = {gpu: resource.gpu} if resource.gpu > 0 else {}
    # Devices with a slash in their name are Kubernetes resources; the others are generic resources.
    found.update({name: number for name, number in resource.devices.items() if "/" not in name})
    found.update(more)
    return ",".join(f"{name}:{number * times}" for name, number in found.items() if number > 0)
