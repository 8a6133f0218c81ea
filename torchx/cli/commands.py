"""The verbs: which module has each, and one line of help; none is imported before it is needed."""

from __future__ import annotations

from collections import namedtuple

from torchx.cli.failures import warn
from torchx.errors import TorchXError
from torchx.plugins import COMMANDS, PluginError, Registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    from torchx.cli.cmd_base import SubCommand

    class Verb(NamedTuple):
        group: str
        target: str
        help: str
else:
    Verb = namedtuple("Verb", "group target help")

LAUNCH = "Launch"
FOLLOW = "Follow"
INSIDE = "Inside"
END = "End"
SET_UP = "Set up"
PLUGINS = "From plugins"
HIDDEN = ""

VERBS: dict[str, Verb] = {
    "run": Verb(
        LAUNCH, "torchx.cli.cmd_run:CmdRun", "launch a script or a component; --dryrun shows what would be done"
    ),
    "rerun": Verb(LAUNCH, "torchx.cli.cmd_rerun:CmdRerun", "launch a run on record again, as it was or with changes"),
    "sweep": Verb(LAUNCH, "torchx.cli.cmd_sweep:CmdSweep", "launch a component once for each set of values"),
    "export": Verb(
        LAUNCH, "torchx.cli.cmd_export:CmdExport", "a job as files for sbatch, kubectl, ... that need no torchx"
    ),
    "builtins": Verb(LAUNCH, "torchx.cli.cmd_builtins:CmdBuiltins", "the components that can be run by name"),
    "runopts": Verb(LAUNCH, "torchx.cli.cmd_runopts:CmdRunopts", "the options of a scheduler, for `run -cfg`"),
    "status": Verb(FOLLOW, "torchx.cli.cmd_status:CmdStatus", "what became of a job, and why"),
    "log": Verb(FOLLOW, "torchx.cli.cmd_log:CmdLog", "what the replicas of a job wrote; --follow until it ends"),
    "list": Verb(FOLLOW, "torchx.cli.cmd_list:CmdList", "the runs on record, newest first; or a scheduler's jobs"),
    "watch": Verb(FOLLOW, "torchx.cli.cmd_watch:CmdWatch", "a line for each change of any run, as it is seen"),
    "wait": Verb(FOLLOW, "torchx.cli.cmd_wait:CmdWait", "until jobs have ended; the exit code says how"),
    "top": Verb(FOLLOW, "torchx.cli.cmd_top:CmdTop", "the runs full screen: replicas, logs, causes, what they use"),
    "ui": Verb(FOLLOW, "torchx.cli.cmd_ui:CmdUi", "the runs in the browser: states, causes, logs, live"),
    "metrics": Verb(
        FOLLOW, "torchx.cli.cmd_metrics:CmdMetrics", "what replicas use: processors, memory, GPUs; -w follows"
    ),
    "tracker": Verb(FOLLOW, "torchx.cli.cmd_tracker:CmdTracker", "what jobs left behind: metadata, artifacts, lineage"),
    "describe": Verb(FOLLOW, "torchx.cli.cmd_describe:CmdDescribe", "what was launched: roles, options, source code"),
    "diff": Verb(FOLLOW, "torchx.cli.cmd_diff:CmdDiff", "what differs between two runs: code, arguments, outcome, ..."),
    "why": Verb(FOLLOW, "torchx.cli.cmd_why:CmdWhy", "how any job is, whoever launched it, and why"),
    "adopt": Verb(FOLLOW, "torchx.cli.cmd_adopt:CmdAdopt", "put a job on record that torchx did not launch"),
    "exec": Verb(INSIDE, "torchx.cli.cmd_exec:CmdExec", "run a command inside a replica, or in all of them"),
    "shell": Verb(INSIDE, "torchx.cli.cmd_exec:CmdShell", "open a shell inside a replica"),
    "cp": Verb(INSIDE, "torchx.cli.cmd_cp:CmdCp", "copy files out of a replica, or into it"),
    "forward": Verb(INSIDE, "torchx.cli.cmd_forward:CmdForward", "make a port of a replica a port of this machine"),
    "stacks": Verb(INSIDE, "torchx.cli.cmd_stacks:CmdStacks", "what every rank is doing, and for whom the others wait"),
    "ssh-config": Verb(
        INSIDE,
        "torchx.cli.cmd_ssh_config:CmdSshConfig",
        "entries for ~/.ssh/config: ssh, rsync and editors reach replicas",
    ),
    "cancel": Verb(END, "torchx.cli.cmd_cancel:CmdCancel", "end jobs; their logs and records stay"),
    "delete": Verb(END, "torchx.cli.cmd_delete:CmdDelete", "remove jobs that have ended, their logs and their records"),
    "simulate": Verb(END, "torchx.cli.cmd_simulate:CmdSimulate", "make a fault happen to a job: does it survive?"),
    "doctor": Verb(SET_UP, "torchx.cli.cmd_doctor:CmdDoctor", "what keeps jobs from running, and what to do about it"),
    "init": Verb(
        SET_UP, "torchx.cli.cmd_init:CmdInit", "write a training, a component and a .torchxconfig to start from"
    ),
    "configure": Verb(SET_UP, "torchx.cli.cmd_configure:CmdConfigure", "write a .torchxconfig to fill in"),
    "plugins": Verb(SET_UP, "torchx.cli.cmd_plugins:CmdPlugins", "the plugins that were found, and those that failed"),
    "completion": Verb(SET_UP, "torchx.cli.cmd_completion:CmdCompletion", "the completion script of a shell"),
    "__complete": Verb(HIDDEN, "torchx.cli.cmd_complete:CmdComplete", ""),
}
"""Name of each built-in verb -> its row, in the order of the help page."""

