"""Decides whether a failed job gets another attempt: :func:`decide`, for every backend.

The process that restarts a job (the supervisor of a local job, the watcher of containers, a batch script) records its
attempts in a file in the job's folder, one JSON object per line, and calls :func:`decide`. Five rules:

1. The job's :class:`~torchx.specs.wishes.retries.RetryRules` decide by the class of the failure.
2. The same exception twice in a row ends a job whose rule is ``free`` or says ``differs``: a retry does not fix a bug.
   A number that the user wrote is obeyed.
3. An attempt that made progress resets all retry budgets except that of ``error``.
4. ``free`` stops after :data:`MAX_IN_A_ROW` attempts in a row without progress.
5. Hosts are avoided for a day: at most 8, and at most a tenth of all hosts (but at least one).
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError, SpecError
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import Attempt, RetryRules, seconds_of_attempts, to_line
from torchx.supervisor.layout import MARKS, private

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.schedulers.kit.caps import Capabilities
    from torchx.schedulers.kit.verdict import Verdict
    from torchx.specs.api import AppDef
    from torchx.specs.failures import Failure

ATTEMPTS_FILE, PROGRESS_FILE, CHECKPOINT_FILE = MARKS
BEGINS = "begins"
MAX_IN_A_ROW = 20
_AVOID_S = 24 * 3600.0
_MAX_AVOIDED = 8
_BY_THE_PROGRAM = ("error", "gpu_oom", "unknown")


def policy_of(app: AppDef, scheduler: str, caps: Capabilities) -> RetryRules | None:
    """Return the part of a job's retry policy that the backend supports; None if the job has no policy.

    Raises SpecError for an invalid policy and for one that explicitly names an action that the backend does not
    support, and NotSupportedError if it supports no policy.
    """
    rules = Wishes.of(app).retry
    if rules is None:
        return None
    if not caps.retry_actions:
        raise NotSupportedError(
            f"`{scheduler}` retries by count alone, not by the cause of a failure",
            hint="omit `--retry`, and give the component `--max_retries`",
        )
    return rules.within(caps.retry_actions, scheduler)


def refuse_parts(app: AppDef, system: str) -> None:
    """Rejects roles that restart on their own, for a system that can only restart the whole job."""
    for role in app.roles:
        if role.retry_policy.name != "APPLICATION":
            raise SpecError(
                f"role `{role.name}` has the retry policy `{role.retry_policy.value}`: with `--retry` {system} starts"
                " the whole job again",
                hint="use `APPLICATION`, the default, or omit `--retry`",
            )


def decide(rules: RetryRules, attempts: Sequence[Attempt], *, hosts: int = 0) -> Attempt:
    """Decides whether a job whose last attempt has failed is restarted. Returns that attempt with the decision in it.

    ``hosts`` is how many hosts the job can use; 0 if unknown.

    >>> from torchx.specs.wishes.retries import RetryRules
    >>> rules = RetryRules.parse("node:1:avoid")
    >>> last = decide(rules, [Attempt(kind="node", hosts=["n1"])])
    >>> last.again, last.why, last.avoid, last.memory
    (True, 'node: retry 1 of 1', ['n1'], 1.0)
    >>> decide(rules, [Attempt(kind="node"), Attempt(kind="node")]).why
    'node: all 1 retries are used'
    """
    last, count = attempts[-1], _counted(attempts)
    rule = rules.rule(last.kind)
    last.again, last.avoid, last.memory = False, [], 1.0
    last.total = rules.total_s
    last.used = sum(seconds_of_attempts(attempts, (), 0.0)) if last.total else 0.0
    if last.kind == "cancelled":
        last.why = "cancelled"
    elif not rule.times:
        last.why = f"{last.kind}: the policy does not retry it"
    elif end := _end_of_chain(rules, attempts):
        last.why = f"{last.kind}: {end}"
    elif (rule.differs or (rule.times < 0 and last.kind in _BY_THE_PROGRAM)) and _is_the_same(attempts):
        last.why = f"{last.kind}: the same failure twice in a row"
    elif rule.times > 0 and count > rule.times:
        last.why = f"{last.kind}: all {rule.times} retries are used"
    elif rule.times < 0 and _fruitless(attempts) > (most := max(MAX_IN_A_ROW, rules.pieces)):
        last.why = f"{last.kind}: {most} retries in a row made no progress"
    else:
        last.why = f"{last.kind}: retry {count} of {rule.times}" if rule.times > 0 else f"{last.kind}: retried"
        last.again, last.avoid = True, _avoided(rules, attempts, hosts)
        factors = [rules.rule(attempt.kind).memory for attempt in attempts]
        last.memory = round(math.prod(factors), 3)
    return last


def digest(failure: Failure) -> str:
    """Return a hash of an exception and where it was raised, without numbers and addresses; empty if it has no message.

    >>> from torchx.specs.failures import Failure
    >>> digest(Failure("ValueError: step 17")) == digest(Failure("ValueError: step 923"))
    True
    >>> digest(Failure("ValueError: bad batch")) == digest(Failure("KeyError: 'x'"))
    False
    """
    import binascii

    if not failure.message:
        return ""
    places = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
    said = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", " ".join(failure.message.split()))
    return f"{binascii.crc32(chr(10).join([said, *places[-3:]]).encode('utf-8', 'replace')):08x}"


def put_down(
    folder: str, verdict: Verdict, rules: RetryRules, earlier: Sequence[Attempt], attempt: Attempt, *, hosts: int = 0
) -> Attempt:
    """Record an attempt that has just ended in the job's folder on this machine, completed by :func:`judged`."""
    try:
        attempt.progress = os.stat(os.path.join(folder, PROGRESS_FILE)).st_mtime >= attempt.started > 0
    except OSError:
        attempt.progress = False
    judged(verdict, rules, earlier, attempt, hosts=hosts)
    with open(os.path.join(folder, ATTEMPTS_FILE), "a", encoding="utf-8", opener=private) as f:
        f.write(to_line(attempt))
    return attempt


