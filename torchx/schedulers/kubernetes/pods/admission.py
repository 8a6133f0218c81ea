"""Why Kueue does not run a job now, from all conditions of its Workload: quota, checks, stopped queues, evictions.

https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta1/#kueue-x-k8s-io-v1beta1-WorkloadStatus
"""

from __future__ import annotations

from torchx.schedulers.kubernetes.names import Object
from torchx.schedulers.kubernetes.pods.facts import unix_time
from torchx.util.datetime import duration, local_time

_EVICTED = {
    "Preempted": "it was preempted",
    "PodsReadyTimeout": "it was evicted because its pods were not ready in time",
    "AdmissionCheck": "an admission check evicted it",
    "ClusterQueueStopped": "its cluster queue was stopped",
    "LocalQueueStopped": "its queue was stopped",
    "NodeFailures": "it was evicted because a node failed",
    "Deactivated": "it was deactivated",
    "InactiveWorkload": "it was deactivated",
}
"""Reason of the condition ``Evicted`` -> sentence."""
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


def _evictions(conditions: Object, status: Object) -> str:
    """By what rule, how often, and what was lost."""
    if not _evicted(conditions):
        return ""
    reason = str(conditions["Evicted"].get("reason") or "")
    said = _EVICTED.get(reason, f"it was evicted ({reason})")
    if reason == "Preempted":
        rule = conditions.get("Preempted") or {}
        said = " ".join(filter(None, (said, _PREEMPTED.get(str(rule.get("reason")), ""))))
    counts = (status.get("schedulingStats") or {}).get("evictions") or ()
    times = sum(int(one.get("count") or 0) for one in counts) or int(
        (status.get("requeueState") or {}).get("count") or 0
    )
    ran = int(status.get("accumulatedPastExecutionTimeSeconds") or 0)
    more = [f"{times} times" if times > 1 else "", f"it had run for {duration(ran)}" if ran else ""]
    said = ", ".join(filter(None, (said, *more)))
    return ": ".join(filter(None, (said, _message(conditions["Evicted"]))))


def _evicted(conditions: Object) -> bool:
    return _is(conditions, "Evicted", "True")


def _is(conditions: Object, kind: str, status: str) -> bool:
    return kind in conditions and conditions[kind].get("status") == status


def _message(item: Object) -> str:
    return str(item.get("message") or "").strip()
