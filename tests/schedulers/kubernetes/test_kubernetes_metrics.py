"""Resource usage of pods: from the metrics API, else from the kubelets, else an error with a hint."""

from __future__ import annotations

import re

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response, refusal
from torchx.errors import BackendError, NotSupportedError
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, Resource, Role

RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
API = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods"
MISSING = refusal(404, "NotFound", "the server could not find the requested resource")


@pytest.fixture
def job():
    """A job of one role with two running pods."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    role = Role("a", "img", entrypoint="t", num_replicas=2, resource=Resource(2, 0, 64))
    app_id = scheduler.submit(AppDef("train", [role]), {"kind": "job"})
    cluster.run_pods(cluster.of("jobs")[0], RUNNING)
    return cluster, scheduler, app_id


def _names(cluster):
    return [pod["metadata"]["name"] for pod in cluster.of("pods")]


def _answer(cluster, answers):
    """Answers calls by the end of their path; other calls go to the cluster."""
    cluster.away = lambda _, path: next((a for end, a in answers.items() if re.search(end, path)), None)


def test_the_metrics_api(job) -> None:
    """One list call gets all pods of the job. Sidecars count for the usage, but not for the limits."""
    cluster, scheduler, app_id = job
    usage = [{"usage": {"cpu": "1500m", "memory": "2Mi"}}, {"usage": {"cpu": "250000000n", "memory": "1024Ki"}}]
    item = {"metadata": {"name": _names(cluster)[1]}, "timestamp": "1970-01-01T00:01:00Z", "containers": usage}
    _answer(cluster, {"metrics.k8s.io": Response(200, {"items": [item]})})
    first, second = scheduler.metrics(app_id)
    ((_, path, query),) = [call for call in cluster.calls if "metrics.k8s.io" in call[1]]
    assert (path, app_id.rpartition(":")[2] in query["labelSelector"]) == (API, True)
    assert (first.samples, first.memory_limit) == ([], second.memory_limit)
    (sample,) = second.samples
    assert (second.replica, sample.at, sample.cpu, sample.memory) == (1, 60.0, 1.75, 3 << 20)
    assert 0 < second.memory_limit <= 64 << 20


def test_the_kubelets(job) -> None:
    """Without the API each node is queried once; pods of other namespaces are ignored."""
    cluster, scheduler, app_id = job
    ours = {"podRef": {"name": _names(cluster)[0], "namespace": "default"}}
    used = {"cpu": {"usageNanoCores": 500_000_000}, "memory": {"workingSetBytes": 4096, "time": "1970-01-01T00:01:00Z"}}
    theirs = {"podRef": {**ours["podRef"], "namespace": "other"}, "memory": {"workingSetBytes": 1}}
    young = {"podRef": {"name": _names(cluster)[1], "namespace": "default"}, "memory": {}}
    _answer(
        cluster,
        {
            "metrics.k8s.io": MISSING,
            "nodes/n0/proxy": Response(200, {"pods": [{**ours, **used}, theirs]}),
            "nodes/n1/proxy": Response(200, {"pods": [young]}),
        },
    )
    first, second = scheduler.metrics(app_id)
    assert [(s.at, s.cpu, s.memory) for s in first.samples] == [(60.0, 0.5, 4096)]
    assert second.samples == []


def test_neither_may_be_asked(job) -> None:
    """The hint names both; an error of the server is raised instead."""
    cluster, scheduler, app_id = job
    _answer(cluster, {"metrics.k8s.io": MISSING, "proxy": refusal(403, "Forbidden", "nodes/proxy is forbidden")})
    with pytest.raises(NotSupportedError) as caught:
        scheduler.metrics(app_id)
    assert "metrics-server" in caught.value.hint
    _answer(cluster, {"metrics.k8s.io": refusal(400, "BadRequest", "no")})
    with pytest.raises(BackendError) as other:
        scheduler.metrics(app_id)
    assert not isinstance(other.value, NotSupportedError)


def test_a_job_without_pods(job) -> None:
    """No metrics are queried; an unknown job is None."""
    cluster, scheduler, app_id = job
    for pod in cluster.of("pods"):
        pod["status"] = {"phase": "Succeeded"}
    assert scheduler.metrics(app_id) == []
    assert not any("metrics" in path for _, path, _ in cluster.calls)
    assert scheduler.metrics("default:nobody") is None
