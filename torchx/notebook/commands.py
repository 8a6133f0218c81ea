"""Commands of torchx, run in the process of the notebook as the command line would run them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from torchx.cli.cmd_run import parsed
from torchx.cli.commands import verb_at
from torchx.cli.main import main
from torchx.cli.run_args import default_scheduler, fill_from_config
from torchx.config import use_profile
from torchx.config.files import CONFIG_FILE
from torchx.errors import TorchXError
from torchx.notebook.job import Job, shared_runner
from torchx.notebook.streams import as_a_command_line
from torchx.notebook.workspace import WORKSPACE, files, folder

if TYPE_CHECKING:
    import argparse


def run(words: list[str]) -> Job | None:
    """Runs the command with these words after ``torchx``; the job when it has launched one.

    Raises:
        CommandError: its exit code is not 0.
    """
    words, folder = with_cells(words)
    with as_a_command_line(words) as out, _being_in(folder) if folder else nullcontext():
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
    """A ``run`` takes along what the cells wrote, unless it names a workspace itself.

    Returns:
        the words to run, and the folder to run them in; empty: where we are.
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
    """Where the verb `run` stands; None when the verb is another."""
    at = verb_at(words)
    return at if words[at : at + 1] == ["run"] else None


def _parsed(words: list[str]) -> argparse.Namespace | None:
    """The options of `run`; None when it only prints its help, or is going to say what is wrong with them."""
    if any(word in ("-h", "--help") for word in words):
        return None
    try:
        return parsed(words)
    except (TorchXError, SystemExit):
        return None


def _takes_workspaces(args: argparse.Namespace) -> bool:
    """Whether the scheduler of this `run` brings code to where the job runs."""
    from torchx.schedulers.kit.abilities import BuildsWorkspaces

    use_profile(getattr(args, "profile", None))
    try:
        fill_from_config(args)
        name = getattr(args, "scheduler", None) or default_scheduler()
        return isinstance(shared_runner()._scheduler(name), BuildsWorkspaces)
    except TorchXError:
        return True  # the command itself will say what is wrong
    finally:
        use_profile(None)


def _found(component: str, folder: str) -> str:
    """``file.py:function`` with the file's full path: in the current directory, or else among the cells' files."""
    path, colon, function = component.rpartition(":")
    if not colon or not path.endswith(".py") or os.path.isabs(path):
        return component
    for place in (os.getcwd(), folder):
        if os.path.isfile(os.path.join(place, path)):
            return f"{os.path.join(place, path)}:{function}"
    return component


@contextmanager
def _being_in(folder: str) -> Iterator[None]:
    """While it is entered the folder is the current directory, with the config file of the one that was."""
    before = os.getcwd()
    link, config = f"{folder}/{CONFIG_FILE}", f"{before}/{CONFIG_FILE}"
    if os.path.islink(link):
        os.unlink(link)
    if os.path.isfile(config):
        with suppress(FileExistsError):  # one of the cells has written its own
            os.symlink(config, link)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class CommandError(TorchXError):
    """A command ended with an exit code other than 0; what it had to say is above.

    Args:
        exit_code: of the command; ``torchx --help`` lists them.
    """

    def __init__(self, command: str, exit_code: int) -> None:
        super().__init__(f"`{command}` ended with exit code {exit_code}")
        self.exit_code = exit_code

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: a user's mistake has no traceback."""
        return [str(self)]
