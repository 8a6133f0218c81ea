"""Sweeps on a real cluster older than 1.29: each task is a job of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.jobs import Gate, Jobs
from tests.backends.sweeps import Ground, SweepContract, sweeps_of
from torchx.schedulers.kit.tasks import as_replicas
from torchx.schedulers.kubernetes import names, sweeps
from torchx.schedulers.kubernetes.client import KubeApi, path_to
from torchx.schedulers.kubernetes.packed import unpacked
from torchx.schedulers.kubernetes.pods.facts import read_pods
from torchx.specs import AppDef
from torchx.specs.tasks import TaskList


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


def test_tasks_that_share_a_pod(jobs: Jobs, gate: Gate, eventually: Callable[..., object]) -> None:
    """Each has its own log, end and cause, and is entered and cancelled by itself. The pods are made as a later cluster
    makes them from the Job, which this one keeps as far as it knows its fields."""
    script = (
        f"echo {{k}} $TORCHX_TASK; case {{k}} in v1) echo no data; exit 4 ;; v3) {gate.wait('go')} ;; "
        "v4) sleep 1000 ;; esac"
    )
    scheduler: Any = jobs.scheduler
    app = AppDef("sweep", [jobs.role(script, mounts=[gate.mount])])
    info = scheduler.submit_dryrun(app, {"namespace": jobs.namespace, "reserved_millicpu": 1000})
    info._app = app
    tasks = TaskList(names=["k"], points=[(f"v{k}",) for k in range(7)], pack=3)
    job = info.request
    objects = scheduler._render("job", as_replicas(app, tasks), job.app_id, job.opts, (1, 29))["items"]
    objects = sweeps.with_values(objects, tasks)
    spec = next(item for item in objects if item["kind"] == "Job")["spec"]
    assert spec["completions"] == 3
    template, spec["parallelism"] = spec["template"], 0
    app_id = scheduler._make(scheduler._api(), info, objects)
    for k in range(3):
        index = {**template["metadata"]["annotations"], names.INDEX_ANNOTATION: str(k)}
        about = {"name": f"{job.app_id}-{k}", "labels": template["metadata"]["labels"], "annotations": index}
        cluster.call("POST", jobs.path("pods"), {"metadata": about, "spec": template["spec"]})

    def states() -> list[str]:
        """Of the Job's status only later clusters have the tasks of pods that have succeeded."""
        found = scheduler._find(app_id, ["job"])
        table = sweeps.table_of(found.owners[0], read_pods(unpacked(jobs.pods(app_id))))
        return [state.name for state in table.states]

    eventually(lambda: states()[:4] == ["SUCCEEDED", "FAILED", "SUCCEEDED", "RUNNING"])
    assert states()[4:6] == ["PENDING"] * 2
    assert [jobs.log(app_id, "main", k) for k in (1, 3)] == [["v1 1", "no data"], ["v3 3"]]
    scheduler.cancel_task(app_id, 5)
    gate.open("go")
    eventually(lambda: states()[4] == "RUNNING")
    with scheduler.enter(app_id, "main", 4, ["sh", "-c", "echo $torchx_element"]) as process:
        assert process.read() == (1, b"1\n")
    scheduler.cancel_task(app_id, 4)
    eventually(lambda: states()[3:] == ["SUCCEEDED", "CANCELLED", "CANCELLED", "SUCCEEDED"])
    lines = [jobs.log(app_id, "main", k) for k in range(7)]
    assert lines == [["v0 0"], ["v1 1", "no data"], ["v2 2"], ["v3 3"], ["v4 4"], [], ["v6 6"]]
    failed, late = scheduler.describe_tasks(app_id, [1, 4])
    assert "exit code 4" in failed.msg and "no data" in failed.msg
    assert late.state.name == "CANCELLED"

    def phases() -> dict[str, str]:
        return {pod["metadata"]["name"][-1]: pod["status"]["phase"] for pod in jobs.pods(app_id)}

    eventually(lambda: phases() == {"0": "Failed", "1": "Succeeded", "2": "Succeeded"})
