"""Shorthands of ``torchx run``: a script or program instead of a component, and options after the component."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any

from torchx.cli.failures import UsageError
from torchx.schedulers import get_scheduler_factories

_PYTHON = ("python", "python3")
_SHELLS = ("bash", "sh")
_SCRIPTS = (".sh", ".bash")
# Rejected rather than passed on silently: the job would run in the wrong place, or although a dry run was meant.
_REFUSED = (
    "--dryrun",
    "--dry-run",
    "-s",
    "--scheduler",
    "-cfg",
    "--scheduler_args",
    "--scheduler-args",
    "-j",
    "--gpu",
    "--mem",
)


def program(
    words: Sequence[str], *, size: str | None = None, dashes: bool = False, here: bool = True
) -> tuple[str, list[str]] | None:
    """Return the component that runs a program, and its arguments; None when the words name a component.

    ``size`` are nodes and workers, as for ``dist.ddp -j``. With ``dashes`` the words came after ``--``, so that any
    program is allowed; one that runs ``here`` has to be on this machine.

    Raises:
        UsageError: there is no such program here, or ``size`` is not for it.

    >>> program(["train.py", "--epochs", "3"])
    ('utils.python', ['--script', 'train.py', '--', '--epochs', '3'])
    >>> program(["python", "-m", "pets.train"], size="1x4", dashes=True)
    ('dist.ddp', ['-j', '1x4', '-m', 'pets.train', '--'])
    >>> program(["utils.echo", "--msg", "hi"], dashes=True) is None
    True
    """
    first, *rest = words
    if dashes and first.endswith(_SCRIPTS) and os.path.isfile(first):
        runs = os.access(first, os.X_OK)
        first = first if "/" in first or not runs else f"./{first}"
        words = [first, *rest] if runs else ["bash", first, *rest]
        first, *rest = words
    if first.endswith(".py"):
        rest = rest[1:] if rest[:1] == ["--"] and not dashes else rest
        return _python(["--script", first], rest, size)
    if dashes and first in _PYTHON and rest:
        while rest[:1] == ["-u"]:  # both components run Python unbuffered anyway
            rest = rest[1:]
        if len(rest) > 1 and rest[0] in ("-m", "-c") and not (size and rest[0] == "-c"):
            return _python(rest[:2], rest[2:], size)
        if rest and not rest[0].startswith("-"):
            return _python(["--script", rest[0]], rest[1:], size)
    if not dashes or _is_component(first):
        return None
    if here and not is_on_path(first):
        raise UsageError(
            f"there is no program or component `{first}` on this machine",
            hint="`torchx builtins` lists components; a program of another machine needs `-s`",
        )
    if size:
        raise UsageError(
            f"`-j {size}` needs a Python script or module, and `{first}` is neither",
            hint=f"`torchx run -j {size} train.py`, or `torchx run -j {size} -- python -m my_module`",
        )
    # Without the shell between them, a container's signals reach the program; a single word would be a line of shell.
    return "utils.sh", ["--", "exec", *words]


def is_program(words: Sequence[str]) -> bool:
    """Return whether a command line names a program instead of a component: a file, or an interpreter with one.

    Raises:
        UsageError: it names a file that does not exist.

    >>> is_program(["python", "train.py"]), is_program(["utils.echo"])
    (True, False)
    """
    first = words[0] if words else ""
    if first in (*_PYTHON, *_SHELLS):
        return len(words) > 1
    if ":" in first or first == "utils.sh" or not ("/" in first or first.endswith(_SCRIPTS)):
        return False
    if not os.path.isfile(first):
        from torchx.component_reader.finder import component_names

        if first in component_names():
            return False
        raise UsageError(f"there is no file `{first}` in `{os.getcwd()}`", hint="`torchx builtins` lists components")
    return True


def check_script(component_args: Sequence[str]) -> None:
    """Raise UsageError for a script that only defines components."""
    script = component_args[component_args.index("--script") + 1]
    if not os.path.isfile(script):
        return  # the check of the local scheduler reports a missing script
    with open(script, encoding="utf-8", errors="replace") as f:
        text = f.read()
    found = re.findall(r"^def (\w+)\([^#]*?\)\s*->\s*[\"']?(?:\w+\.)*AppDef", text, re.MULTILINE)
    if found and "__main__" not in text:
        raise UsageError(
            f"`{script}` only defines components, and does nothing as a script",
            hint=f"name a function of the file: `torchx run {script}:{found[0]}`",
        )


def hoist(parser: argparse.ArgumentParser, component: str, words: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of torchx that stand after the component, and the remaining words.

    An option that both have is the component's, and so is everything after ``--``. An option of torchx among words
    that are passed to the program is a UsageError.
    """
    options: dict[str, Any] = parser._option_string_actions
    named = words[: words.index("--")] if "--" in words else words
    if not any(word.partition("=")[0] in options for word in named):
        return [], words
    from torchx.component_reader.arguments import option_width
    from torchx.component_reader.finder import get_component
    from torchx.component_reader.signature import read

    signature = read(get_component(component).fn, name=component)
    ours: list[str] = []
    theirs: list[str] = []
    at = 0
    while at < len(named):
        word = named[at]
        if not word.startswith("-"):
            refuse(named[at + 1 :], component)
            break
        width = option_width(signature, named[at:])
        action = None if width else options.get(word.partition("=")[0])
        if action is None or action.dest in ("help", "h"):
            width = width or 1
            theirs += named[at : at + width]
        else:
            width = 1 if action.nargs == 0 or "=" in word else 2
            ours += named[at : at + width]
        at += width
    return ours, theirs + named[at:] + words[len(named) :]


def refuse(words: Sequence[str], component: str) -> None:
    """Raise UsageError if words that are passed to the program contain an option of torchx."""
    words = words[: words.index("--")] if "--" in words else words
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name not in _REFUSED or not _is_ours(name, value if equals else following):
            continue
        text = word if equals or name.startswith("--dry") else f"{word} {following}"
        raise UsageError(
            f"`{text}` comes after `{component}`, and would be passed on to the program",
            hint=f"for torchx, write `torchx run {text} {component} ...`; for the program, `--` before its arguments",
        )


def _is_ours(name: str, value: str) -> bool:
    if name in ("-s", "--scheduler"):
        return value in get_scheduler_factories()
    if name in ("--gpu", "--mem"):  # a script may have such an option, too, but rarely for a value like these
        return re.fullmatch(r"[A-Za-z][\w-]*:\d+|\d+[GMT]i?B?", value) is not None
    if name == "-j":
        nodes, x, workers = value.partition("x")
        return bool(x) and nodes.replace(":", "").isdigit() and workers.isdigit()
    return True


def _python(program: list[str], args: list[str], size: str | None) -> tuple[str, list[str]]:
    if size:
        return "dist.ddp", ["-j", size, *program, "--", *args]
    return "utils.python", [*program, "--", *args]


def _is_component(word: str) -> bool:
    from torchx.component_reader.finder import component_names

    return not is_on_path(word) and (":" in word or "." in word or word in component_names())


def is_on_path(word: str) -> bool:
    """Whether this machine has a program of that name."""
    from shutil import which

    return which(word) is not None
