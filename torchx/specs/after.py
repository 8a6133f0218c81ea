"""One job after another: the words of ``torchx run --after``. A job carries them in ``AppDef.metadata[AFTER]``."""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.specs.api import AppDef

__all__ = ["AFTER", "CONDITIONS", "WAIT", "earlier_jobs", "split_condition"]

AFTER = "torchx/after"
"""The key of ``AppDef.metadata``: ``CONDITION:HANDLE`` for each job that comes before, separated by spaces."""

CONDITIONS = ("ok", "any", "fail")
"""Whether the earlier job has to succeed, to end, or to fail."""

WAIT = "wait"
"""Stands among the jobs of ``--after``: where the scheduler cannot wait for them, the command does."""


def split_condition(text: str) -> tuple[str, str]:
    """The reference to a job, and the condition, ``ok`` where none is given.

    Raises:
        SpecError: the condition is not one.

    >>> split_condition("@last"), split_condition("slurm://torchx/7:any"), split_condition("queue:train-x1b2")
    (('@last', 'ok'), ('slurm://torchx/7', 'any'), ('queue:train-x1b2', 'ok'))
    """
    reference, colon, condition = text.rpartition(":")
    if not colon or not condition.isalpha():  # the id of a job on AWS Batch has a colon in it, too
        return text, "ok"
    if condition not in CONDITIONS or not reference:
        raise SpecError(f"`--after {text}`: `{condition}` is not a condition", hint=f"one of {', '.join(CONDITIONS)}")
    return reference, condition


def earlier_jobs(app: AppDef) -> list[tuple[str, str]]:
    """The conditions and handles of the jobs that come before.

    >>> from torchx.specs.api import AppDef
    >>> earlier_jobs(AppDef("a", metadata={AFTER: "ok:slurm://torchx/7"}))
    [('ok', 'slurm://torchx/7')]
    """
    words = app.metadata.get(AFTER, "").split() if app.metadata else []
    pairs = [word.partition(":")[::2] for word in words]
    for condition, handle in pairs:
        if condition not in CONDITIONS or not handle:
            raise SpecError(
                f"the metadata `{AFTER}` is `{app.metadata[AFTER]}`",
                hint="write `ok:HANDLE`, or `any:` or `fail:`",
            )
    return [(condition, handle) for condition, handle in pairs]
