"""Sweeps on a real cluster older than 1.29: each task is a job of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.backends.kubernetes.jobs import Jobs
from tests.backends.sweeps import Ground, SweepContract, sweeps_of
from torchx.schedulers.kubernetes import names, sweeps
from torchx.schedulers.kubernetes.client import KubeApi, path_to


@pytest.fixture
def ground(jobs: Jobs) -> Iterator[Ground]:
    cfg = {"namespace": jobs.namespace, "reserved_millicpu": 1000}
    with sweeps_of("tests", "kubernetes", lambda script, n: jobs.role(script, num_replicas=n), cfg) as made:
        yield made


class TestSweepsInPods(SweepContract):
    """The contract."""


def test_tasks_that_are_cancelled_at_the_same_moment(jobs: Jobs) -> None:
    """All of them, by eight processes: the server rejects changes of what another one has changed."""
    meta = {"name": "sweep", "namespace": jobs.namespace}
    container = {"name": "main", "image": jobs.image}
    volume = {"name": "torchx-values", "configMap": {"name": "sweep"}}
    pod = {"spec": {"containers": [container], "volumes": [volume], "restartPolicy": "Never"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**meta, "annotations": {"a": "b"}},
        "spec": {"completions": 40, "parallelism": 0, "template": pod},
    }
    api = KubeApi()
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"values": "", "skipped": ""}})
    item = api.create(job)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: sweeps.cancel_task(api, item, [], k), range(40)))
    kept = api.get(path_to("Job", item))["metadata"]["annotations"][names.ANNOTATION_SKIPPED]
    assert kept == ",".join(map(str, range(40)))
    skipped = api.get(f"/api/v1/namespaces/{jobs.namespace}/configmaps/sweep")["data"]["skipped"]
    assert skipped.split() == [str(k) for k in range(40)]
