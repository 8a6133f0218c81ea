"""Job dependencies (``torchx run --after``), stored in ``AppDef.metadata[AFTER]``."""

from __future__ import annotations

from torchx.errors import SpecError

AFTER = "torchx/after"
"""Metadata key: space-separated ``CONDITION:HANDLE``, one for each job that this job depends on."""

CONDITIONS = ("ok", "any", "fail")
"""The earlier job must succeed, end in any state, or fail."""

WAIT = "wait"
"""An item of ``--after``: if the scheduler does not support dependencies, the command waits for the jobs itself."""


def split_condition(text: str) -> tuple[str, str]:
    """Split ``JOB[:CONDITION]`` (default: ``ok``) into both parts; raises SpecError for an unknown condition.

    >>> split_condition("@last"), split_condition("slurm://torchx/7:any"), split_condition("queue:train-x1b2")
    (('@last', 'ok'), ('slurm://torchx/7', 'any'), ('queue:train-x1b2', 'ok'))
    """
    reference, colon, condition = text.rpartition(":")
    if not colon or not condition.isalpha():  # ids of AWS Batch contain a colon too
        return text, "ok"
    if condition not in CONDITIONS or not reference:
        raise SpecError(f"`--after {text}`: `{condition}` is not a condition", hint=f"one of {', '.join(CONDITIONS)}")
    return reference, condition


def parse_after(text: str) -> tuple[tuple[str, str], ...]:
    """Return ``(condition, handle)`` of the jobs that a job depends on; raises SpecError if that is malformed.

    >>> parse_after("ok:slurm://torchx/7")
    (('ok', 'slurm://torchx/7'),)
    """
    pairs = []
    for word in text.split():
        condition, _, handle = word.partition(":")
        if condition not in CONDITIONS or not handle:
            raise SpecError(f"the metadata `{AFTER}` is `{text}`", hint="write `ok:HANDLE`, or `any:` or `fail:`")
        pairs.append((condition, handle))
    return tuple(pairs)
