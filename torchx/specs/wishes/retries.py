"""Retry policies by failure class (``torchx run --retry``), stored in ``AppDef.metadata[RETRY]``.

A policy is a comma-separated list of rules, ``class:times`` or ``class:times:action``::

    preempted:free, node:5:avoid, oom:2:mem*1.5, timeout:free:checkpoint, network:3:avoid, unknown:1,
    error:0

``times`` limits how often a job is restarted after a failure of that class; ``free`` sets no limit. Actions change the
next attempt: ``avoid`` excludes the failed hosts, ``mem*1.5`` requests 1.5 times the memory, ``checkpoint`` asks the
ranks for a checkpoint shortly before the time limit, ``differs`` stops at the second same exception in a row.
``standard`` stands for :data:`STANDARD`; a later rule replaces
the standard rule of its class.

``total:5d`` (``torchx run --total 5d``) makes a chain of pieces: attempts that reach their time limit are followed by
others until they have used five days, or, ``total:5d:3``, until three pieces in a row made no progress.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError
from torchx.specs.states import AppState
from torchx.util.records import dataclass, field, replace
from torchx.util.strings import did_you_mean

if TYPE_CHECKING:
    from torchx.specs.status import RoleStatus

RETRY = "torchx/retry"
"""Metadata key of the retry policy."""

STANDARD = "preempted:free, node:5:avoid, oom:2:mem*1.5, timeout:free:checkpoint, network:3:avoid, unknown:1, error:0"
"""The policy ``standard``. A backend drops actions of it that it does not support; it rejects those written out."""

FREE = -1
"""No limit."""

_MAX_TIMES = 1000
_PIECES = 2
CLASSES = ("preempted", "node", "oom", "gpu_oom", "timeout", "network", "image", "quota", "lost", "error", "unknown")
_BEGUN = (AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED)
_ACTION = re.compile(r"mem\*(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class RetryRule:
    """The retry rule for one failure class."""

    kind: str  # one of CLASSES
    times: int = 0  # maximum number of restarts; FREE for no limit
    avoid: bool = False  # whether the next attempt excludes the failed hosts
    memory: float = 1.0  # factor by which the next attempt increases the memory
    checkpoint: bool = False  # whether to ask the ranks for a checkpoint before the attempt ends
    differs: bool = False  # whether the same exception twice in a row ends the job, as it always does with `free`

    def __str__(self) -> str:
        actions = [
            *(["avoid"] if self.avoid else []),
            *([f"mem*{self.memory:g}"] if self.memory != 1 else []),
            *(["checkpoint"] if self.checkpoint else []),
            *(["differs"] if self.differs else []),
        ]
        return ":".join([self.kind, "free" if self.times == FREE else str(self.times), *actions])


@dataclass(frozen=True)
class RetryRules:
    """A retry policy: rules in the order given. Failure classes without a rule are not retried.

    A backend rejects unsupported actions of the classes in ``named``, whose rules are explicit, and drops those of
    ``standard``.
    """

    rules: tuple[RetryRule, ...]
    named: tuple[str, ...] = ()
    total: str = ""  # time of all attempts together, such as `5d`
    pieces: int = _PIECES  # a chain stops after so many pieces without progress

    def rule(self, kind: str) -> RetryRule:
        """Return the rule for a failure class."""
        return next((rule for rule in self.rules if rule.kind == kind), RetryRule(kind))

    def __str__(self) -> str:
        total = [f"total:{self.total}:{self.pieces}"] if self.total else []
        return ", ".join([*map(str, self.rules), *total])

    @property
    def total_s(self) -> float:
        """Seconds of all attempts of a chain together; 0 if the job is none."""
        from torchx.util.spans import parse_span

        return parse_span(self.total) or 0.0

    def within(self, actions: Collection[str], backend: str) -> RetryRules:
        """Restrict the policy to the supported ones of ``avoid``, ``mem`` and ``checkpoint``.

        Raises:
            SpecError: an explicit rule uses another; the message names ``backend``.

        >>> str(RetryRules.parse("standard").within((), "local_cwd").rule("oom"))
        'oom:2'
        """
        kept = []
        for rule in self.rules:
            left = replace(
                rule,
                avoid=rule.avoid and "avoid" in actions,
                memory=rule.memory if "mem" in actions else 1.0,
                checkpoint=rule.checkpoint and "checkpoint" in actions,
            )
            if left != rule and rule.kind in self.named:
                raise SpecError(
                    f"retry policy: `{backend}` cannot keep `{rule}`", hint=f"what works there: `{left}`, or `standard`"
                )
            kept.append(left)
        return replace(self, rules=tuple(kept))

    @classmethod
    @functools.lru_cache(maxsize=16)  # a dry run parses the policy several times
    def parse(cls, text: str) -> RetryRules:
        """Parse a policy; raises SpecError if a rule is invalid.

        >>> rules = RetryRules.parse("standard, error:1")
        >>> rules.rule("error").times, rules.rule("oom").memory, rules.rule("image").times
        (1, 1.5, 0)
        >>> str(RetryRules.parse("node:2:avoid"))
        'node:2:avoid'
        """
        found: dict[str, RetryRule] = {}
        named: list[str] = []
        chain: dict[str, Any] = {}
        words = [word.strip() for word in text.split(",")]
        if words[0] == "standard":
            found = {rule.kind: rule for rule in map(_rule, STANDARD.split(", "))}
            words = words[1:]
        for word in words:
            if word == "standard":
                raise SpecError("retry policy: `standard` is not the first word", hint="write `standard, error:1`")
            if word.startswith("total:"):
                chain = _chain(word)
                continue
            rule = _rule(word)
            if rule.kind in named:
                raise SpecError(f"retry policy: `{rule.kind}` has two rules", hint="keep one of them")
            found[rule.kind] = rule
            named.append(rule.kind)
        if chain and ("timeout" not in found or not found["timeout"].times):
            said = f"retry policy: `total:{chain['total']}` needs a rule for `timeout`"
            raise SpecError(said, hint="add `timeout:free:checkpoint`")
        return cls(tuple(found.values()), named=tuple(named), **chain)


@dataclass
class Attempt:
    """An attempt that has ended. Times are Unix times in seconds."""

    started: float = 0.0
    ended: float = 0.0
    kind: str = "unknown"  # failure class
    cause: str = ""  # description of the failure
    hosts: list[str] = field(default_factory=list)  # the failed hosts
    digest: str = ""  # hash that identifies the exception; empty if none was found
    progress: bool = False  # whether the attempt reported progress, see torchx.distributed.progress
    again: bool = False  # whether the job was restarted afterwards
    why: str = ""  # the reason for restarting, or for not restarting
    avoid: list[str] = field(default_factory=list)  # hosts that the next attempt excludes
    used: float = 0.0  # seconds of all attempts so far, in a chain with a total
    total: float = 0.0  # seconds that they may use together; 0: not a chain
    memory: float = 1.0  # of the next attempt, as a multiple of the original memory
    more: dict[str, Any] = field(default_factory=dict)  # private data of the backend


def to_line(attempt: Attempt) -> str:
    """Return the attempt as one line of JSON, with the line feed."""
    import json

    return json.dumps({"class" if key == "kind" else key: value for key, value in vars(attempt).items()}) + "\n"


def read_attempts(lines: Iterable[str]) -> list[Attempt]:
    """Parse the lines of an attempts file; truncated lines are skipped.

    >>> read_attempts([to_line(Attempt(kind="oom")), '{"class": "er'])[0].kind
    'oom'
    """
    import json

    found = []
    for line in lines:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            attempt = Attempt()
            for key, value in data.items():
                name = "kind" if key == "class" else key
                if isinstance(value, _types(getattr(attempt, name, None))):
                    setattr(attempt, name, value)
            found.append(attempt)
    return found


def seconds_of_attempts(attempts: Sequence[Attempt], roles: Iterable[RoleStatus], until: float) -> list[float]:
    """Return how long each attempt ran: those that have ended, and the one that ran after them, ``until`` this time."""
    found = [max(one.ended - one.started, 0.0) for one in attempts if one.started]
    if attempts and attempts[-1].again:
        at = attempts[-1].ended  # a container that is started again does not show when
        begun = [r.started_at or at for role in roles for r in role.replicas if r.started_at or r.state in _BEGUN]
        if begun := [start for start in begun if start > at - 1]:
            found.append(max(until - min(begun), 0.0))
    return found


def _types(value: object) -> tuple[type, ...]:
    """Return the accepted types of a field by its default value; none for an unknown field."""
    return () if value is None else (int, float) if isinstance(value, float) else (type(value),)


def _chain(word: str) -> dict[str, Any]:
    """Parse ``total:5d`` or ``total:5d:3``."""
    from torchx.util.spans import parse_span

    _, total, *more = word.split(":")
    pieces = more[0] if more else str(_PIECES)
    if not parse_span(total) or total.rstrip().endswith("ago") or len(more) > 1:
        raise SpecError(f"the total `{total}` is not a length of time", hint="for example `--total 5d`, `--total 36h`")
    if not (pieces.isascii() and pieces.isdigit() and 0 < int(pieces) <= _MAX_TIMES):
        raise SpecError(f"`{pieces}` is not a number of pieces", hint="`--total 5d:3` stops after 3 without progress")
    return {"total": total.strip(), "pieces": int(pieces)}


def _rule(word: str) -> RetryRule:
    kind, _, rest = word.partition(":")
    kind = {"preempt": "preempted"}.get(kind, kind)
    if kind == "cancelled":
        raise SpecError("retry policy: `cancelled`: a cancelled job is not restarted", hint="omit it")
    if kind not in CLASSES:
        hint = did_you_mean(kind, (*CLASSES, "standard")) or f"the classes are: {', '.join(CLASSES)}"
        raise SpecError(f"retry policy: `{word}`: there is no class `{kind}`", hint=hint)
    times, *actions = rest.split(":")
    if times != "free" and not (times.isascii() and times.isdigit() and int(times) <= _MAX_TIMES):
        raise SpecError(
            f"retry policy: `{word}` has no valid number of retries",
            hint=f"write `{kind}:free`, or `{kind}:3` (at most {_MAX_TIMES})",
        )
    fields: dict[str, float | bool] = {}
    for action in actions:
        factor = _ACTION.fullmatch(action)
        if action in ("avoid", "checkpoint", "differs"):
            fields[action] = True
        elif factor and 1 < float(factor[1]) <= 10:
            fields["memory"] = float(factor[1])
        else:
            raise SpecError(
                f"retry policy: `{word}`: there is no action `{action}`",
                hint="write `avoid`, `checkpoint`, `differs`, or `mem*1.5` with a factor above 1 and up to 10",
            )
    return RetryRule(kind, FREE if times == "free" else int(times), **fields)  # type: ignore[arg-type]
