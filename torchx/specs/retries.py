"""What is done when a job fails, by the cause of its failure: the words of ``torchx run --retry``.

A policy is a list of rules, ``class:times`` or ``class:times:action``, separated by commas::

    preempted:free, node:5:avoid, oom:2:mem*1.5, timeout:free:checkpoint, network:3:avoid, error:0

``times`` is how often a job that failed for this cause is started again; ``free`` sets no limit. Actions change the
next attempt: ``avoid`` keeps it away from the hosts that failed, ``mem*1.5`` asks for one and a half times the memory,
``checkpoint`` asks the ranks for a checkpoint shortly before the time limit. ``standard`` stands for :data:`STANDARD`,
and a rule behind it replaces the one that it has for the class.

A job carries its policy in ``AppDef.metadata[RETRY]``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from typing import Any

from torchx.errors import SpecError
from torchx.util.records import dataclass, field
from torchx.util.strings import did_you_mean

__all__ = ["FREE", "RETRY", "STANDARD", "Attempt", "RetryRule", "RetryRules", "read_attempts", "to_line"]

RETRY = "torchx/retry"
"""The key of ``AppDef.metadata`` that holds a job's policy."""

STANDARD = "preempted:free, node:5:avoid, oom:2:mem*1.5, timeout:free:checkpoint, network:3:avoid, error:0"
"""What ``standard`` means. A backend keeps as much of it as it can; what is asked for by name it keeps, or refuses."""

FREE = -1
"""No limit."""