_LIST = "`torchx list` lists the runs on record, `torchx list --state running` those that run"
_LOGIN = "`torchx shell JOB` opens a shell in a replica, `torchx exec JOB -- COMMAND` runs a command there"
_COPY = "`torchx cp JOB/ROLE/0:ckpt/ ./ckpt` copies out of a replica, `torchx cp data/ JOB:data` into it"
_FORWARD = "`torchx forward JOB/ROLE PORT` makes a port of a replica a port of this machine"
_STACKS = "`torchx stacks JOB` says what every rank is doing, and for whom the others wait"
_CANCEL = "`torchx cancel JOB` ends a job, `torchx cancel --all` all of mine"
_DELETE = "`torchx delete JOB` removes a job that has ended, with its logs and its record"
_RUN = "`torchx run train.py` launches a job; `-s slurm` says where"
_WATCH = (
    "`torchx log -f JOB` follows what a job writes, `torchx watch` what changes, `torchx wait JOB` waits for its end"
)
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("ps", "ls", "jobs", "queue", "squeue", "history", "runs"), _LIST),
    **dict.fromkeys(("kill", "stop", "abort", "terminate", "scancel", "end"), _CANCEL),
    **dict.fromkeys(("rm", "remove", "clean", "prune", "purge"), _DELETE),
    **dict.fromkeys(("submit", "launch", "start", "create", "apply", "sbatch", "srun"), _RUN),
    **dict.fromkeys(("ssh", "attach", "login", "enter"), _LOGIN),
    **dict.fromkeys(("scp", "rsync", "copy", "download", "upload"), _COPY),
    **dict.fromkeys(("port-forward", "tunnel", "proxy"), _FORWARD),
    **dict.fromkeys(("stack", "py-spy", "pystack", "dump", "hang"), _STACKS),
    **dict.fromkeys(("logs", "tail", "follow", "output"), _WATCH),
    **dict.fromkeys(
        ("get", "info", "show", "inspect"), "`torchx status JOB` says how a job is, `torchx describe JOB` what it is"
    ),
    **dict.fromkeys(
        ("check", "preflight", "diagnose", "validate"),
        "`torchx doctor` checks this machine or a scheduler, `torchx run --check` a job",
    ),
    **dict.fromkeys(("config", "setup"), "`torchx configure` writes a .torchxconfig to fill in"),
    **dict.fromkeys(
        ("components", "schedulers"),
        "`torchx builtins` lists components, `torchx runopts` schedulers and their options",
    ),
    "version": "`torchx --version` prints it",
}
"""What people try that is not a verb of ours -> what does it here."""


def registry() -> Registry[type[SubCommand]]:
    """Built-in verbs and plugins; a plugin may take the name of a built-in, and ``torchx plugins`` says so."""
    return Registry(COMMANDS, {name: verb.target for name, verb in VERBS.items()})


def find(name: str) -> SubCommand:
    """The verb of that name, with its arguments not yet declared.

    Raises:
        NotFoundError: there is no such verb.
        PluginError: a plugin offers it and cannot be loaded. If it took the name of a
            built-in verb there is a warning instead, and the built-in verb.
    """
    table = registry()
    try:
        return _create(name, table.get(name))
    except PluginError as e:
        if name not in VERBS:
            raise
        warn(f"{e}; using the built-in verb")
        return builtin(name)


def builtin(name: str) -> SubCommand:
    """The built-in verb of that name, whatever plugins say."""
    from torchx.plugins.discovery import import_object

    module, _, attr = VERBS[name].target.partition(":")
    return _create(name, import_object(module, attr))


def names(*, hidden: bool = False) -> list[str]:
    """All verbs, built-in ones first."""
    return [name for name in registry().names() if hidden or not name.startswith("_")]


def _create(name: str, found: object) -> SubCommand:
    # Any class or function that makes an object with the two methods will do: plugins need not import ours.
    if callable(found):
        command: SubCommand = found()
        if callable(getattr(command, "add_arguments", None)) and callable(getattr(command, "run", None)):
            return command
    raise TorchXError(
        f"the plugin behind the verb `{name}` is not a SubCommand: it is `{found!r}`",
        hint="its entry point must name a class with `add_arguments` and `run`; `torchx plugins` shows whose it is",
    )
