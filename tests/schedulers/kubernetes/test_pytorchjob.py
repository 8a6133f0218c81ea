"""PyTorchJobs of Kubeflow's Training Operator 1: their form, what is rejected, and their states."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.schedulers.kubernetes.fake_cluster import Cluster
from tests.schedulers.kubernetes.test_inline_code import code
from torchx.errors import BackendError, SpecError
from torchx.runner import Runner
from torchx.schedulers.kubernetes.overlays import set_overlay
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role

__all__ = ["code"]
KIND: dict[str, Any] = {"kind": "pytorchjob"}
INDEX = "training.kubeflow.org/replica-index"


class Trained(Cluster):
    """A cluster with the operator; an old one drops the field that suspends a job."""

    def __init__(self, *, old=False):
        super().__init__(groups=["kubeflow.org/v1"])
        self._old = old

    def _one(self, method, key, body):
        if self._old and method == "PATCH":
            known = json.loads(body)
            known.get("spec", {}).pop("runPolicy", None)
            body = json.dumps(known)
        return super()._one(method, key, body)

    def run_pods(self, job, status, *, most=10**6):
        """Creates the pods of a PyTorchJob like the operator."""
        workers, name = job["spec"]["pytorchReplicaSpecs"]["Worker"], job["metadata"]["name"]
        for k in range(min(workers["replicas"], most)):
            made = workers["template"]
            pod = f"{name}-worker-{k}"
            metadata = {
                **made["metadata"],
                "name": pod,
                "namespace": "default",
                "uid": f"uid-{pod}",
                "creationTimestamp": "2026-01-01T00:00:01Z",
                "labels": {**made["metadata"]["labels"], INDEX: str(k)},
            }
            spec = {**made["spec"], "nodeName": f"n{k}"}
            self.objects["api/v1/pods", "default", pod] = {"metadata": metadata, "spec": spec, "status": {**status}}


def app(**fields):
    role = Role("trainer", "img", entrypoint="torchrun", args=["t.py", "${replica_id}"], num_replicas=3, **fields)
    role.resource = Resource(2, 1, 4096)
    return AppDef("train", [role])


def submit(cluster, given=None, **cfg):
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(given or app(), {**KIND, **cfg})
    return scheduler, app_id, cluster.of("pytorchjobs")[0]


def test_its_replicas_are_workers():
    """One template, with the container and the replica's number as the operator names them."""
    _, app_id, job = submit(Trained(), local_queue="team", ttl_s=60, deadline_s=5)
    spec, name = job["spec"], app_id.removeprefix("default:")
    assert spec["runPolicy"] == {"cleanPodPolicy": "None", "ttlSecondsAfterFinished": 60, "suspend": True}
    assert spec["elasticPolicy"] == {"minReplicas": 3, "maxReplicas": 3, "rdzvBackend": "c10d"}
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    (kind,) = spec["pytorchReplicaSpecs"]
    workers = spec["pytorchReplicaSpecs"][kind]
    assert (kind, workers["replicas"], workers["restartPolicy"]) == ("Worker", 3, "Never")
    pod = workers["template"]["spec"]
    assert pod["activeDeadlineSeconds"] == 5 and "restartPolicy" not in pod
    (main,) = pod["containers"]
    assert (main["name"], main["command"]) == ("pytorch", ["torchrun", "t.py", "$(TORCHX_REPLICA_ID)"])
    env = {variable["name"]: variable for variable in main["env"]}
    assert env["TORCHX_RANK0_HOST"]["value"] == f"{name}-worker-0"
    assert env["TORCHX_REPLICA_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"


def test_an_elastic_role():
    """`min_replicas` is the operator's minimum."""
    _, _, job = submit(Trained(), app(min_replicas=2))
    assert job["spec"]["elasticPolicy"]["minReplicas"] == 2


def test_an_overlay_keeps_what_it_adds():
    """Overlays use the name `main` for the role's container; other containers are not renamed."""
    given = app()
    set_overlay(
        given.roles[0], "kubernetes", "pod", {"spec": {"containers": [{"name": "main", "tty": True}, {"name": "side"}]}}
    )
    _, _, job = submit(Trained(), given)
    containers = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert [(c["name"], c.get("tty")) for c in containers] == [("pytorch", True), ("side", None)]


def test_what_it_cannot_have():
    """The dry run rejects it, and the hint names another kind."""
    two = AppDef("train", [Role(n, "img", entrypoint="t", resource=Resource(1, 0, 64)) for n in "ab"])
    for given, said in [
        (two, "has one role, and `train` has 2"),
        (app(max_retries=1), "counts restarts of all its pods"),
    ]:
        with pytest.raises(SpecError, match=said) as e:
            create_scheduler("me").submit_dryrun(given, KIND)
        assert "`-cfg kind=job`" in e.value.hint


def test_its_life_and_why_it_failed():
    """By its conditions and pods; `list` shows the state of `status`."""
    cluster = Trained()
    scheduler, app_id, job = submit(cluster)
    assert scheduler.describe(app_id).state is AppState.PENDING
    cluster.run_pods(job, {"phase": "Running"})
    found = scheduler.describe(app_id)
    assert [(r.id, r.state) for r in found.roles_statuses[0].replicas] == [(k, AppState.RUNNING) for k in range(3)]
    job["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    assert scheduler.describe(app_id).state is AppState.RUNNING, "pods of it still run"
    ended = {"exitCode": 3, "reason": "Error", "message": "ValueError: boom"}
    pod = cluster.of("pods")[1]
    pod["status"] = {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}]}
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "PyTorchJobFailed"}]}
    for other in (0, 2):
        cluster.of("pods")[other]["status"] = {"phase": "Succeeded"}
    found = scheduler.describe(app_id)
    assert (found.state, found.msg) == (AppState.FAILED, "trainer/1 on n1: exit code 3: ValueError: boom")
    assert [(one.app_id, one.state) for one in scheduler.list()] == [(app_id, AppState.FAILED)]


