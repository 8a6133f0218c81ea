"""Faults of pods: the calls that simulate them, and unsupported faults."""

from __future__ import annotations

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.errors import BackendError, NotSupportedError
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, Resource, Role

RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}


@pytest.fixture
def job():
    """A job of one role with two running pods."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    role = Role("a", "img", entrypoint="t", num_replicas=2, resource=Resource(1, 0, 64))
    app_id = scheduler.submit(AppDef("train", [role]), {"kind": "job"})
    cluster.run_pods(cluster.of("jobs")[0], RUNNING)
    return cluster, scheduler, app_id


def test_a_pod_of_an_unknown_role_is_ignored(job) -> None:
    """Somebody else's pod may have the labels of the job."""
    cluster, scheduler, app_id = job
    metadata = cluster.of("pods")[0]["metadata"]
    metadata["labels"] = {**metadata["labels"], "torchx.pytorch.org/role-index": "7"}
    assert _names(cluster)[1] in scheduler.simulate(app_id, "kill", ("a", 1)).says


@pytest.fixture
def calls(monkeypatch):
    """Records calls that change something, without executing them."""
    found = []
    json = KubeApi._json

    def spy(self, method, path, query=None, body=None, **more):
        if method == "GET":
            return json(self, method, path, query, body, **more)
        found.append((method, path, query, body))
        return {}

    monkeypatch.setattr(KubeApi, "_json", spy)
    return found


def _names(cluster):
    return [pod["metadata"]["name"] for pod in cluster.of("pods")]


def test_a_pod_is_evicted(job, calls) -> None:
    """Only that pod, with the API that a drain uses."""
    cluster, scheduler, app_id = job
    plan = scheduler.simulate(app_id, "preempt", ("a", 1))
    assert calls == []
    plan.make()
    ((method, path, _, body),) = calls
    name = _names(cluster)[1]
    assert (method, path.rpartition("/pods/")[2]) == ("POST", f"{name}/eviction")
    assert (body["apiVersion"], body["kind"], body["metadata"]["name"]) == ("policy/v1", "Eviction", name)


def test_a_pod_is_killed(job, calls) -> None:
    """Without a grace period."""
    cluster, scheduler, app_id = job
    scheduler.simulate(app_id, "kill", ("a", 0)).make()
    ((method, path, query, _),) = calls
    assert (method, path.rpartition("/")[2]) == ("DELETE", _names(cluster)[0])
    assert query["gracePeriodSeconds"] == 0


def test_the_limit_of_all_pods_comes(job, calls) -> None:
    """A pod's deadline can be set while it runs."""
    cluster, scheduler, app_id = job
    scheduler.simulate(app_id, "timeout", ("a", 0)).make()
    assert [path.rpartition("/")[2] for _, path, _, _ in calls] == _names(cluster)
    assert {body["spec"]["activeDeadlineSeconds"] for _, _, _, body in calls} == {1}


@pytest.mark.parametrize("fault", ["oom", "node", "hang"])
def test_what_cannot_be_done_is_refused(job, fault: str) -> None:
    """Each with its own reason."""
    _, scheduler, app_id = job
    with pytest.raises(NotSupportedError, match=f"`{fault}` cannot be simulated on `kubernetes`: "):
        scheduler.simulate(app_id, fault, ("a", 0))


def test_a_replica_without_a_pod_does_not_run(job) -> None:
    """It may be waiting for its next pod."""
    _, scheduler, app_id = job
    with pytest.raises(BackendError, match="replica a/7 is not running now"):
        scheduler.simulate(app_id, "kill", ("a", 7))
