"""The verbs: which module has each, and one line of help; none is imported before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

from torchx.cli.failures import warn
from torchx.errors import TorchXError
from torchx.plugins import COMMANDS, PluginError, Registry
from torchx.plugins.discovery import import_object
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.cli.cmd_base import SubCommand

PLUGINS = "From plugins"
_GROUPS = {
    "Launch": {
        "run": "launch a script or a component; --dryrun shows what would be done",
        "rerun": "launch a run on record again, as it was or with changes",
        "sweep": "launch a component once for each set of values",
        "export": "a job as files for sbatch, kubectl, ... that need no torchx",
        "builtins": "the components that can be run by name",
        "runopts": "the options of a scheduler, for `run -cfg`",
    },
    "Follow": {
        "status": "what became of a job, and why",
        "log": "what the replicas of a job wrote; --follow until it ends",
        "list": "the runs on record, newest first; or a scheduler's jobs",
        "watch": "a line for each change of any run, as it is seen",
        "wait": "until jobs have ended; the exit code says how",
        "top": "the runs full screen: replicas, logs, causes, what they use",
        "ui": "the runs in the browser: states, causes, logs, live",
        "metrics": "what replicas use: processors, memory, GPUs; -w follows",
        "tracker": "what jobs left behind: metadata, artifacts, lineage",
        "describe": "what was launched: roles, options, source code",
        "diff": "what differs between two runs: code, arguments, outcome, ...",
        "why": "how any job is, whoever launched it, and why",
        "adopt": "put a job on record that torchx did not launch",
    },
    "Inside": {
        "exec": "run a command inside a replica, or in all of them",
        "shell": "open a shell inside a replica",
        "cp": "copy files out of a replica, or into it",
        "forward": "make a port of a replica a port of this machine",
        "stacks": "what every rank is doing, and for whom the others wait",
        "ssh-config": "entries for ~/.ssh/config: ssh, rsync and editors reach replicas",
    },
    "End": {
        "cancel": "end jobs; their logs and records stay",
        "delete": "remove jobs that have ended, their logs and their records",
        "simulate": "make a fault happen to a job: does it survive?",
    },
    "Set up": {
        "doctor": "what keeps jobs from running, and what to do about it",
        "init": "write a training, a component and a .torchxconfig to start from",
        "configure": "write a .torchxconfig to fill in",
        "plugins": "the plugins that were found, and those that failed",
        "completion": "the completion script of a shell",
    },
    "": {"__complete": ""},  # in no list
}


@dataclass(frozen=True)
class Verb:
    """A built-in verb: its group on the help page, where its class is, and its line there."""

    group: str
    target: str
    help: str


def _target(name: str) -> str:
    """Where the class of a verb is: that of ``ssh-config`` is ``CmdSshConfig`` of ``cmd_ssh_config``."""
    stem = name.strip("_").replace("-", "_")
    module = "exec" if name == "shell" else stem
    return f"torchx.cli.cmd_{module}:Cmd{stem.title().replace('_', '')}"


VERBS = {name: Verb(group, _target(name), line) for group, rows in _GROUPS.items() for name, line in rows.items()}
"""Name of each built-in verb -> its row, in the order of the help page."""

_HINTS = {
    "ps ls jobs queue squeue history runs": "`torchx list` lists the runs on record, `torchx list --state running`"
    " those that run",
    "kill stop abort terminate scancel end": "`torchx cancel JOB` ends a job, `torchx cancel --all` all of mine",
    "rm remove clean prune purge": "`torchx delete JOB` removes a job that has ended, with its logs and its record",
    "submit launch start create apply sbatch srun": "`torchx run train.py` launches a job; `-s slurm` says where",
    "ssh attach login enter": "`torchx shell JOB` opens a shell in a replica, `torchx exec JOB -- COMMAND` runs a"
    " command there",
    "scp rsync copy download upload": "`torchx cp JOB/ROLE/0:ckpt/ ./ckpt` copies out of a replica,"
    " `torchx cp data/ JOB:data` into it",
    "port-forward tunnel proxy": "`torchx forward JOB/ROLE PORT` makes a port of a replica a port of this machine",
    "stack py-spy pystack dump hang": "`torchx stacks JOB` says what every rank is doing, and for whom the others wait",
    "logs tail follow output": "`torchx log -f JOB` follows what a job writes, `torchx watch` what changes,"
    " `torchx wait JOB` waits for its end",
    "get info show inspect": "`torchx status JOB` says how a job is, `torchx describe JOB` what it is",
    "check preflight diagnose validate": "`torchx doctor` checks this machine or a scheduler, `torchx run --check` a"
    " job",
    "config setup": "`torchx configure` writes a .torchxconfig to fill in",
    "components schedulers": "`torchx builtins` lists components, `torchx runopts` schedulers and their options",
    "version": "`torchx --version` prints it",
}
ELSEWHERE = {word: hint for words, hint in _HINTS.items() for word in words.split()}
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
    module, _, attr = VERBS[name].target.partition(":")
    return _create(name, import_object(module, attr))


def verb_at(words: Sequence[str]) -> int:
    """Where the verb stands, behind the options of torchx itself; beyond the end when there is none."""
    i = 0
    while i < len(words) and words[i].startswith("-"):
        i += 2 if words[i] in ("--log_level", "--log-level") else 1
    return i


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
