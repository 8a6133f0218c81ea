"""Maps retry policies by cause to systems that retry natively with a single counter.

Kubernetes (``podFailurePolicy``) and AWS Batch (``evaluateOnExit``) match a failure against a list of rules and count
all retries together. They support a policy if their rules can distinguish the classes that it retries, and all of these
have the same number of retries.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.kit.attempts import policy_of
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.specs.api import AppDef
from torchx.specs.wishes.retries import FREE, Attempt, RetryRule, RetryRules
from torchx.util.notices import logger
from torchx.util.records import dataclass


@dataclass(frozen=True, kw_only=True)
class NativeRetries:
    """The retries to request from the system.

    Attributes:
        times: maximum number of retries, over all classes that the system counts.
        retried: the classes that are retried. Any other failure ends the job.
    """

    times: int
    retried: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class NativeSystem:
    """The native retry support of a system.

    Attributes:
        name: of the backend.
        groups: the classes that its rules can match. It cannot distinguish classes of the same group.
        uncounted: classes whose retries it does not count.
        most: maximum number of retries.
        free: whether ``free`` in a policy is allowed and means ``most`` retries.
    """

    name: str
    groups: Sequence[tuple[str, ...]]
    uncounted: tuple[str, ...] = ()
    most: int
    free: bool = True

    def policy(self, app: AppDef, caps: Capabilities) -> NativeRetries | None:
        """Return the retries for a job's policy; None if the job has none.

        Logs which classes of ``standard`` are dropped.
        """
        rules = policy_of(app, self.name, caps)
        if rules is None:
            return None
        if rules.total:
            raise NotSupportedError(
                f"`{self.name}` restarts jobs by itself, and not after their time limit: it has no `--total`",
                hint="omit `--total`, or use another scheduler",
            )
        kept = self.keep(rules)
        left = [rule.kind for rule in rules.rules if rule.times and rule.kind not in kept.retried]
        if left:
            logger("torchx.schedulers").warning("the retry policy: `%s` does not retry %s", self.name, ", ".join(left))
        return kept

    def keep(self, rules: RetryRules) -> NativeRetries:
        """Return the part of a policy that the system supports.

        Drops rules of ``standard`` that it cannot implement, and rejects those that the user wrote explicitly.

        >>> from torchx.specs.wishes.retries import RetryRules
        >>> system = NativeSystem(name="kubernetes", groups=[("node",), ("oom",), ("error",)], most=20)
        >>> system.keep(RetryRules.parse("standard, error:1")).times
        1
        """
        named = [rule for rule in rules.rules if rule.kind in rules.named and rule.times]
        for rule in named:
            self._check(rule)
        chosen = [rule for group in self.groups if (rule := self._rule_of(group, rules)).times]
        counted = [rule for rule in chosen if rule.kind not in self.uncounted]
        counted.sort(key=lambda rule: (rule.kind not in rules.named, rules.rules.index(rule)))
        if not counted:
            return NativeRetries(times=0, retried=self._all_of(chosen))
        first, *others = counted
        times = self._number(first)
        for rule in others:
            if rule.kind in rules.named:
                self._refuse(f"{first}, {rule}", f"it counts all failures together: write `{first}` or `{rule}`")
        # Of the others, retry only those with at least as many retries: never more than the policy allows.
        fit = [rule for rule in others if self._number(rule) >= times]
        return NativeRetries(times=times, retried=self._all_of([*(r for r in chosen if r not in others), *fit]))

    def _check(self, rule: RetryRule) -> None:
        if not any(rule.kind in group for group in self.groups):
            known = ", ".join(f"`{kind}`" for group in self.groups for kind in group)
            self._refuse(str(rule), f"the classes that work there: {known}")
        if rule.differs:
            self._refuse(str(rule), f"write `{rule.kind}:{rule.times}`: it does not compare failures")
        if rule.kind in self.uncounted and rule.times != FREE:
            self._refuse(str(rule), f"write `{rule.kind}:free`: it does not count these")
        if rule.kind not in self.uncounted and (rule.times > self.most or (rule.times == FREE and not self.free)):
            self._refuse(str(rule), f"write `{rule.kind}:{self.most}`, which is its most")

    def _rule_of(self, group: tuple[str, ...], rules: RetryRules) -> RetryRule:
        """Return the rule for a group of classes: the one that the user wrote, else the one with the most retries."""
        found = [rule for rule in rules.rules if rule.kind in group]
        named = [rule for rule in found if rule.kind in rules.named]
        if len({rule.times for rule in named}) > 1:
            self._refuse(
                ", ".join(map(str, named)), f"the same number for {' and '.join(group)}, which look alike to it"
            )
        return max(named or found, key=self._number, default=RetryRule(group[0]))

    def _number(self, rule: RetryRule) -> int:
        return self.most if rule.times == FREE else min(rule.times, self.most)

    def _all_of(self, chosen: Sequence[RetryRule]) -> frozenset[str]:
        return frozenset(kind for rule in chosen for group in self.groups if rule.kind in group for kind in group)

    def _refuse(self, what: str, hint: str) -> None:
        raise SpecError(f"retry policy: `{self.name}` cannot keep `{what}`", hint=hint)


def attempt_of(replica: ReplicaFacts, left: Evidence | None = None) -> Attempt:
    """Return an attempt made from one failed process and what it left behind: times, host, class and cause, without
    decision.

    >>> from torchx.schedulers.kit.facts import ReplicaFacts
    >>> from torchx.specs.api import AppState
    >>> attempt_of(ReplicaFacts(role="w", replica=0, state=AppState.FAILED, exit_code=3)).cause
    'w/0: exit code 3'
    """
    from torchx.schedulers.kit.verdict import judge

    alone = RoleFacts(name=replica.role, replicas=[replica])
    verdict = judge(JobFacts(app_id="", roles=[alone]), lambda _: [left or Evidence()])
    return Attempt(
        started=replica.started,
        ended=replica.ended,
        kind=(verdict.cause.kind if verdict.cause else "") or "unknown",
        cause=verdict.sentence,
        hosts=[replica.host] if replica.host else [],
    )
