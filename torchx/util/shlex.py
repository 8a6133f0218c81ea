"""Shells, and quoting of argument lists for them; programs import it under this name."""

from __future__ import annotations

from collections.abc import Iterable

SHELLS = ("sh", "bash", "dash", "zsh")
"""Programs to which ``-c`` gives a command line."""


def join(args: Iterable[str]) -> str:
    """Join ``args`` into a command line that a shell splits back into ``args``.

    >>> join(["echo", "a b", "$HOME"])
    "echo 'a b' '$HOME'"
    """
    import shlex

    return shlex.join(list(args))
