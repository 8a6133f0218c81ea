"""What to say when a short reference to a run means nothing, or several things."""

from __future__ import annotations

from collections.abc import Sequence

from torchx.errors import HandleError, NotFoundError


def no_such_run(reference: str, known: Sequence[str]) -> NotFoundError:
    """The error for a reference that no run on record answers to.

    >>> no_such_run("ecko-x1", ["echo-x1"]).hint
    'did you mean `echo-x1`?'
    """
    from torchx.util.strings import did_you_mean

    if reference.startswith("@"):
        text = "there is no run on record" if reference == "@last" else f"`{reference}` is not a reference to a run"
        return NotFoundError(text, hint="`@last` is the newest run; `torchx list` shows them")
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
    return HandleError(f"`{reference}` could be any of: {shown}", hint="give more of it, or the whole handle")