def judged(
    verdict: Verdict, rules: RetryRules, earlier: Sequence[Attempt], attempt: Attempt, *, hosts: int = 0
) -> Attempt:
    """Completes an attempt that has just ended: its class and cause by the verdict, and the decision on the next one.

    ``attempt`` has its times, the hosts that failed, and any data of the backend; ``hosts``: see :func:`decide`.
    """
    from torchx.schedulers.kit.verdict import phrase

    failure = verdict.cause
    attempt.kind = (failure.kind if failure else "") or "unknown"
    attempt.cause = phrase(failure) if failure and failure.summary() else verdict.sentence
    attempt.digest = digest(failure) if failure else ""
    return decide(rules, [*earlier, attempt], hosts=hosts)


def begins_of(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Where the output of the last attempt begins in the log files that all attempts share.

    Maps a path relative to the job's folder to an offset in bytes. The attempt before recorded it in ``more[BEGINS]``.
    """
    ended = [attempt for attempt in attempts if attempt.again]
    found = ended[-1].more.get(BEGINS) if ended else None
    return {path: at for path, at in found.items() if isinstance(at, int)} if isinstance(found, dict) else {}


def _is_the_same(attempts: Sequence[Attempt]) -> bool:
    """Whether the last two attempts failed by the same exception."""
    return len(attempts) > 1 and bool(attempts[-1].digest) and attempts[-1].digest == attempts[-2].digest


def _counted(attempts: Sequence[Attempt]) -> int:
    """Return the number of retries for the class of the last failure, including the next one."""
    kind, count = attempts[-1].kind, 0
    for attempt in reversed(attempts):
        if attempt.progress and kind != "error":
            return max(count, 1)
        count += attempt.kind == kind
    return count


def _fruitless(attempts: Sequence[Attempt]) -> int:
    """How many of the last attempts made no progress."""
    return next((n for n, attempt in enumerate(reversed(attempts)) if attempt.progress), len(attempts))


def _end_of_chain(rules: RetryRules, attempts: Sequence[Attempt]) -> str:
    """Return why a chain of pieces ends here; empty if it goes on, or the job is none."""
    if not rules.total:
        return ""
    if attempts[-1].used >= rules.total_s:
        return f"the total of {rules.total} is used"
    fruitless = attempts[len(attempts) - _fruitless(attempts) :]
    if sum(one.kind == "timeout" for one in fruitless) >= rules.pieces:
        return f"no progress in {rules.pieces} pieces; after a checkpoint, call `torchx.distributed.progress()`"
    return ""


def _avoided(rules: RetryRules, attempts: Sequence[Attempt], hosts: int) -> list[str]:
    most = min(_MAX_AVOIDED, max(1, hosts // 10)) if hosts else _MAX_AVOIDED
    found: dict[str, None] = {}
    for attempt in reversed(attempts):
        if rules.rule(attempt.kind).avoid and attempts[-1].ended - attempt.ended < _AVOID_S:
            found.update(dict.fromkeys(attempt.hosts))
    return list(found)[:most]
