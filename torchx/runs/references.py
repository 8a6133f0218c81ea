"""What to say when a short reference to a run means nothing, or several things."""

from __future__ import annotations

from collections.abc import Sequence

from torchx.errors import HandleError, NotFoundError
from torchx.util.strings import did_you_mean


def place(reference: str) -> tuple[str | None, int] | None:
    """What ``@last``, ``@last~1`` and ``@train~2`` say: the name of the run, any for None, and how many are newer.

    >>> place("@last~1"), place("@train"), place("@last~x")
    ((None, 1), ('train', 0), None)
    """
    name, _, count = reference[1:].rpartition("~") if "~" in reference else (reference[1:], "", "0")
    if not name or not (count.isascii() and count.isdigit() and len(count) < 10):
        return None
    return (None if name == "last" else name), int(count)


def no_such_run(reference: str, known: Sequence[str]) -> NotFoundError:
    """The error for a reference that no run on record answers to.

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
    """The error for a reference that several runs answer to.

    >>> ambiguous("e", ["x://s/echo-1", "x://s/echo-2"]).message
    '`e` could be any of: x://s/echo-1, x://s/echo-2'
    """
    shown = ", ".join(handles[:5]) + (", ..." if len(handles) > 5 else "")
    return HandleError(
        f"`{reference}` could be any of: {shown}",
        hint="give more of it, or the whole handle; `@NAME` is the newest run of a name",
    )
