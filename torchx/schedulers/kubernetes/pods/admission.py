"""Why Kueue does not run a job now, and how often it took its quota away, from all conditions of its Workload.

https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/#kueue-x-k8s-io-v1beta2-WorkloadStatus
"""

from __future__ import annotations

from collections.abc import Iterable

from torchx.schedulers.kubernetes.names import Object
from torchx.schedulers.kubernetes.pods.facts import unix_time
from torchx.specs.wishes.retries import Attempt
from torchx.util.datetime import duration, local_time

_EVICTED = {
    "Preempted": ("preempted", "it was preempted"),
    "PodsReadyTimeout": ("timeout", "it was evicted because its pods were not ready in time"),
    "AdmissionCheck": ("quota", "an admission check evicted it"),
    "ClusterQueueStopped": ("quota", "its cluster queue was stopped"),
    "LocalQueueStopped": ("quota", "its queue was stopped"),
    "NodeFailures": ("node", "it was evicted because a node failed"),
    "Deactivated": ("quota", "it was deactivated"),
    "InactiveWorkload": ("quota", "it was deactivated"),
}
"""Reason of the condition ``Evicted`` -> class of the cause, and sentence."""
_PREEMPTED = {
    "InClusterQueue": "by a job of higher priority in its cluster queue",
    "InCohortReclamation": "by a queue of its cohort that took its quota back",
    "InCohortFairSharing": "by the fair sharing of its cohort",
    "InCohortReclaimWhileBorrowing": "by a queue of its cohort that borrows quota",
}
"""Reason of the condition ``Preempted`` -> by what rule."""


def why_it_waits(workload: Object, queue: str) -> str:
    """Return why a job of ``queue`` does not run, as a sentence without full stop; empty if Kueue lets it run.

    >>> no = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota for cpu"}
    >>> why_it_waits({"status": {"conditions": [no]}}, "gpu")
    'it waits in the queue `gpu`: insufficient quota for cpu'
    """
    status = workload.get("status") or {}
    conditions = {str(c.get("type")): c for c in status.get("conditions") or ()}
    if _is(conditions, "Finished", "True") or (_is(conditions, "Admitted", "True") and not _evicted(conditions)):
        return ""
    inactive = (workload.get("spec") or {}).get("active") is False
    parts = [_evictions(conditions, status)]
    if _is(conditions, "QuotaReserved", "False"):
        parts.append(_message(conditions["QuotaReserved"]))
    for check in status.get("admissionChecks") or ():
        if check.get("state") != "Ready":
            said = f"the admission check `{check.get('name')}` is {str(check.get('state')).lower()}"
            parts.append(": ".join(filter(None, (said, _message(check)))))
    again = unix_time((status.get("requeueState") or {}).get("requeueAt"))
    if again and _is(conditions, "Requeued", "False"):
        parts.append(f"it is queued again at {local_time(again)}")
    found = list(dict.fromkeys(filter(None, parts)))
    head = f"it is deactivated in the queue `{queue}`" if inactive else f"it waits in the queue `{queue}`"
    return f"{head}: {'; '.join(found)}" if found else head if inactive else ""


def evictions(workloads: Iterable[Object]) -> list[Attempt]:
    """Return the attempts of a job that Kueue has ended, oldest first; of several Workloads, those of one with most."""
    return max(map(_attempts, workloads), key=len, default=[])


def _attempts(workload: Object) -> list[Attempt]:
    status = workload.get("status") or {}
    conditions = {str(c.get("type")): c for c in status.get("conditions") or ()}
    found = [
        Attempt(kind=_EVICTED.get(reason, ("quota", ""))[0], cause=_sentence(reason, conditions))
        for reason, count in _counts(conditions, status).items()
        for _ in range(count)
    ]
    gone = (workload.get("spec") or {}).get("active") is False
    for attempt in found:
        attempt.again, attempt.why = not gone, f"{attempt.kind}: {'deactivated' if gone else 'queued again by Kueue'}"
    if _evicted(conditions):  # the condition has the time of the last one
        reason = str(conditions["Evicted"].get("reason") or "")
        found.sort(key=lambda attempt: attempt.cause == _sentence(reason, conditions))
        found[-1].ended = unix_time(conditions["Evicted"].get("lastTransitionTime"))
        ran = int(status.get("accumulatedPastExecutionTimeSeconds") or 0)
        if len(found) == 1 and found[-1].ended and ran:
            found[-1].started = found[-1].ended - ran
    return found


def _counts(conditions: Object, status: Object) -> dict[str, int]:
    """Return how often the Workload was evicted, by reason; before Kueue 0.12 it counts only some."""
    counts: dict[str, int] = {}
    for one in (status.get("schedulingStats") or {}).get("evictions") or ():
        reason = str(one.get("reason"))
        counts[reason] = counts.get(reason, 0) + int(one.get("count") or 0)
    if _evicted(conditions):
        reason = str(conditions["Evicted"].get("reason") or "")
        counts.setdefault(reason, int((status.get("requeueState") or {}).get("count") or 0) or 1)
    elif not counts and "Preempted" in conditions:  # it is admitted again
        counts["Preempted"] = 1
    return counts


def _evictions(conditions: Object, status: Object) -> str:
    """By what rule, how often, and what was lost."""
    if not _evicted(conditions):
        return ""
    times = sum(_counts(conditions, status).values())
    ran = int(status.get("accumulatedPastExecutionTimeSeconds") or 0)
    more = [f"{times} times" if times > 1 else "", f"it had run for {duration(ran)}" if ran else ""]
    said = ", ".join(filter(None, (_sentence(str(conditions["Evicted"].get("reason") or ""), conditions), *more)))
    return ": ".join(filter(None, (said, _message(conditions["Evicted"]))))


def _sentence(reason: str, conditions: Object) -> str:
    """Why Kueue evicted it, and if it was preempted, by what rule."""
    said = _EVICTED.get(reason, ("", f"it was evicted ({reason})"))[1]
    rule = (conditions.get("Preempted") or {}).get("reason") if reason == "Preempted" else None
    return " ".join(filter(None, (said, _PREEMPTED.get(str(rule), ""))))


def _evicted(conditions: Object) -> bool:
    return _is(conditions, "Evicted", "True")


def _is(conditions: Object, kind: str, status: str) -> bool:
    return kind in conditions and conditions[kind].get("status") == status


def _message(item: Object) -> str:
    return str(item.get("message") or "").strip()
