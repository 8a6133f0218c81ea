"""Workloads of Kueue, made of its published types: what a person learns who asks why the job does not run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.schedulers.kubernetes.pods.admission import evictions, why_it_waits
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role

WAITS = "it waits in the queue `q`"


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


NO_QUOTA = condition("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu in flavor f")
EVICTED = condition("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: 1)")
PREEMPTED = condition("Preempted", "True", "InClusterQueue", "Preempted to accommodate a workload (UID: 1)")
ADMITTED = [condition("QuotaReserved"), condition("Admitted")]


@pytest.mark.parametrize(
    ("status", "spec", "said"),
    [
        ({}, {}, ""),
        ({"conditions": ADMITTED}, {}, ""),
        ({"conditions": [*ADMITTED, condition("PodsReady", "False")]}, {}, ""),
        ({"conditions": [*ADMITTED, condition("Finished")]}, {}, ""),
        ({"conditions": [*ADMITTED, condition("Evicted", "False", "Preempted")]}, {}, ""),
        ({"conditions": [NO_QUOTA]}, {}, f"{WAITS}: {NO_QUOTA['message']}"),
        (
            {"conditions": [NO_QUOTA, EVICTED, PREEMPTED]},
            {},
            f"{WAITS}: it was preempted by a job of higher priority in its cluster queue: {EVICTED['message']}; {NO_QUOTA['message']}",
        ),
        (
            {
                "conditions": [EVICTED, {**PREEMPTED, "reason": "InCohortReclamation"}],
                "schedulingStats": {"evictions": [{"reason": "Preempted", "count": 2}, {"reason": "x", "count": 1}]},
                "accumulatedPastExecutionTimeSeconds": 3720,
            },
            {},
            f"{WAITS}: it was preempted by a queue of its cohort that took its quota back, 3 times, it had run for 1 h 2 min: {EVICTED['message']}",
        ),
        ({"conditions": [condition("Evicted", "True", "LocalQueueStopped")]}, {}, f"{WAITS}: its queue was stopped"),
        ({"conditions": [condition("Evicted", "True", "New", "m")]}, {}, f"{WAITS}: it was evicted (New): m"),
        (
            {"conditions": [condition("QuotaReserved")], "admissionChecks": [{"name": "prov", "state": "Pending", "message": "no node yet"}, {"name": "ok", "state": "Ready"}]},
            {},
            f"{WAITS}: the admission check `prov` is pending: no node yet",
        ),
        (
            {"conditions": [condition("Evicted", "True", "PodsReadyTimeout"), condition("Requeued", "False")], "requeueState": {"count": 3, "requeueAt": "2026-01-01T00:00:00Z"}},
            {},
            f"{WAITS}: it was evicted because its pods were not ready in time, 3 times; it is queued again at 2026-01-01 00:00:00",
        ),
        (
            {"conditions": [condition("Evicted", "True", "Deactivated", "exceeded the maximum number of re-queuing retries")]},
            {"active": False},
            "it is deactivated in the queue `q`: it was deactivated: exceeded the maximum number of re-queuing retries",
        ),
        ({}, {"active": False}, "it is deactivated in the queue `q`"),
    ],
)  # fmt: skip
def test_why_a_job_does_not_run(
    status: dict[str, Any], spec: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what rule it was evicted, how often, what was lost, and what it waits for; nothing of one that runs."""
    monkeypatch.setattr("torchx.util.datetime.time.localtime", time.gmtime)
    assert why_it_waits({"spec": spec, "status": status}, "q") == said


AT = {"lastTransitionTime": "1970-01-01T01:00:00Z"}
BY_RANK = "it was preempted by a job of higher priority in its cluster queue"


def stats(**counts: int) -> dict[str, Any]:
    return {"schedulingStats": {"evictions": [{"reason": reason, "count": n} for reason, n in counts.items()]}}


@pytest.mark.parametrize(
    ("status", "active", "attempts"),
    [
        ({}, True, []),
        ({"conditions": [NO_QUOTA]}, True, []),
        ({"conditions": [{**EVICTED, **AT}, PREEMPTED]}, True, [("preempted", BY_RANK, 0, 3600, True)]),
        (
            {"conditions": [{**EVICTED, **AT}], "accumulatedPastExecutionTimeSeconds": 600},
            True,
            [("preempted", "it was preempted", 3000, 3600, True)],
        ),
        (
            {"conditions": [{**EVICTED, **AT}, PREEMPTED], **stats(Preempted=2, PodsReadyTimeout=1)},
            True,
            [
                ("timeout", "it was evicted because its pods were not ready in time", 0, 0, True),
                ("preempted", BY_RANK, 0, 0, True),
                ("preempted", BY_RANK, 0, 3600, True),
            ],
        ),
        # admitted again: the conditions are False, and only newer releases count
        ({"conditions": [*ADMITTED, {**EVICTED, "status": "False"}, {**PREEMPTED, "status": "False"}]}, True, [("preempted", BY_RANK, 0, 0, True)]),
        ({"conditions": ADMITTED, **stats(Preempted=1, Deactivated=0)}, True, [("preempted", "it was preempted", 0, 0, True)]),
        ({"conditions": [condition("Evicted", reason="NodeFailures")]}, True, [("node", "it was evicted because a node failed", 0, 0, True)]),
        ({"conditions": [condition("Evicted", reason="New")]}, True, [("quota", "it was evicted (New)", 0, 0, True)]),
        ({"conditions": [condition("Evicted", reason="Deactivated")]}, False, [("quota", "it was deactivated", 0, 0, False)]),
    ],
)  # fmt: skip
def test_each_eviction_is_an_attempt(status: dict[str, Any], active: bool, attempts: list[Any]) -> None:
    """By its class; the time of the last one is known."""
    found = evictions([{"spec": {"active": active}, "status": status}, {}])
    assert [(a.kind, a.cause, a.started, a.ended, a.again) for a in found] == attempts


def test_a_preempted_job_in_status_and_list() -> None:
    """Both say PENDING, and once it is admitted again, that its pods are gone, not that it never had any."""
    cluster: Any = Cluster(groups=["kueue.x-k8s.io/v1beta1"])
    scheduler = create_scheduler("me", client=cluster)
    app = AppDef("job", [Role("w", "img", entrypoint="true", resource=Resource(1, 0, 64))])
    app_id = scheduler.submit(app, {"kind": "job", "local_queue": "q"})
    (job,) = cluster.of("jobs")
    work: dict[str, Any] = {"metadata": {"name": "w", "labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}}}
    cluster.objects["apis/kueue.x-k8s.io/v1beta1/workloads", "default", "w"] = work

    def look() -> tuple[AppState, str, list[str], AppState]:
        found = scheduler.describe(app_id)
        assert found is not None
        return found.state, found.msg, [attempt.kind for attempt in found.attempts], scheduler.list()[0].state

    work["status"] = {"conditions": [NO_QUOTA, EVICTED, PREEMPTED]}
    state, msg, kinds, listed = look()
    assert (state, kinds, listed) == (AppState.PENDING, ["preempted"], AppState.PENDING)
    assert msg.startswith(f"it waits in the queue `q`: {BY_RANK}")
    work["status"] = {"conditions": [*ADMITTED, {**PREEMPTED, "status": "False"}]}
    job["spec"]["suspend"] = False
    assert look() == (
        AppState.PENDING,
        "its pods are gone, and are not created again yet",
        ["preempted"],
        AppState.PENDING,
    )