_MOST = 1000
_CLASSES = ("preempted", "node", "oom", "gpu_oom", "timeout", "network", "image", "quota", "lost", "error", "unknown")
_ACTION = re.compile(r"mem\*(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class RetryRule:
    """What is done about one class of failures.

    Attributes:
        kind: the class, a word of ``torchx.schedulers.failures.classes.CLASSES``.
        times: how often the job is started again; :data:`FREE`: as often as it takes.
        avoid: the next attempt keeps away from the hosts that failed.
        memory: the next attempt gets so many times the memory.
        checkpoint: the ranks are asked for a checkpoint before the job ends.
    """

    kind: str
    times: int = 0
    avoid: bool = False
    memory: float = 1.0
    checkpoint: bool = False

    def __str__(self) -> str:
        actions = [
            *(["avoid"] if self.avoid else []),
            *([f"mem*{self.memory:g}"] if self.memory != 1 else []),
            *(["checkpoint"] if self.checkpoint else []),
        ]
        return ":".join([self.kind, "free" if self.times == FREE else str(self.times), *actions])


@dataclass(frozen=True)
class RetryRules:
    """A policy: one rule for each class that is named, ``0`` times for the others.

    Attributes:
        rules: in the order in which they were written.
        named: the classes whose rules were written out. What a backend cannot do of these it refuses; of the rules of
            ``standard`` it leaves that out.
    """

    rules: tuple[RetryRule, ...]
    named: tuple[str, ...] = ()

    def rule(self, kind: str) -> RetryRule:
        """The rule for a class of failures."""
        return next((rule for rule in self.rules if rule.kind == kind), RetryRule(kind))

    def __str__(self) -> str:
        return ", ".join(map(str, self.rules))

    def within(self, actions: Collection[str], backend: str) -> RetryRules:
        """What a backend can keep of the policy.

        Args:
            actions: those that it has, of ``avoid``, ``mem`` and ``checkpoint``.
            backend: its name.

        Raises:
            SpecError: a rule that was written out asks for an action that it does not have.

        >>> str(RetryRules.parse("standard").within((), "local_cwd").rule("oom"))
        'oom:2'
        """
        kept = []
        for rule in self.rules:
            left = RetryRule(
                rule.kind,
                rule.times,
                avoid=rule.avoid and "avoid" in actions,
                memory=rule.memory if "mem" in actions else 1.0,
                checkpoint=rule.checkpoint and "checkpoint" in actions,
            )
            if left != rule and rule.kind in self.named:
                raise SpecError(
                    f"retry policy: `{backend}` cannot keep `{rule}`", hint=f"what works there: `{left}`, or `standard`"
                )
            kept.append(left)
        return RetryRules(tuple(kept), named=self.named)

    @classmethod
    @functools.lru_cache(maxsize=16)  # a dry run asks for the policy several times
    def parse(cls, text: str) -> RetryRules:
        """Reads a policy.

        Raises:
            SpecError: which rule is wrong, and why.

        >>> rules = RetryRules.parse("standard, error:1")
        >>> rules.rule("error").times, rules.rule("oom").memory, rules.rule("image").times
        (1, 1.5, 0)
        >>> str(RetryRules.parse("node:2:avoid"))
        'node:2:avoid'
        """
        found: dict[str, RetryRule] = {}
        named: list[str] = []
        words = [word.strip() for word in text.split(",")]
        if words[0] == "standard":
            found = {rule.kind: rule for rule in map(_rule, STANDARD.split(", "))}
            words = words[1:]
        for word in words:
            if word == "standard":
                raise SpecError("retry policy: `standard` is not the first word", hint="write `standard, error:1`")
            rule = _rule(word)
            if rule.kind in named:
                raise SpecError(f"retry policy: `{rule.kind}` has two rules", hint="keep one of them")
            found[rule.kind] = rule
            named.append(rule.kind)
        return cls(tuple(found.values()), named=tuple(named))


@dataclass
class Attempt:
    """One attempt that has ended.

    Attributes:
        started, ended: Unix times, seconds.
        kind: class of its failure.
        cause: the sentence.
        hosts: that failed.
        digest: the same for the same exception; empty when none was found.
        progress: something was achieved: see :func:`torchx.distributed.progress`.
        again: the job was started again after it.
        why: why, or why not.
        avoid: hosts that the next attempt keeps away from.
        memory: how many times its memory at first the next attempt gets.
        more: what a backend writes down for itself.
    """

    started: float = 0.0
    ended: float = 0.0
    kind: str = "unknown"
    cause: str = ""
    hosts: list[str] = field(default_factory=list)
    digest: str = ""
    progress: bool = False
    again: bool = False
    why: str = ""
    avoid: list[str] = field(default_factory=list)
    memory: float = 1.0
    more: dict[str, Any] = field(default_factory=dict)


def to_line(attempt: Attempt) -> str:
    """The attempt as one line of the file, its end included."""
    import json

    return json.dumps({"class" if key == "kind" else key: value for key, value in vars(attempt).items()}) + "\n"


def read_attempts(lines: Iterable[str]) -> list[Attempt]:
    """The attempts in a file; a line that was cut off is left out.

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


def _types(value: object) -> tuple[type, ...]:
    """The types of what a field may hold, by what it holds at first; none for one that is not known."""
    return () if value is None else (int, float) if isinstance(value, float) else (type(value),)


def _rule(word: str) -> RetryRule:
    kind, _, rest = word.partition(":")
    kind = {"preempt": "preempted"}.get(kind, kind)
    if kind == "cancelled":
        raise SpecError("retry policy: `cancelled`: a job that somebody cancelled is not started again", hint="omit it")
    if kind not in _CLASSES:
        hint = did_you_mean(kind, (*_CLASSES, "standard")) or f"the classes are: {', '.join(_CLASSES)}"
        raise SpecError(f"retry policy: `{word}`: there is no class `{kind}`", hint=hint)
    times, *actions = rest.split(":")
    if times != "free" and not (times.isascii() and times.isdigit() and int(times) <= _MOST):
        raise SpecError(
            f"retry policy: `{word}` does not say how often",
            hint=f"write `{kind}:free`, or `{kind}:3` (at most {_MOST})",
        )
    fields: dict[str, float | bool] = {}
    for action in actions:
        factor = _ACTION.fullmatch(action)
        if action in ("avoid", "checkpoint"):
            fields[action] = True
        elif factor and 1 < float(factor[1]) <= 10:
            fields["memory"] = float(factor[1])
        else:
            raise SpecError(
                f"retry policy: `{word}`: there is no action `{action}`",
                hint="write `avoid`, `checkpoint`, or `mem*1.5` with a factor above 1 and up to 10",
            )
    return RetryRule(kind, FREE if times == "free" else int(times), **fields)  # type: ignore[arg-type]
