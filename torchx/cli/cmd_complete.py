"""``torchx __complete``: completes an unfinished command line for the scripts of ``torchx completion``."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torchx.cli import commands
from torchx.cli.argparse_util import Parser
from torchx.cli.cmd_base import SubCommand
from torchx.cli.main import LOG_LEVELS
from torchx.config.files import load_files
from torchx.schedulers import get_default_scheduler_name, get_scheduler_factories
from torchx.specs.api import AppState, is_terminal
from torchx.specs.named_resources_generic import NAMED_RESOURCES
from torchx.util.datetime import ago

if TYPE_CHECKING:
    from torchx.runs import Run

Candidates = list[tuple[str, str]]
_MAX_RUNS = 200
_OF_ACTIVE_JOBS = ("cancel", "wait", "exec", "shell", "forward", "stacks")


class CmdComplete(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("shell", choices=["bash", "zsh", "fish"])
        subparser.add_argument("words", nargs=argparse.REMAINDER, help="words after `torchx`; the last is completed")

    def run(self, args: argparse.Namespace) -> None:
        """Print a candidate per line; for zsh and fish followed by a tab and a description."""
        bash = args.shell == "bash"
        words = args.words[1:] if args.words[:1] == ["--"] else args.words
        if bash and not words:
            words = split_line(os.environ.get("TORCHX_COMP_LINE", ""))[1:]
        words = words or [""]
        try:
            found = candidates(words)
        except Exception:  # the user only pressed Tab: errors are reported when the line is run
            if os.environ.get("TORCHX_DEBUG"):
                raise
            return
        cut = len(_typed_before_break(words[-1])) if bash else 0
        for value, description in found:
            print(_quoted(value[cut:]) if bash else f"{value}\t{description}" if description else value)


def split_line(line: str) -> list[str]:
    """Split an unfinished shell line into words; the last one is empty after a blank.

    >>> split_line("torchx log 'a b' --x")
    ['torchx', 'log', 'a b', '--x']
    >>> split_line("torchx log ")
    ['torchx', 'log', '']
    """
    for closing in ("", "'", '"'):  # the last word may have an open quote
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        if not closing and (not line or line[-1] in " \t") and not line.endswith("\\ "):
            words.append("")
        return words
    return line.split()


def candidates(words: list[str]) -> Candidates:
    """Return completions of the last word, each with a description; if there are none, it may be a file name.

    Args:
        words: the words after ``torchx``.

    >>> [word for word, _ in candidates(["can"])]
    ['cancel']
    """
    before, current = words[:-1], words[-1]
    i = commands.verb_at(before)
    if i > len(before):  # the current word is the value of --log_level
        return _starting(current, _plain(LOG_LEVELS))
    if i == len(before):
        return _verbs(current)
    verb, given = before[i], before[i + 1 :]
    return _of_verb(verb, given, current)


def _verbs(current: str) -> Candidates:
    if current.startswith("-"):
        return _starting(current, _plain(("--help", "--version", "--log_level")))
    rows = ((name, commands.VERBS[name].help if name in commands.VERBS else "plugin") for name in commands.names())
    return _starting(current, [*rows, ("help", "the help of a verb")])


def _of_verb(verb: str, given: list[str], current: str) -> Candidates:
    if verb == "help":
        return _verbs(current)
    if verb not in commands.registry():
        return []
    whole = Parser(prog=f"torchx {verb}")
    commands.find(verb).add_arguments(whole)
    parser, given = _innermost(whole, given)
    options = parser._option_string_actions
    positionals = parser._get_positional_actions()
    component = any(a.dest == "component_name_and_args" for a in positionals)
    rest, pending, seen = _walk(options, given, remainder=component)
    if pending is not None:
        return _values(pending, current, seen)
    if rest and component:
        return _component_arguments(rest, current)
    name, equals, value = current.partition("=")
    if equals and name in options:
        return [(f"{name}={found}", text) for found, text in _values(options[name], value, seen)]
    if current.startswith("-"):
        return _starting(current, ((o, a.help or "") for o, a in options.items() if _is_shown(o, a)))
    if not positionals:
        return []
    last = positionals[min(len(rest), len(positionals) - 1)]
    whole_job = "/" not in current or "://" in current
    if verb in _OF_ACTIVE_JOBS and whole_job and _SOURCES.get(last.dest) in (_jobs, _log_targets):
        return _active_jobs(current, seen)
    return _values(last, current, seen)


def _innermost(parser: argparse.ArgumentParser, given: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the last nested verb (``jobs`` of ``tracker list jobs``), and the words after it."""
    while True:
        nested = next((a.choices for a in parser._get_positional_actions() if isinstance(a.choices, dict)), {})
        at = next((i for i, word in enumerate(given) if word in nested), None)
        if at is None:
            return parser, given
        parser, given = nested[given[at]], given[at + 1 :]


