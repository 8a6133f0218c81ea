"""Chains of pieces: no piece begins before the last one has ended, and progress is seen in the output."""

from __future__ import annotations

import time

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from tests.schedulers.kubernetes.test_answers import RUNNING, condition
from torchx.schedulers.kubernetes import chains
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT

ENDED = {"name": "main", "state": {"terminated": {"exitCode": 143, "finishedAt": "2026-01-01T01:00:00Z"}}}
OVER = {
    "phase": "Failed",
    "reason": "DeadlineExceeded",
    "startTime": "2026-01-01T00:00:00Z",
    "containerStatuses": [ENDED],
}
STOPS = {**OVER, "containerStatuses": RUNNING["containerStatuses"]}


class Chain:
    """A chain of one pod, of pieces of an hour."""

    def __init__(self, policy="standard, total:4h", version=(1, 37)):
        self.cluster = Cluster(version=version)
        self.scheduler = create_scheduler("me", client=self.cluster)
        role = Role("main", "img", entrypoint="t", resource=Resource(1, 0, 100))
        app = AppDef("long", [role], metadata={RETRY: policy, TIMEOUT: "1h"})
        self.app_id = self.scheduler.submit(app, {})
        self.name = self.app_id.partition(":")[2]

    def jobs(self):
        return self.cluster.of("jobs")

    def ends(self, status=OVER, *, at="2026-01-01T01:00:01Z", log=b""):
        """The newest piece reaches its deadline. Returns what is said then."""
        job = self.jobs()[-1]
        for key, pod in list(self.cluster.objects.items()):
            if "pods" in key[0] and pod["metadata"]["labels"] == job["spec"]["template"]["metadata"]["labels"]:
                del self.cluster.objects[key]
        self.cluster.run_pods(job, status)
        self.cluster.logs = {(f"{job['metadata']['name']}-0-abcde", ""): log}
        job["status"] = {"conditions": [condition("Failed", reason="BackoffLimitExceeded", lastTransitionTime=at)]}
        return self.scheduler.describe(self.app_id)


@pytest.mark.parametrize("version", [(1, 20), (1, 37)])
def test_a_hook_asks_for_a_checkpoint(version):
    """It leaves half of the grace period to SIGTERM; the cluster itself replaces nothing."""
    (job,) = Chain(version=version).jobs()
    spec = job["spec"]["template"]["spec"]
    (main,) = spec["containers"]
    assert (spec["activeDeadlineSeconds"], job["spec"]["backoffLimit"]) == (3600, 0)
    (_, _, script) = main["lifecycle"]["preStop"]["exec"]["command"]
    assert ' 13 14; do [ "$TORCHX_PROGRESS" -nt "$TORCHX_CHECKPOINT_NOW" ]' in script
    assert {"TORCHX_PROGRESS", "TORCHX_CHECKPOINT_NOW"} <= {one["name"] for one in main["env"]}


def test_the_next_piece_waits_for_the_containers_of_the_last_one():
    """Before 1.27 a pod is Failed while its containers still end: its grace period must be over."""
    chain = Chain()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found = chain.ends(STOPS, at=now)
    assert (found.state, len(chain.jobs())) == (AppState.PENDING, 1)
    assert found.msg == f"the next piece waits for the end of 1 pods of the last one: `{chain.name}-main-0-abcde`"
    found = chain.ends({**STOPS, "phase": "Running"}, at="2026-01-01T01:00:01Z")
    assert (found.state, len(chain.jobs())) == (AppState.PENDING, 1)
    found = chain.ends(STOPS, at="2026-01-01T01:00:01Z")
    assert (found.state, len(chain.jobs())) == (AppState.PENDING, 2)
    assert [(a.kind, a.again, a.used, a.total) for a in found.attempts] == [("timeout", True, 3601, 14400)]


@pytest.mark.parametrize(
    ("logs", "pieces", "why"),
    [
        ([b""] * 4, 4, "timeout: the total of 4h is used"),
        (
            [b"::torchx progress step=7\n", b"::torchx progress step=7\n", b"::torchx progress step=5\n"],
            3,
            "no progress in 2 pieces",
        ),
        ([b"::torchx progress step=%d\n" % n for n in (7, 8, 9, 10)], 4, "the total of 4h is used"),
    ],
    ids=["prints no steps", "stands still", "goes on"],
)
def test_a_chain_ends(logs, pieces, why):
    """After its total, or without progress where the output shows any."""
    chain = Chain()
    for log in logs:
        found = chain.ends(log=log)
    assert (found.state, len(found.attempts), len(chain.jobs())) == (AppState.FAILED, pieces, pieces)
    assert why in found.attempts[-1].why
    assert [a.more.get(chains.STEP) for a in found.attempts] == [
        int(log.rpartition(b"=")[2]) if log else None for log in logs
    ]
