"""Parses short references to runs, and makes the errors for unknown and ambiguous ones."""

from __future__ import annotations

from collections.abc import Sequence

from torchx.errors import HandleError, NotFoundError
from torchx.util.strings import did_you_mean


def place(reference: str) -> tuple[str | None, int] | None:
    """Parse ``@last``, ``@last~1`` and ``@train~2``: the name of the run (None: any), and how many newer ones to skip.

    >>> place("@last~1"), place("@train"), place("@last~x")
    ((None, 1), ('train', 0), None)
    """
    name, _, count = reference[1:].rpartition("~") if "~" in reference else (reference[1:], "", "0")
    if not name or not (count.isascii() and count.isdigit() and len(count) < 10):
        return None
    return (None if name == "last" else name), int(count)


def no_such_run(reference: str, known: Sequence[str]) -> NotFoundError:
    """Return the error for a reference that no run on record matches.

    >>> no_such_run("ecko-x1", ["echo-x1"]).hint
    'did you mean `echo-x1`?'
    """
    if reference.startswith("@"):
        text = "there is no run on record" if reference == "@last" else f"`{reference}` is not a reference to a run"
        hint = "`@last` is the newest run, `@last~1` the one before, `@NAME` the newest of a name"
        return NotFoundError(text, hint=f"{hint}; `torchx list` shows them")
    return NotFoundError(
        f"no run on record is called `{reference}`",
        hint=did_you_mean(reference, known)
        or "give a handle (`scheduler://session/app_id`), an app id, the beginning of one, or `@last`;"
        " `torchx list` shows them",
    )


def ambiguous(reference: str, handles: Sequence[str]) -> HandleError:
    """Return the error for a reference that several runs match.

    >>> ambiguous("e", ["x://s/echo-1", "x://s/echo-2"]).message
    '`e` could be any of: x://s/echo-1, x://s/echo-2'
    """
    shown = ", ".join(handles[:5]) + (", ..." if len(handles) > 5 else "")
    return HandleError(
        f"`{reference}` could be any of: {shown}",
        hint="give more of it, or the whole handle; `@NAME` is the newest run of a name",
    )
