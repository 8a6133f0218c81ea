"""The table of verbs, and the help page that lists them. A verb is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence

from torchx.cli.failures import EXIT_CODES, warn
from torchx.errors import TorchXError
from torchx.plugins import COMMANDS, PluginError, Registry
from torchx.plugins.discovery import import_object
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.cli.cmd_base import SubCommand

_GROUPS = {
    "Launch": {
        "run": "launch a script or a component; --dryrun submits nothing",
        "rerun": "launch a recorded run again, unchanged or with changes",
        "sweep": "launch a component once for each set of values",
        "export": "write a job as files for sbatch, kubectl, ... that need no torchx",
        "builtins": "list the components that can be run by name",
        "runopts": "list the options of a scheduler, for `run -cfg`",
    },
    "Follow": {
        "status": "show the state of a job, and why it failed",
        "log": "print the logs of a job; --follow until it ends",
        "list": "list recorded runs, newest first; or a scheduler's jobs",
        "watch": "print a line for each state change of any run",
        "wait": "wait until jobs have ended; exit 0 if all succeeded",
        "top": "show runs full screen: replicas, logs, causes, resource usage",
        "ui": "show runs in the browser: states, causes, live logs",
        "metrics": "show what replicas use: CPU, memory, GPUs; -w updates live",
        "usage": "show how many GPU-hours runs have used, by name, user, scheduler or day",
        "tracker": "list what jobs wrote to a tracker: metadata, artifacts, lineage",
        "describe": "show what was launched: roles, options, source code",
        "diff": "compare two runs: code, arguments, outcome, ...",
        "why": "explain the state of any job, also of one launched without torchx",
        "adopt": "put a job on record that torchx did not launch",
    },
    "Inside": {
        "exec": "run a command inside a replica, or in all of them",
        "shell": "open a shell inside a replica",
        "cp": "copy files out of a replica, or into it",
        "fetch": "copy the results of a job here, which `run --fetch` named",
        "forward": "forward a local port to a port of a replica",
        "stacks": "show what every rank is doing, and which one the others wait for",
        "ssh-config": "print ~/.ssh/config entries, for ssh, rsync and editors",
    },
    "End": {
        "cancel": "end jobs; their logs and records stay",
        "delete": "remove ended jobs with their logs and records",
        "simulate": "inject a fault into a job, to test whether it survives",
    },
    "Set up": {
        "nodes": "show what is free on a scheduler, and when a job would start",
        "doctor": "check what keeps jobs from running, and how to fix it",
        "report": "gather what a support ticket about a job needs, in one file",
        "init": "write a training script, a component and a .torchxconfig",
        "configure": "write a .torchxconfig to fill in",
        "mcp": "serve runs to coding agents, over the Model Context Protocol",
        "plugins": "list the plugins that were found, and those that failed",
        "completion": "print the completion script of a shell",
    },
    "": {"__complete": "", "__archive": ""},  # hidden
}
_SHARED = {
    "shell": "exec",
    "forward": "exec",
    "ssh-config": "exec",
    "adopt": "why",
    "top": "ui",
    "fetch": "cp",
}  # verb -> module


@dataclass(frozen=True)
class Verb:
    """A built-in verb: its group on the help page, the ``module:class`` that implements it, and its help line."""

    group: str
    target: str
    help: str


def _target(name: str) -> str:
    """Return ``module:class`` of a verb: ``cmd_exec:CmdSshConfig`` for ``ssh-config``."""
    stem = name.strip("_")
    return f"torchx.cli.cmd_{_SHARED.get(stem, stem)}:Cmd{stem.title().replace('-', '')}"


VERBS = {name: Verb(group, _target(name), line) for group, rows in _GROUPS.items() for name, line in rows.items()}
"""Name of each built-in verb -> its row, in the order of the help page."""

_HINTS = {
    "ps ls jobs queue squeue history runs": "`torchx list` lists recorded runs, `torchx list --state running`"
    " those that run",
    "kill stop abort terminate scancel end": "`torchx cancel JOB` ends a job, `torchx cancel --all` all of mine",
    "rm remove clean prune purge": "`torchx delete JOB` removes a job that has ended, with its logs and its record",
    "submit launch start create apply sbatch srun": "`torchx run train.py` launches a job; `-s slurm` selects Slurm",
    "ssh attach login enter": "`torchx shell JOB` opens a shell in a replica, `torchx exec JOB -- COMMAND` runs a"
    " command there",
    "scp rsync copy download upload": "`torchx cp JOB/ROLE/0:ckpt/ ./ckpt` copies out of a replica,"
    " `torchx cp data/ JOB:data` into it",
    "port-forward tunnel proxy": "`torchx forward JOB/ROLE PORT` forwards a local port to a port of a replica",
    "stack py-spy pystack dump hang": "`torchx stacks JOB` shows what every rank is doing, and which one the others"
    " wait for",
    "logs tail follow output": "`torchx log -f JOB` follows the logs of a job, `torchx watch` its state changes,"
    " `torchx wait JOB` waits for its end",
    "get info show inspect": "`torchx status JOB` shows the state of a job, `torchx describe JOB` its definition",
    "check preflight diagnose validate": "`torchx doctor` checks this machine or a scheduler, `torchx run --check` a"
    " job",
    "config setup": "`torchx configure` writes a .torchxconfig to fill in",
    "components schedulers": "`torchx builtins` lists components, `torchx runopts` schedulers and their options",
    "version": "`torchx --version` prints it",
}
ELSEWHERE = {word: hint for words, hint in _HINTS.items() for word in words.split()}
"""Verb of another tool -> hint that names ours."""
_EXAMPLES = """\
  torchx run train.py --epochs 3                a script, on this machine; -d returns at once
  torchx run dist.ddp -j 2x2 --script train.py  distributed training, 2 nodes x 2 workers
  torchx status @last                           state of the newest run
  torchx log -f @last                           its logs, until it ends"""
_OPTIONS = """\
  --log_level   DEBUG, INFO, WARNING, ERROR or CRITICAL; DEBUG shows tracebacks
  --version     print the version
  -h, --help    print this page; `torchx help COMMAND` prints that of a command"""


def registry() -> Registry[type[SubCommand]]:
    """Return built-in and plugin verbs. A plugin may replace a built-in; ``torchx plugins`` reports that."""
    return Registry(COMMANDS, {name: verb.target for name, verb in VERBS.items()})


def find(name: str) -> SubCommand:
    """Return the verb of that name; its arguments are not declared yet.

    A plugin that replaces a built-in verb and cannot be loaded causes a warning, and the built-in is returned.
    Another one causes a PluginError, and an unknown name a NotFoundError.
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
    """Return the built-in verb of that name, even if a plugin replaces it."""
    module, _, attr = VERBS[name].target.partition(":")
    return _create(name, import_object(module, attr))