def _walk(
    options: dict[str, argparse.Action], given: list[str], *, remainder: bool
) -> tuple[list[str], argparse.Action | None, dict[str, str]]:
    """Return the positional words, the option whose value comes next, and the option values so far."""
    rest: list[str] = []
    seen: dict[str, str] = {}
    i = 0
    while i < len(given):
        word = given[i]
        name, equals, value = word.partition("=")
        action = options.get(word) or (options.get(name) if equals else None)
        if rest and remainder:
            rest.append(word)
        elif action is None:
            if not word.startswith("-"):
                rest.append(word)
        elif equals and word not in options:
            seen[action.dest] = value
        elif action.nargs is None:
            if i + 1 == len(given):
                return rest, action, seen
            i += 1
            seen[action.dest] = given[i]
        i += 1
    return rest, None, seen


def _is_shown(option: str, action: argparse.Action) -> bool:
    """Whether this is the spelling to offer: the first long one."""
    return option == next((o for o in action.option_strings if o.startswith("--")), action.option_strings[0])


def _values(action: argparse.Action, current: str, seen: dict[str, str]) -> Candidates:
    if action.choices is not None:
        help_of = {choice.dest: choice.help or "" for choice in getattr(action, "_choices_actions", ())}  # nested verbs
        return _starting(current, ((str(choice), help_of.get(choice, "")) for choice in action.choices))
    source = _SOURCES.get(action.dest)
    return source(current, seen) if source else []


# -- where values come from ------------------------------------------------------------------------


def _schedulers(current: str, _: dict[str, str]) -> Candidates:
    return _in_list(current, _plain(get_scheduler_factories()))


def _cfg(current: str, seen: dict[str, str]) -> Candidates:
    from torchx.runner import get_runner

    scheduler = seen.get("scheduler") or get_default_scheduler_name()
    head, comma, last = current.rpartition(",")
    name, equals, value = last.partition("=")
    if equals:
        return [
            (f"{head}{comma}{name}={found}", "") for found in _values_of(scheduler, name) if found.startswith(value)
        ]
    with get_runner() as runner:
        opts = runner.scheduler_run_opts(scheduler)
    return _in_list(current, ((f"{name}=", opt.help.partition("\n")[0]) for name, opt in opts))


