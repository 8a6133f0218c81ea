"""The magics: ``%%workspacefile``, ``%workspace``, ``%torchx``."""

from __future__ import annotations

import re
import shlex
import string
import sys
from collections.abc import Mapping
from typing import Any

from torchx.cli.cmd_complete import candidates, split_line
from torchx.errors import SpecError, TorchXError
from torchx.notebook import workspace
from torchx.notebook.commands import run
from torchx.notebook.job import Job

_NAMES = {"line": ("torchx", "workspace"), "cell": ("torchx", "workspacefile")}
_COMPLETED = "%torchx"

# `{name}`, `{cfg.lr}`, `{lrs[0]}`; not `${app_id}`, which is a macro, nor `{"a": 1}`
_FIELD = re.compile(r"(?<!\$)\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[[^\][{}]+\])*)\}")


class MistakeError(TorchXError):
    def _render_traceback_(self) -> list[str]:
        return [f"{self}\nhint: {self.hint}" if self.hint else str(self)]


def register(shell: Any) -> None:
    """Register the magics and the completion of ``%torchx`` lines."""
    from IPython.core.magic import no_var_expand

    unregister(shell)  # a second registration would add a second completer
    magics = Magics(shell)
    # IPython would expand variables before the line is split, so that a value with blanks would become several words.
    for magic in (Magics.torchx, Magics.workspacefile):
        no_var_expand(magic)
    shell.register_magic_function(magics.torchx, "line_cell", "torchx")
    shell.register_magic_function(magics.workspace, "line", "workspace")
    shell.register_magic_function(magics.workspacefile, "cell", "workspacefile")
    shell.set_hook("complete_command", _complete, str_key=_COMPLETED)


def unregister(shell: Any) -> None:
    for kind, names in _NAMES.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    shell.strdispatchers["complete_command"].strs.pop(_COMPLETED, None)


class Magics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def torchx(self, line: str, cell: str | None = None) -> Job | None:
        """Run a command of torchx; `%torchx --help` lists them.

            job = %torchx run utils.python --script train.py -- --lr {lr}
            %torchx log -f @last

        {lr} is replaced by the variable `lr`, always as one argument. Returns the job that was launched.
        """
        return run(split("\n".join([line, *([cell] if cell is not None else [])]), self._shell.user_ns))

    def workspace(self, line: str) -> None:
        """List the files written with %%workspacefile; `%workspace clear` removes them."""
        word = line.strip()
        if word == "clear":
            count = workspace.clear()
            _say(f"removed {count} file{'' if count == 1 else 's'}")
        elif word:
            raise MistakeError(f"`%workspace` has no subcommand `{word}`", hint="`%workspace`, or `%workspace clear`")
        else:
            found = workspace.files()
            _say("\n".join(f"{size:>8}  {name}" for name, size in found.items()) or f"nothing in {workspace.WORKSPACE}")

    def workspacefile(self, line: str, cell: str) -> None:
        """Save the cell as a file of the workspace that `%torchx run` sends; -a appends to the file.

        %%workspacefile train.py
        print("hello from the job")
        """
        words = split(line, {})
        append = words[:1] in (["-a"], ["--append"])
        paths = words[1:] if append else words
        if len(paths) != 1:
            raise MistakeError("`%%workspacefile` takes one path", hint="`%%workspacefile [-a] train.py`")
        try:
            size = workspace.workspacefile(paths[0], cell, append=append)
        except SpecError as e:
            raise MistakeError(str(e), hint=e.hint) from None
        _say(f"{'appended to' if append else 'wrote'} {paths[0]}, {size} bytes, in {workspace.WORKSPACE}")


def split(text: str, variables: Mapping[str, Any]) -> list[str]:
    """Split a command into words as a shell does, then replaces ``{name}`` by variables.

    Names that are not variables are not replaced. A variable that lacks the attribute or item is a MistakeError.

    >>> split("run utils.echo --msg {msg} '${app_id} {other}'", {"msg": "it's two words"})
    ['run', 'utils.echo', '--msg', "it's two words", '${app_id} {other}']
    """
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as e:
        raise MistakeError(f"the line cannot be parsed: {e}", hint="a quote is not closed") from None
    return [_FIELD.sub(lambda match: _value(match, variables), word) for word in words]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _value(match: re.Match[str], variables: Mapping[str, Any]) -> str:
    field = match[1]
    if re.match(r"\w+", field)[0] not in variables:  # type: ignore[index]  # the pattern begins with a name
        return match[0]
    try:
        return str(string.Formatter().get_field(field, (), variables)[0])
    except (LookupError, AttributeError, TypeError) as e:
        raise MistakeError(f"`{{{field}}}` has no value: {type(e).__name__}: {e}") from None


def _complete(_: Any, event: Any) -> list[str]:
    """Return completions; IPython keeps those that begin with ``event.symbol``."""
    words = split_line(event.text_until_cursor)[1:] or [""]
    try:
        found = candidates(words)
    except Exception:  # the user only pressed Tab: errors are reported when the line is run
        return []
    # IPython splits words at `:`, `=` and `@`.
    cut = len(words[-1]) - len(event.symbol)
    return [value[cut:] for value, _ in found]
