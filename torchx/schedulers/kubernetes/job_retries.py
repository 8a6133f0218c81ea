"""Retries by cause with pod failure policies of Jobs, and the attempts that failed pods represent.

The Job controller replaces pods by the exit code of their container, and by whether the cluster disrupted them:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
Policies that such rules cannot express are implemented in :mod:`.our_retries`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchx.errors import BackendError, NotSupportedError, SpecError
from torchx.schedulers.kit.attempts import policy_of, refuse_parts
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.native_retries import NativeRetries, NativeSystem, attempt_of
from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.names import FAILURE_POLICY_SINCE, JOB, PER_INDEX_SINCE, Object
from torchx.schedulers.kubernetes.pods.facts import Pod, by_replica
from torchx.specs.api import AppDef, AppState, RetryPolicy, Role
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import Attempt, RetryRules, read_attempts
from torchx.util.records import replace

_KILLED = 137
"""The exit code of a container that ran out of memory."""
_DISRUPTIONS = ("preempted", "node")
"""Classes of disrupted pods. Rules cannot distinguish them, and the Job controller does not count them as failures."""
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
"""The condition of a disrupted pod."""
SYSTEM = NativeSystem(name="kubernetes", groups=[_DISRUPTIONS, ("oom",), ("error",)], uncounted=_DISRUPTIONS, most=20)
BY_TORCHX = NativeRetries(times=0, retried=frozenset())
"""The cluster retries nothing: torchx creates the next attempt, when a command reads the state of the job."""


def policy(app: AppDef, kind: str, caps: Capabilities, version: tuple[int, int]) -> NativeRetries | None:
    """Return the retries of the Jobs of a job of this kind (a key of :data:`names.OWNERS`) under its policy, if it has
    one.

    SpecError, NotSupportedError or BackendError if the policy is not supported.
    """
    rules = policy_of(app, "kubernetes", caps)
    if rules is None:
        return None
    if kind != JOB:
        raise NotSupportedError(
            f"only plain Jobs support retries by the cause of a failure, not kind `{kind}`",
            hint="use `-cfg kind=job`, or omit `--retry` and give the component `--max_retries`",
        )
    single = any(map(each_by_itself, app.roles))
    since = PER_INDEX_SINCE if single else FAILURE_POLICY_SINCE
    beyond = _beyond(rules)
    if version < since and single and not beyond:
        raise BackendError(
            f"Kubernetes {version[0]}.{version[1]} cannot retry replicas one by one by the cause of a failure; this"
            f" needs {since[0]}.{since[1]}",
            hint="omit `--retry`, and give the component `--max_retries`",
        )
    if version >= since and not beyond:
        return SYSTEM.policy(app, caps)
    refuse_parts(app, "torchx")
    return BY_TORCHX


def _beyond(rules: RetryRules) -> bool:
    """Whether the policy needs more than the cluster itself supports."""
    if rules.total or any(rule.avoid or rule.memory != 1 for rule in rules.rules if rule.kind in rules.named):
        return True
    try:
        SYSTEM.keep(rules)
    except SpecError:
        return True
    return False


def each_by_itself(role: Role) -> bool:
    """Whether each replica of a role is retried separately."""
    return role.min_replicas is not None or role.retry_policy is RetryPolicy.REPLICA


def spare_of(role: Role) -> int:
    """How many replicas of a role may fail."""
    return 0 if role.min_replicas is None else max(role.num_replicas - role.min_replicas, 0)


def render(role: Role, retries: NativeRetries, template: Object) -> Object:
    """Return the fields of a Job that implement the policy; with :data:`BY_TORCHX`, only its number of tolerated
    failures.

    SpecError if an overlay sets ``restartPolicy``, which such a Job does not allow.
    """
    if template["spec"].get("restartPolicy") != "Never":
        raise SpecError(
            f"role `{role.name}`: its overlay sets `restartPolicy`, so that nodes start its containers again whatever"
            " the cause",
            hint="omit it, or omit `--retry`",
        )
    if retries is BY_TORCHX:
        return {"backoffLimit": spare_of(role)}
    own = each_by_itself(role)
    end = "FailIndex" if own else "FailJob"
    ignored = _DISRUPTIONS[0] in retries.retried
    rules: list[Object] = [{"action": "Ignore" if ignored else end, "onPodConditions": DISRUPTED}]
    if retries.times:
        for kind, operator in (("oom", "In"), ("error", "NotIn")):
            action = "Count" if kind in retries.retried else end
            rules.append({"action": action, "onExitCodes": {"operator": operator, "values": [_KILLED]}})
    limits: Object = {"backoffLimit": retries.times}
    if own:
        limits = {"backoffLimitPerIndex": retries.times, "maxFailedIndexes": spare_of(role)}
    return {**limits, "podFailurePolicy": {"rules": rules}}


def recorded(owners: Iterable[Object]) -> list[Attempt]:
    """Return the attempts recorded in an annotation of the Jobs of the following attempt."""
    notes = (names.annotations_of(item).get(names.ANNOTATION_ATTEMPTS) for item in owners)
    return next((read_attempts(text.splitlines()) for text in notes if text), [])


def attempts_of(app: AppDef | None, items: Sequence[Object], *, over: bool) -> list[Attempt]:
    """Return the attempts that have ended, oldest first: each failed pod is one. Empty for a job without a policy.

    After the last pod of a replica, another one follows unless the job is ``over``.
    """
    try:
        rules = Wishes.of(app).retry
        if app is None or rules is None:
            return []
        retries = SYSTEM.keep(rules.within((), "kubernetes"))
    except SpecError:  # written by another version of torchx
        return []
    found = []
    for pods in by_replica(items):
        index = pods[0].role_index
        role = app.roles[index].name if index < len(app.roles) else ""
        for pod in pods:
            if pod.facts.state is AppState.FAILED and not pod.facts.stopped:
                found.append(_attempt(pod, role, retries, again=pod is not pods[-1] or not over))
    return sorted(found, key=lambda attempt: attempt.ended)


def _attempt(pod: Pod, role: str, retries: NativeRetries, *, again: bool) -> Attempt:
    attempt = attempt_of(replace(pod.facts, role=role), pod.evidence())
    attempt.again, attempt.why = again, f"{attempt.kind}: the pod was replaced"
    if not again:
        seen = attempt.kind if attempt.kind in _DISRUPTIONS else "oom" if pod.facts.signal == "SIGKILL" else "error"
        used = seen in retries.retried and retries.times
        why = f"all {retries.times} retries are used" if used else "the policy does not retry it"
        attempt.why = f"{attempt.kind}: {why}"
    return attempt
