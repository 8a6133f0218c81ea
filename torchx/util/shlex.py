"""Quoting of argument lists for a POSIX shell, under the name that programs import."""

from __future__ import annotations

from collections.abc import Iterable


def join(args: Iterable[str]) -> str:
    """One shell command line that a shell splits back into ``args``.

    >>> join(["echo", "a b", "$HOME"])
    "echo 'a b' '$HOME'"
    """
    import shlex

    return shlex.join(list(args))
