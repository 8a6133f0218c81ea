"""Jobs that torchx did not create: their pods by owner references, their states, causes and logs."""

from __future__ import annotations

import re

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response, refusal
from torchx.cli.cmd_delete import _delete
from torchx.errors import HandleError, NotSupportedError
from torchx.runner import Runner
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler
from torchx.specs import AppState, UnknownAppException

KUBEFLOW, RAY, JOBSET = "kubeflow.org/v1", "ray.io/v1", "jobset.x-k8s.io/v1alpha2"
FAILED = {"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 3}}}]}
RUNS = {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]}
DONE = {"phase": "Succeeded", "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 0}}}]}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(groups=(KUBEFLOW, RAY, JOBSET))


@pytest.fixture
def jobs(cluster: Cluster):
    return KubernetesScheduler("foreign", client=cluster).foreign()


def put(cluster: Cluster, kind: str, name: str, *, owner: str = "", api: str = "batch/v1", at: int = 0, **fields):
    """Creates an object like kubectl or a controller; `owner` is `Kind/name`."""
    metadata = {"name": name, "namespace": "team", "uid": f"{kind}/{name}", "labels": fields.pop("labels", {})}
    metadata["creationTimestamp"] = f"2026-01-01T00:00:{at:02}Z"
    if owner:
        metadata["ownerReferences"] = [{"kind": owner.partition("/")[0], "name": owner.partition("/")[2], "uid": owner}]
    base = "api/v1" if kind == "Pod" else f"apis/{api}"
    item = {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": {}, "status": {}, **fields}
    cluster.objects[f"{base}/{kind.lower()}s", "team", name] = item


def pod(cluster: Cluster, name: str, owner: str, status: dict, **more) -> None:
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "img", "command": ["python", "x.py"]}]}
    put(cluster, "Pod", name, owner=owner, status=status, spec=spec, **more)


def test_they_are_polled_although_the_scheduler_reports_changes(cluster: Cluster, jobs) -> None:
    """Its watch selects jobs by torchx's labels, so that changes of others are not reported."""
    assert KubernetesScheduler("me", client=cluster).hears_all
    assert not jobs.hears_all


