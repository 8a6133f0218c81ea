"""Workloads of Kueue, made of its published types: what a person learns who asks why the job does not run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from torchx.schedulers.kubernetes.pods.admission import why_it_waits

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
