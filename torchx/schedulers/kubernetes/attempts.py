"""Retries by cause on a cluster: a policy as the rules of Jobs, and the attempts that their failed pods show.

The cluster's own Job controller starts pods again, with no terminal open. It sees how a container ended, and whether
the cluster took the pod away: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
"""

from __future__ import annotations

from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.kit.native_retries import NativeSystem, attempt_of
from torchx.schedulers.kubernetes.names import JOB
from torchx.schedulers.kubernetes.pod_answers import read_pod
from torchx.specs.api import AppState, RetryPolicy
from torchx.specs.retries import RETRY, Attempt, RetryRules
from torchx.util.records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torchx.schedulers.kit.caps import Capabilities
    from torchx.schedulers.kit.native_retries import NativeRetries
    from torchx.schedulers.kubernetes.pod_answers import Pod
    from torchx.specs.api import AppDef, Role

    _Object = dict[str, Any]

_KILLED = 137
"""The exit code of a container that ran out of memory."""
_TAKEN = ("preempted", "node")
"""Classes of a pod that the cluster took away: rules cannot tell them apart, and the controller counts none of them."""
SYSTEM = NativeSystem(name="kubernetes", groups=[_TAKEN, ("oom",), ("error",)], uncounted=_TAKEN, most=20)


def policy(app: AppDef, kind: str, caps: Capabilities) -> NativeRetries | None:
    """What a job's policy asks of its Jobs; None when it has none.

    Args:
        kind: what the job is to become.

    Raises:
        SpecError: it cannot be kept.
    """
    retries = SYSTEM.policy(app, caps)
    if retries is not None and kind != JOB:
        raise NotSupportedError(
            f"retries by the cause of a failure are kept by plain Jobs, not by a job of the kind `{kind}`",
            hint="use `-cfg kind=job`, or omit `--retry` and give the component `--max_retries`",
        )
    return retries


def each_by_itself(role: Role) -> bool:
    """Whether each replica of a role has retries of its own."""
    return role.min_replicas is not None or role.retry_policy is RetryPolicy.REPLICA


def render(role: Role, retries: NativeRetries, template: _Object) -> _Object:
    """The fields of a Job that keep the policy.

    Raises:
        SpecError: an overlay makes the nodes start containers again, which such a Job must not have.
    """
    if template["spec"].get("restartPolicy") != "Never":
        raise SpecError(
            f"role `{role.name}`: its overlay sets `restartPolicy`, so that nodes start its containers again whatever"
            " the cause",
            hint="omit it, or omit `--retry`",
        )
    own = each_by_itself(role)
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    end = "FailIndex" if own else "FailJob"
    rules: list[_Object] = [{"action": "Ignore" if _TAKEN[0] in retries.retried else end, "onPodConditions": disrupted}]
    if retries.times:
        for kind, operator in (("oom", "In"), ("error", "NotIn")):
            action = "Count" if kind in retries.retried else end
            rules.append({"action": action, "onExitCodes": {"operator": operator, "values": [_KILLED]}})
    made: _Object = {"backoffLimit": retries.times}
    if own:
        spare = 0 if role.min_replicas is None else max(role.num_replicas - role.min_replicas, 0)
        made = {"backoffLimitPerIndex": retries.times, "maxFailedIndexes": spare}
    return {**made, "podFailurePolicy": {"rules": rules}}


def attempts_of(app: AppDef | None, items: Sequence[_Object], *, over: bool) -> list[Attempt]:
    """The attempts that have ended, oldest first: each failed pod is one. None for a job without a policy.

    Args:
        items: its pods.
        over: the job has ended, so that no pod is made again.
    """
    text = app.metadata.get(RETRY) if app is not None else None
    if app is None or not text:
        return []
    try:
        retries = SYSTEM.keep(RetryRules.parse(text).within((), "kubernetes"))
    except SpecError:  # of another version
        return []
    of: dict[tuple[int, int], list[Pod]] = {}
    for pod in sorted(map(read_pod, items), key=lambda pod: pod.age):
        of.setdefault((pod.role_index, pod.facts.replica), []).append(pod)
    found = []
    for (index, _), pods in of.items():
        role = app.roles[index].name if index < len(app.roles) else ""
        for pod in pods:
            if pod.facts.state is AppState.FAILED and not pod.facts.stopped:
                found.append(_attempt(pod, role, retries, again=pod is not pods[-1] or not over))
    return sorted(found, key=lambda attempt: attempt.ended)


def _attempt(pod: Pod, role: str, retries: NativeRetries, *, again: bool) -> Attempt:
    attempt = attempt_of(replace(pod.facts, role=role), pod.evidence())
    attempt.again, attempt.why = again, f"{attempt.kind}: another pod was made"
    if not again:
        seen = attempt.kind if attempt.kind in _TAKEN else "oom" if pod.facts.signal == "SIGKILL" else "error"
        used = seen in retries.retried and retries.times
        why = f"all {retries.times} retries are used" if used else "the policy does not retry it"
        attempt.why = f"{attempt.kind}: {why}"
    return attempt