@pytest.mark.parametrize("reference", ["team/job/train", "team/jobs/train", "team/pod/train-b"])
def test_a_job_of_kubectl(cluster: Cluster, jobs, reference: str) -> None:
    """It can also be named by one of its pods. A failed and replaced pod is an earlier attempt of its replica."""
    put(cluster, "Job", "train", spec={"backoffLimit": 1, "parallelism": 1})
    cluster.objects["apis/batch/v1/jobs", "team", "train"]["status"] = {
        "conditions": [
            {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has failed"}
        ]
    }
    for i, name in enumerate(("train-a", "train-b")):
        pod(cluster, name, "Job/train", FAILED, labels={"job-name": "train"}, at=i)
    pod(cluster, "other", "Job/other", RUNS)
    cluster.logs["train-b", ""] = b"2026-01-01T00:00:09Z ValueError: no such frob\n"
    assert jobs.find(reference).app_id == "team:job:train"
    found = jobs.describe("team:job:train")
    assert found.state is AppState.FAILED
    assert "train/0 on n1: exit code 3: " in found.msg
    assert "ValueError: no such frob" in found.msg
    assert [(r.role, r.id) for role in found.roles_statuses for r in role.replicas] == [("train", 0)]
    assert jobs.about("team:job:train")["command"] == "python x.py"
    assert jobs.log_replicas("team:job:train") == [("train", 0)]
    (log,) = jobs.open_logs("team:job:train", [("train", 0)], LogQuery())
    assert "".join(log).endswith("ValueError: no such frob\n")


@pytest.mark.parametrize(
    ("ended", "state"),
    [
        ({}, AppState.RUNNING),
        ({"type": "Succeeded", "status": "True"}, AppState.SUCCEEDED),
        (
            {"type": "Failed", "status": "True", "reason": "PyTorchJobFailed", "message": "it has failed"},
            AppState.FAILED,
        ),
    ],
    ids=["runs", "succeeded", "failed"],
)
def test_a_pytorchjob(cluster: Cluster, jobs, ended: dict, state: AppState) -> None:
    """Master and workers are roles; the operator's condition is the state."""
    put(cluster, "PyTorchJob", "train", api=KUBEFLOW, status={"conditions": [ended] if ended else []})
    status = {AppState.RUNNING: RUNS, AppState.SUCCEEDED: DONE, AppState.FAILED: FAILED}[state]
    for kind, k in (("worker", 1), ("master", 0), ("worker", 0)):
        labels = {"training.kubeflow.org/replica-type": kind, "training.kubeflow.org/replica-index": str(k)}
        pod(cluster, f"train-{kind}-{k}", "PyTorchJob/train", status, labels=labels)
    found = jobs.describe("team:pytorchjob:train")
    assert found.state is state
    replicas = sorted((r.role, r.id) for role in found.roles_statuses for r in role.replicas)
    assert replicas == [("master", 0), ("worker", 0), ("worker", 1)]


def test_a_jobset_has_the_pods_of_its_jobs(cluster: Cluster, jobs) -> None:
    """Pods are found through two owners, and numbered consecutively."""
    put(cluster, "JobSet", "set", api=JOBSET, spec={"replicatedJobs": []})
    for j in range(2):
        put(cluster, "Job", f"set-w-{j}", owner="JobSet/set")
        labels = {"jobset.sigs.k8s.io/replicatedjob-name": "w", "jobset.sigs.k8s.io/job-index": str(j)}
        for k in range(2):
            own = {**labels, "batch.kubernetes.io/job-completion-index": str(k)}
            pod(cluster, f"set-w-{j}-{k}", f"Job/set-w-{j}", RUNS, labels=own)
    assert jobs.find("team/pod/set-w-1-0").app_id == "team:jobset:set"
    assert jobs.log_replicas("team:jobset:set") == [("w", 0), ("w", 1), ("w", 2), ("w", 3)]
    assert jobs.describe("team:jobset:set").state is AppState.RUNNING


def test_a_rayjob(cluster: Cluster, jobs) -> None:
    """It has the pods of its RayCluster, and Ray's reason of the failure."""
    put(cluster, "RayJob", "tune", api=RAY, status={"jobStatus": "FAILED", "reason": "AppFailed", "message": "exit 1"})
    put(cluster, "RayCluster", "tune-x", owner="RayJob/tune", api=RAY)
    pod(cluster, "tune-head", "RayCluster/tune-x", RUNS, labels={"ray.io/node-type": "head"})
    found = jobs.describe("team:rayjob:tune")
    assert found.state is AppState.RUNNING, "its pods are still there"
    cluster.objects["api/v1/pods", "team", "tune-head"]["status"] = DONE
    found = jobs.describe("team:rayjob:tune")
    assert found.state is AppState.FAILED
    assert "exit 1" in found.msg


def test_a_pod_by_itself(cluster: Cluster, jobs) -> None:
    """The status shows why it waits."""
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    pod(cluster, "shell", "", {"phase": "Pending", "conditions": [waits]})
    assert jobs.find("team/pod/shell").app_id == "team:pod:shell"
    found = jobs.describe("team:pod:shell")
    assert found.state is AppState.PENDING
    assert "0/3 nodes are available" in found.msg


def test_what_its_pods_use(cluster: Cluster, jobs) -> None:
    """Its pods are not selected by the label of torchx's pods, whose value cannot be an id with a colon."""
    put(cluster, "Job", "train", spec={"parallelism": 1})
    pod(cluster, "train-a", "Job/train", RUNS, labels={"job-name": "train"})
    used = [{"usage": {"cpu": "500m", "memory": "1Ki"}}]
    metrics = Response(200, {"items": [{"metadata": {"name": "train-a"}, "containers": used}]})
    cluster.faults.append(("GET", "metrics.k8s.io", metrics, "before"))
    (found,) = jobs.metrics("team:job:train")
    assert [(sample.cpu, sample.memory) for sample in found.samples] == [(0.5, 1024)]
    assert not any(":" in query.get("labelSelector", "") for _, _, query in cluster.calls)


def test_names(cluster: Cluster, jobs) -> None:
    """Other names cause no calls; a job of torchx is found by its own id."""
    for reference in ("team/deployment/x", "a/b/job/x", "4711", "job/", "Not_A_Name"):
        assert jobs.find(reference) is None
    assert cluster.calls == []
    assert jobs.find("team/job/nobody") is None
    ours = {"app.kubernetes.io/managed-by": "torchx.pytorch.org", "app.kubernetes.io/instance": "train-x1"}
    put(cluster, "Job", "train-x1-w", labels=ours)
    assert (jobs.find("team/job/train-x1-w").app_id, jobs.find("team/job/train-x1-w").ours) == ("team:train-x1", True)


@pytest.mark.parametrize(
    "reference", ["train", "job/train", "job.batch/train", "jobs.batch/train", "team/train", "team/job/train", "train-a", "pod/train-a"]
)  # fmt: skip
@pytest.mark.parametrize("rights", [True, False], ids=["cluster", "namespace"])
def test_any_name_of_a_job(cluster: Cluster, jobs, monkeypatch, reference: str, rights: bool) -> None:
    """As kubectl prints it or a user remembers it: without kind, without namespace, that of a pod."""
    put(cluster, "Job", "train")
    pod(cluster, "train-a", "Job/train", RUNS, labels={"job-name": "train"})
    if not rights:  # only in the namespace of kubeconfig
        monkeypatch.setattr(KubeApi, "namespace", lambda _: "team")
        everywhere = re.compile(r"/(api/v1|apis/[^/]+/[^/]+)/[a-z]+$")
        cluster.away = lambda _, path: refusal(403, "Forbidden", "no") if everywhere.match(path) else None
    assert jobs.find(reference).app_id == "team:job:train"


def test_a_name_in_two_namespaces(cluster: Cluster, jobs) -> None:
    """That of kubeconfig comes first; otherwise the error names all."""
    for space in ("a", "b"):
        put(cluster, "Job", "train")
        item = cluster.objects.pop(("apis/batch/v1/jobs", "team", "train"))
        cluster.objects["apis/batch/v1/jobs", space, "train"] = {
            **item,
            "metadata": {**item["metadata"], "namespace": space},
        }
    with pytest.raises(HandleError, match="any of `k8s://a/job/train`, `k8s://b/job/train`"):
        jobs.find("train")
    put(cluster, "Job", "train")
    item = cluster.objects.pop(("apis/batch/v1/jobs", "team", "train"))
    cluster.objects["apis/batch/v1/jobs", "default", "train"] = {
        **item,
        "metadata": {**item["metadata"], "namespace": "default"},
    }
    assert jobs.find("train").app_id == "default:job:train"


def test_nothing_is_done_to_it(cluster: Cluster, jobs) -> None:
    """It is deleted only with `forced`."""
    put(cluster, "Job", "train")
    for end in (jobs.cancel, jobs.delete):
        with pytest.raises(NotSupportedError):
            end("team:job:train")
    assert {method for method, _, _ in cluster.calls} <= {"GET"}
    jobs.forced().cancel("team:job:train")
    assert cluster.of("jobs") == []


@pytest.mark.parametrize("app_id", ["x", "team", "team:job", "team:job:", "team:pod:..", "team:job:.", "team::x", ":"])
def test_an_id_without_a_name_is_of_no_job(cluster: Cluster, jobs, app_id: str) -> None:
    """Its path would be that of all jobs of the namespace, which `torchx delete` would delete."""
    put(cluster, "Job", "train", spec={"parallelism": 1})
    pod(cluster, "train-a", "Job/train", RUNS)
    before = dict(cluster.objects)
    assert jobs.describe(app_id) is None and jobs.log_replicas(app_id) is None and not jobs.exists(app_id)
    runner = Runner("me", {"kubernetes": lambda *_, **__: KubernetesScheduler("me", client=cluster)})
    with runner, pytest.raises(UnknownAppException):
        _delete(runner, f"kubernetes://foreign/{app_id}", force=True)
    assert cluster.objects == before