def test_cancel_holds_it_and_delete_removes_it():
    """The printed rights are sufficient; an operator that cannot suspend a job is an error with a hint."""
    cluster = Trained()
    scheduler = create_scheduler("me", client=cluster)
    cluster.grant(yaml.safe_load(scheduler.rights(KIND))["rules"])
    app_id = scheduler.submit(app(), KIND)
    scheduler.cancel(app_id)
    assert cluster.of("pytorchjobs")[0]["spec"]["runPolicy"]["suspend"] is True
    assert scheduler.describe(app_id).state is AppState.CANCELLED
    scheduler.delete(app_id)
    assert cluster.objects == {}
    scheduler, app_id, _ = submit(Trained(old=True))
    with pytest.raises(BackendError, match="cannot suspend a job") as e:
        scheduler.cancel(app_id)
    assert "torchx delete --force" in e.value.hint


def test_code_and_logs(code):
    """The workspace is shipped; a replica's log is that of its pod."""
    cluster = Trained()
    scheduler = create_scheduler("me", client=cluster)
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        runner.run(app(), "kubernetes", KIND, workspace=str(code))
        (job,) = cluster.of("pytorchjobs")
        (main,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        assert "/torchx-code" in {m["mountPath"] for m in main["volumeMounts"]} and main["command"][0] == "sh"
        assert len(cluster.of("configmaps")) == 1
        cluster.run_pods(job, {"phase": "Succeeded"})
        for pod in cluster.of("pods"):
            pod["status"]["containerStatuses"] = [{"name": "pytorch", "state": {"terminated": {"exitCode": 0}}}]
            name = pod["metadata"]["name"]
            cluster.logs[name, ""] = f"2026-01-01T00:00:00.000000001Z from {name}\n".encode()
        app_id = f"default:{job['metadata']['name']}"
        (line,) = scheduler.log_iter(app_id, "trainer", 2)
        assert line.endswith("-worker-2\n")


def test_a_cluster_without_the_operator():
    """The hint names a kind that needs no operator."""
    with pytest.raises(BackendError, match="the cluster has no `PyTorchJob`") as e:
        submit(Cluster())
    assert "kind=job" in e.value.hint
