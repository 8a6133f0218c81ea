"""Chains of pieces (``torchx run --total``): each piece is an attempt of a Batch job, at most ten.

Batch does not retry an attempt that reaches the time limit of its job, so ``piece.sh`` ends the program, with an exit
code that the retry strategy names. Batch starts an attempt after the one before has ended; it cannot see progress.
https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html
"""

from __future__ import annotations

from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.kit.shell import read_script
from torchx.specs.api import AppDef
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import RetryRules
from torchx.util.datetime import duration
from torchx.util.records import dataclass

_Object = dict[str, Any]

EXIT_CODE = 85
MOST = 10
BACKSTOP_S = 180
"""Batch's own limit, after that of a piece: for a program that does not end, and the start of its container."""

# The first match wins.
RULES: list[_Object] = [
    {"onExitCode": str(EXIT_CODE), "action": "RETRY"},
    {"onStatusReason": "Host EC2*", "action": "RETRY"},
    {"onStatusReason": "Your Spot Task was interrupted*", "action": "RETRY"},
    {"onReason": "*", "action": "EXIT"},
]
_KINDS = ("timeout", "node", "preempted", "lost")


@dataclass(frozen=True)
class Chain:
    """The lengths of a piece and of all together, in seconds, and the number of pieces."""

    piece_s: int
    total_s: int

    @property
    def pieces(self) -> int:
        return -(-self.total_s // self.piece_s)

    @staticmethod
    def of(app: AppDef) -> Chain | None:
        """Return the chain of a job; None if it is none. Raises SpecError if Batch cannot run it."""
        wishes = Wishes.of(app)
        if wishes.retry is None or not wishes.retry.total:
            return None
        chain = Chain(wishes.timeout_s, int(wishes.retry.total_s))
        if chain.pieces > MOST:
            raise SpecError(
                f"`--total {wishes.retry.total}` in pieces of {duration(chain.piece_s)} is {chain.pieces} attempts,"
                f" and a Batch job has at most {MOST}",
                hint=f"the largest total is {duration(MOST * chain.piece_s)}; or use longer pieces",
            )
        _refuse_others(wishes.retry)
        return chain

    def strategy(self) -> _Object:
        """Return the retry strategy, in which the loss of a host counts as a piece."""
        return {"attempts": self.pieces, "evaluateOnExit": [dict(rule) for rule in RULES]}

    def wrap(self, words: list[str]) -> list[str]:
        """Return the command of a container; :func:`unwrap` is the inverse."""
        return [*_head(), str(self.piece_s), str(self.total_s), *words]


def unwrap(words: list[str]) -> tuple[list[str], Chain | None]:
    """Return the words of a program, and the chain that it is a piece of.

    >>> unwrap(Chain(60, 600).wrap(["echo", "hi"]))
    (['echo', 'hi'], Chain(piece_s=60, total_s=600))
    """
    head = _head()
    first, end = len(head), len(head) + 2
    if words[:first] != head or not all(word.isdigit() for word in words[first:end]) or len(words) < end:
        return words, None
    return words[end:], Chain(*map(int, words[first:end]))


def _head() -> list[str]:
    return ["/bin/sh", "-c", read_script(__file__, "piece.sh"), "torchx"]


def _refuse_others(rules: RetryRules) -> None:
    for rule in rules.rules:
        if rule.kind in rules.named and rule.times and (rule.kind not in _KINDS or rule.times > 0 or rule.avoid):
            raise SpecError(
                f"retry policy: `aws_batch` cannot keep `{rule}` in a chain: it counts all attempts together",
                hint="omit the rule: after a piece, and after the loss of a host, the chain goes on",
            )
