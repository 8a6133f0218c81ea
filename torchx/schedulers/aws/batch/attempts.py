"""Retries by cause on Batch: renders a policy as the job's retry strategy, and reads the attempts that Batch reports.

https://docs.aws.amazon.com/batch/latest/APIReference/API_EvaluateOnExit.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchx.schedulers.aws.batch.pieces import Chain
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.native_retries import NativeRetries, NativeSystem, attempt_of
from torchx.specs.wishes.retries import Attempt

_Object = dict[str, Any]

_TAKEN = ("preempted", "node")
SYSTEM = NativeSystem(name="aws_batch", groups=[_TAKEN, ("image",), ("oom",), ("error",)], most=9, free=False)

# Class of failure, and the field and pattern by which Batch matches it. Batch allows five rules; the first match wins.
_RULES = (
    ("node", "onStatusReason", "Host EC2*"),
    ("preempted", "onStatusReason", "Your Spot Task was interrupted*"),
    ("image", "onReason", "CannotPull*"),
    ("oom", "onReason", "OutOfMemoryError*"),
    ("error", "onReason", "*"),
)


def render(retries: NativeRetries) -> _Object:
    """Return the retry strategy of a job with a policy."""
    rules = [{on: text, "action": "RETRY" if kind in retries.retried else "EXIT"} for kind, on, text in _RULES]
    return {"attempts": retries.times + 1, "evaluateOnExit": rules}


def attempts_of(
    job: _Object, chain: Chain | None, read: Callable[[_Object], ReplicaFacts], *, over: bool
) -> list[Attempt]:
    """Return the failed attempts, oldest first; none for a job with neither a policy nor a ``chain``.

    ``read`` returns the facts of a finished attempt, which has the form of a node; ``over``: the job has ended.
    """
    strategy = job.get("retryStrategy") or {}
    rules = [rule for rule in strategy.get("evaluateOnExit") or () if isinstance(rule, dict)]
    patterns = [rule.get("onStatusReason") or rule.get("onReason") for rule in rules]
    if chain is None and patterns != [pattern for _, _, pattern in _RULES]:
        return []
    ended = [item for item in job.get("attempts") or () if item.get("stoppedAt")]
    found: list[Attempt] = []
    for item in ended:
        attempt = attempt_of(read({**item, "status": "FAILED"}))
        attempt.again = item is not ended[-1] or not over
        if chain is not None:
            attempt.total = chain.total_s
            attempt.used = sum(one.ended - one.started for one in (*found, attempt) if one.started)
        attempt.why = (
            f"{attempt.kind}: {_why(attempt.kind, rules, strategy, again=attempt.again, chain=chain is not None)}"
        )
        found.append(attempt)
    return found if str(job.get("status")) != "SUCCEEDED" else found[:-1]


def _why(kind: str, rules: Sequence[_Object], strategy: _Object, *, again: bool, chain: bool) -> str:
    if again:
        return "retried"
    if chain:
        used = kind in ("timeout", *_TAKEN)
    else:
        kinds = [name for name, _, _ in _RULES]
        rule = rules[kinds.index(kind if kind in kinds else "error")]
        used = str(rule.get("action", "")).upper() == "RETRY"
    return f"all {int(strategy.get('attempts') or 1) - 1} retries are used" if used else "the policy does not retry it"
