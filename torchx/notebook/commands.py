"""Runs commands of torchx in the process of the notebook; a handle on the last line of output becomes a Job."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from typing import Any

from torchx.cli.cmd_run import parsed
from torchx.cli.commands import verb_at
from torchx.cli.main import main
from torchx.cli.run_args import fill_from_config
from torchx.config import use_profile
from torchx.config.files import CONFIG_FILE
from torchx.errors import TorchXError
from torchx.notebook.job import Job, shared_runner
from torchx.notebook.workspace import WORKSPACE, files, folder
from torchx.schedulers import get_default_scheduler_name
from torchx.schedulers.kit.abilities import BuildsWorkspaces

_HANDLE = re.compile(r"[a-z]\w*://[^\s/]*/\S+")


def run(words: list[str]) -> Job | None:
    """Run ``torchx WORDS``, and return the job that it has launched; raise CommandError if it fails."""
    words, folder = with_cells(words)
    with as_a_command_line(words) as out, _working_in(folder) if folder else nullcontext():
        try:
            main(words)
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1 if e.code else 0
        handle = out.finish(keep_handle=code != 0 or _run_at(words) is None)
    if code:
        verb = next((word for word in words if not word.startswith("-")), "")
        raise CommandError(f"torchx {verb}".strip(), code)
    return Job(handle) if handle else None


def with_cells(words: list[str]) -> tuple[list[str], str]:
    """Make ``run`` use the files of the cells, unless it names a workspace itself.

    Returns the words to run, and the folder to run them in; empty for the current one.
    """
    i = _run_at(words)
    args = None if i is None or not files() else _parsed(words[i + 1 :])
    if i is None or args is None or hasattr(args, "workspace") or hasattr(args, "stdin"):
        return words, ""
    rest = args.component_name_and_args
    at = len(words) - len(rest[1:] if rest[:1] == ["--"] else rest)
    words = [*words[:at], *(_found(word, folder()) for word in words[at : at + 1]), *words[at + 1 :]]
    if _takes_workspaces(args):
        return [*words[: i + 1], "--workspace", WORKSPACE, *words[i + 1 :]], ""
    return words, folder()


def _run_at(words: list[str]) -> int | None:
    """Return the index of the verb ``run``; None for other verbs."""
    at = verb_at(words)
    return at if words[at : at + 1] == ["run"] else None


def _parsed(words: list[str]) -> argparse.Namespace | None:
    """Parse the options of ``run``; return None if it will only print help or report a usage error."""
    if any(word in ("-h", "--help") for word in words):
        return None
    try:
        return parsed(words)
    except (TorchXError, SystemExit):
        return None


def _takes_workspaces(args: argparse.Namespace) -> bool:
    """Whether the scheduler of this ``run`` sends the workspace with the job."""
    use_profile(getattr(args, "profile", None))
    try:
        fill_from_config(args)
        name = getattr(args, "scheduler", None) or get_default_scheduler_name()
        return isinstance(shared_runner()._scheduler(name), BuildsWorkspaces)
    except TorchXError:
        return True  # the command itself reports the error
    finally:
        use_profile(None)


def _found(component: str, folder: str) -> str:
    """Make the path of ``file.py:function`` absolute: in the current directory, or else among the cells' files."""
    path, colon, function = component.rpartition(":")
    if not colon or not path.endswith(".py") or os.path.isabs(path):
        return component
    for place in (os.getcwd(), folder):
        if os.path.isfile(os.path.join(place, path)):
            return f"{os.path.join(place, path)}:{function}"
    return component


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """Change to the folder, with a link there to the config file of the current directory."""
    before = os.getcwd()
    link, config = f"{folder}/{CONFIG_FILE}", f"{before}/{CONFIG_FILE}"
    if os.path.islink(link):
        os.unlink(link)
    if os.path.isfile(config):
        with suppress(FileExistsError):  # a cell has written its own config file
            os.symlink(config, link)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class CommandError(TorchXError):
    """A command failed; it has already printed its messages. ``torchx --help`` lists the exit codes."""

    def __init__(self, command: str, exit_code: int) -> None:
        super().__init__(f"`{command}` ended with exit code {exit_code}")
        self.exit_code = exit_code

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback."""
        return [str(self)]


@contextmanager
def as_a_command_line(words: list[str]) -> Iterator[Output]:
    """Redirects ``sys.argv``, stdout, stderr and log handlers while a command runs in this process."""
    import logging

    root = logging.getLogger()
    handlers, level, argv = list(root.handlers), root.level, sys.argv
    shown = Output(sys.stdout)
    # Messages go to stdout too, to keep them in order: a notebook shows stderr apart, in red.
    with redirect_stdout(shown), redirect_stderr(Messages(shown._out)):
        sys.argv = ["torchx", *words]  # goes on record, and is searched for secrets that messages must not repeat
        try:
            yield shown
        finally:
            sys.argv = argv
            for handler in [h for h in root.handlers if h not in handlers]:
                root.removeHandler(handler)
            root.setLevel(level)


class Output:
    """Standard output of a command. Passes on lines, and holds back a handle on the last one."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, out: Any) -> None:
        self._out = out
        self._held = ""

    def write(self, text: str) -> int:
        """Pass on whole lines, unless the last is a handle."""
        self._held += text
        if "\n" in self._held:
            *lines, rest = self._held.split("\n")
            last = lines.pop() if not rest and _HANDLE.fullmatch(lines[-1]) else None
            self._out.write("".join(f"{line}\n" for line in lines))
            self._held = f"{last}\n" if last is not None else rest
        return len(text)

    def flush(self) -> None:
        """Pass on the unfinished line, unless it may become a handle."""
        if self._held and not _HANDLE.match(self._held):
            self._out.write(self._held)
            self._held = ""
        self._out.flush()

    def isatty(self) -> bool:
        return False

    def finish(self, *, keep_handle: bool) -> str:
        """Return the handle on the last line; with ``keep_handle`` prints it instead and return an empty string."""
        held, self._held = self._held, ""
        handle = held.strip() if _HANDLE.fullmatch(held.strip()) else ""
        if held and (keep_handle or not handle):
            self._out.write(held)
        self._out.flush()
        return "" if keep_handle else handle


class Messages(Output):
    """Standard error of a command: passes on everything at once."""

    def write(self, text: str) -> int:
        return self._out.write(text) or len(text)