def _values_of(scheduler: str, option: str) -> list[str]:
    """Return the values of an option that a command of the cluster lists."""
    import subprocess

    asks = _ASKS.get((scheduler, option))
    if asks is None:
        return []
    try:
        done = subprocess.run(asks, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted({line.strip().rstrip("*") for line in done.stdout.splitlines()} - {""})


_ASKS = {
    ("slurm", "partition"): ["sinfo", "--noheader", "--format=%P"],
    ("slurm", "qos"): ["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name"],
    ("lsf", "lsf_queue"): ["bqueues", "-noheader", "-o", "queue_name"],
}
"""Scheduler and option -> a command that prints the values, one a line."""


def _to_run(current: str, seen: dict[str, str]) -> Candidates:
    """Return the scripts and folders that begin like this, and the components."""
    import glob

    paths = []
    for path in sorted(glob.iglob(f"{glob.escape(current)}*")):
        if os.path.isdir(path):
            paths.append((f"{path}/", "folder"))
        elif path.endswith((".py", ".sh")):
            paths.append((path, "script"))
    return paths[:_MAX_RUNS] + _components(current, seen)


def _components(current: str, _: dict[str, str] | None = None) -> Candidates:
    from torchx.component_reader.finder import component_names

    path, colon, function = current.rpartition(":")
    if not (colon and path.endswith(".py")):
        return _starting(current, _plain(component_names()))
    with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:  # read, because importing runs it
        found = re.findall(r"^def\s+([A-Za-z]\w*)\s*\(", file.read(), re.MULTILINE)
    return [(f"{path}:{name}", "") for name, _ in _starting(function, _plain(found))]


def _component_arguments(rest: list[str], current: str) -> Candidates:
    from torchx.component_reader.finder import get_component
    from torchx.component_reader.linter import ParameterReader, validate
    from torchx.component_reader.signature import read

    words = rest[1:] if rest[0] == "--" else rest
    if not words:
        return _components(current)
    path, colon, function = words[0].rpartition(":")
    if colon:  # read, because importing runs it
        validate(os.path.expanduser(path), function, [reader := ParameterReader()])
        options = reader.parameters
    else:
        options = [*read(get_component(words[0]).fn).options]
    by_flag = {flag: p for p in options for flag in p.flags}
    last = by_flag.get(words[-1]) if len(words) > 1 else None
    if last is not None:
        values = NAMED_RESOURCES if last.name == "h" else ("true", "false") if str(last.shape) == "bool" else ()
        return _starting(current, _plain(values))
    if "--" in words[1:] or not current.startswith("-"):
        return []
    rows = ((max(p.flags, key=len), str(p.shape)) for p in options)
    return _starting(current, [*rows, ("--help", "the component's arguments")])


def _active_jobs(current: str, _: dict[str, str]) -> Candidates:
    from torchx.runner import get_runner
    from torchx.runs import RunQuery

    active = [state for state in AppState if not is_terminal(state)]
    with get_runner() as runner:
        return _names(current, runner.runs(RunQuery(states=active, limit=_MAX_RUNS), timeout_s=1.0))


def _jobs(current: str, _: dict[str, str]) -> Candidates:
    from torchx.runs import RunQuery, default_registry

    return _names(current, default_registry().list(RunQuery(limit=_MAX_RUNS)))


def _names(current: str, found: Iterable[Run]) -> Candidates:
    runs = [run for run in found if run.handle]
    # Complete a handle if the user began with a scheduler's name, else an app id.
    names = (run.handle if current and run.handle.startswith(current) else run.app_id for run in runs)
    rows = [(name, f"{run.state}, {ago(run.created_at)}") for name, run in zip(names, runs, strict=True)]
    return _starting(current, [*rows, ("@last", "the newest run")])


def _log_targets(current: str, seen: dict[str, str]) -> Candidates:
    tail = current.partition("://")[2] if "://" in current else f"x/{current}"
    if tail.count("/") < 2:
        return _jobs(current, seen)
    from torchx.runs import default_registry

    job, _, typed = current.rpartition("/")
    roles = default_registry().find(job).app.get("roles", [])
    rows = ((role["name"], f"{role.get('num_replicas', 1)} replicas") for role in roles)
    return [(f"{job}/{name}", text) for name, text in _starting(typed, rows)]


def _trackers(current: str, _: dict[str, str]) -> Candidates:
    from torchx.runner.ground.trackers import get_configured_trackers

    return _starting(current, _plain(get_configured_trackers()))


_SOURCES: dict[str, Callable[[str, dict[str, str]], Candidates]] = {
    "scheduler": _schedulers,
    "schedulers": _schedulers,
    "cfg": _cfg,
    "profile": lambda current, _: _starting(current, _plain(load_files().profiles())),
    "component_name_and_args": _to_run,
    "print_component": _components,
    "app_handle": _jobs,
    "more": _jobs,
    "RUN_ID": _jobs,
    "parent_run_id": _jobs,
    "tracker": _trackers,
    "identifier": _log_targets,
    "tail": _log_targets,
    "state": lambda current, _: _in_list(current.lower(), _plain(state.name.lower() for state in AppState)),
}


def _starting(current: str, rows: Iterable[tuple[str, str]]) -> Candidates:
    found = ((value, " ".join(text.split())) for value, text in rows if value.startswith(current))
    return list(dict(found).items())


def _in_list(current: str, rows: Iterable[tuple[str, str]]) -> Candidates:
    """Completes the last value of a comma-separated list."""
    head, comma, last = current.rpartition(",")
    return [(head + comma + value, text) for value, text in _starting(last, rows)]


def _plain(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((name, "") for name in names)


# -- quoting for bash ------------------------------------------------------------------------------


def _typed_before_break(word: str) -> str:
    """Return the part of a word that bash keeps on the line, because `:` and `=` separate words there."""
    breaks = os.environ.get("TORCHX_COMP_BREAKS", ":=")
    last = max((word.rfind(c) for c in ":=" if c in breaks), default=-1)
    return word[: last + 1]


def _quoted(value: str) -> str:
    return value if all(c.isalnum() or c in "@%+=:,./-_" for c in value) else shlex.quote(value)