def help_page(*, color: bool = False) -> str:
    def bold(text: str) -> str:
        return f"\033[1m{text}\033[0m" if color else text

    lines = [
        f"{bold('Usage:')} torchx [--log_level LEVEL] COMMAND [options]",
        "",
        "Describe a job once in Python, run it anywhere, and always know how it ended.",
    ]
    for title, rows in _groups().items():
        lines += ["", bold(title + ":")]
        lines += [f"  {name:<12}{text}" for name, text in rows]
    title, _, codes = EXIT_CODES.partition("\n")
    lines += ["", bold("Examples:"), _EXAMPLES, "", bold("Options:"), _OPTIONS, "", bold(title), codes]
    return "\n".join(lines)


def verb_at(words: Sequence[str]) -> int:
    """Return the index of the verb, after the global options; at least ``len(words)`` when there is none."""
    i = 0
    while i < len(words) and words[i].startswith("-"):
        i += 2 if words[i] in ("--log_level", "--log-level") else 1
    return i


def names(*, hidden: bool = False) -> list[str]:
    """Return the names of all verbs, built-in ones first."""
    return [name for name in registry().names() if hidden or not name.startswith("_")]


def _create(name: str, found: object) -> SubCommand:
    # Duck typing: plugins need not import our SubCommand.
    if callable(found):
        command: SubCommand = found()
        if callable(getattr(command, "add_arguments", None)) and callable(getattr(command, "run", None)):
            return command
    raise TorchXError(
        f"the plugin behind the verb `{name}` is not a SubCommand: it is `{found!r}`",
        hint="its entry point must name a class with `add_arguments` and `run`; `torchx plugins` shows its package",
    )


def _groups() -> dict[str, list[tuple[str, str]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    table = registry()
    for name in names():
        verb = VERBS.get(name)
        entry = table.find(name)
        owner = f"from {entry.dist or entry.where}" if entry else ""
        if verb is None:
            groups.setdefault("From plugins", []).append((name, owner))
        else:
            overridden = entry is not None and entry.value != verb.target
            groups.setdefault(verb.group, []).append((name, f"{verb.help} ({owner})" if overridden else verb.help))
    return groups
