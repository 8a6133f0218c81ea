"""TrainJobs of Kubeflow Trainer: their form in each version, what is rejected, and their states."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response
from tests.schedulers.kubernetes.test_inline_code import code
from torchx.errors import BackendError, ConfigError, NotSupportedError, SpecError
from torchx.runner import Runner
from torchx.schedulers.kubernetes.overlays import set_overlay
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role, VolumeMount
from torchx.specs.wishes.retries import RETRY

__all__ = ["code"]
GROUP = "trainer.kubeflow.org/v1alpha1"
KIND: dict[str, Any] = {"kind": "kubeflow"}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}


class Trained(Cluster):
    """A cluster with Trainer, which drops the fields that its version does not support."""

    def __init__(self, drops=()):
        super().__init__(groups=[GROUP])
        self._drops = drops

    def _create(self, base, namespace, item, query):
        if base.endswith("/trainjobs"):
            item["spec"] = {key: value for key, value in item["spec"].items() if key not in self._drops}
            assert "template" not in item["spec"]
        return super()._create(base, namespace, item, query)

    def run_pods(self, job, status, *, most=10**6):
        """Creates the pods of a TrainJob like Trainer, JobSet and the Job controller."""
        trainer, name = job["spec"]["trainer"], job["metadata"]["name"]
        patch = pod_patch(job)
        for k in range(min(trainer["numNodes"], most)):
            pod = f"{name}-node-0-{k}-abcde"
            metadata = {
                "name": pod,
                "namespace": "default",
                "uid": f"uid-{pod}",
                "creationTimestamp": "2026-01-01T00:00:01Z",
                "labels": {**patch["metadata"]["labels"], "jobset.sigs.k8s.io/jobset-name": name},
                "annotations": {"batch.kubernetes.io/job-completion-index": str(k)},
            }
            container = {"name": "node", "image": trainer["image"]}
            self.objects["api/v1/pods", "default", pod] = {
                "metadata": metadata,
                "spec": {"containers": [container], "nodeName": f"n{k}"},
                "status": {**status},
            }


def pod_patch(job):
    """The changes of a TrainJob to the pods of its runtime."""
    if "podTemplateOverrides" in job["spec"]:
        (found,) = job["spec"]["podTemplateOverrides"]
        assert found["targetJobs"] == [{"name": "node"}]
        return found
    (patch,) = job["spec"]["runtimePatches"]
    (of_job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert of_job["name"] == "node"
    return of_job["template"]["spec"]["template"]


def app(**fields):
    fields.setdefault("resource", Resource(2, 1, 4096))
    return AppDef(
        "train", [Role("trainer", "img", entrypoint="torchrun", args=["t.py", "$(HOME)"], num_replicas=2, **fields)]
    )


def submit(cluster, given=None, **cfg):
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(given or app(), {**KIND, **cfg})
    return scheduler, app_id


def test_a_role_in_the_runtime_of_the_cluster():
    """It sets command, environment, resources and size; rank 0 has the name of JobSet's pod."""
    cluster = Trained()
    scheduler, app_id = submit(cluster, app(env={"A": "b", "T": "[SECRET]hf/token"}))
    (job,) = cluster.of("trainjobs")
    name = app_id.removeprefix("default:")
    assert job["spec"]["runtimeRef"]["kind"] == "ClusterTrainingRuntime"
    assert job["spec"]["runtimeRef"]["name"] == "torch-distributed"
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["image"], trainer["command"]) == (2, "img", ["torchrun"])
    assert trainer["args"] == ["t.py", "$$(HOME)"]
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "1"
    env = {variable["name"]: variable for variable in trainer["env"]}
    assert env["TORCHX_RANK0_HOST"]["value"] == f"{name}-node-0-0.{name}"
    assert "job-completion-index" in env["TORCHX_REPLICA_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert env["T"]["valueFrom"]["secretKeyRef"]["name"] == "hf"
    assert scheduler.describe(app_id).roles[0].args == ["t.py", "$(HOME)"]


def test_what_its_pods_are_given():
    """A patch sets labels, volumes and placement from the options and an overlay."""
    given = app(mounts=[VolumeMount("models", "/models")])
    set_overlay(given.roles[0], "kubernetes", "pod", {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}})
    cluster = Trained()
    submit(
        cluster,
        given,
        service_account="me",
        image_secret="ghcr",
        node_selector={"rack": "r1"},
        pack="zone!",
        runtime="TrainingRuntime/ours",
        local_queue="team",
        deadline_s=60,
    )
    (job,) = cluster.of("trainjobs")
    spec = job["spec"]
    assert (spec["runtimeRef"]["kind"], spec["runtimeRef"]["name"]) == ("TrainingRuntime", "ours")
    assert (spec["suspend"], spec["activeDeadlineSeconds"]) == (True, 60)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert spec["runtimePatches"][0]["manager"] == "torchx.pytorch.org/launcher"
    patch = pod_patch(job)
    assert patch["metadata"]["labels"]["torchx.pytorch.org/role-name"] == "trainer"
    pod = patch["spec"]
    assert (pod["serviceAccountName"], pod["nodeSelector"]) == ("me", {"rack": "r1"})
    assert pod["imagePullSecrets"] == [{"name": "ghcr"}] and pod["tolerations"][0]["key"] == "gpu"
    assert pod["affinity"]["podAffinity"] and "restartPolicy" not in pod
    (container,) = pod["containers"]
    assert set(container) == {"name", "volumeMounts"} and container["name"] == "node"
    assert {m["mountPath"] for m in container["volumeMounts"]} == {"/dev/shm", "/models"}
    assert {v["name"] for v in pod["volumes"]} >= {m["name"] for m in container["volumeMounts"]}


def test_the_schemas_of_pods_agree():
    """The fields of a pod in a TrainJob are valid in Kubernetes' schema."""
    validate = pytest.importorskip("kubernetes_validate")
    cluster = Trained()
    options = {
        "service_account": "me",
        "image_secret": "g",
        "node_selector": {"a": "b"},
        "pack": "zone",
        "tolerations": ["*"],
    }
    submit(cluster, app(mounts=[VolumeMount("models", "/models")], env={"T": "[SECRET]hf/token"}), **options)
    (job,) = cluster.of("trainjobs")
    trainer, patch = job["spec"]["trainer"], pod_patch(job)
    (own,) = patch["spec"]["containers"]
    container = {**own, **{key: trainer[key] for key in ("image", "env", "command", "args")}}
    pod = {**patch["spec"], "containers": [{**container, "resources": trainer["resourcesPerNode"]}]}
    validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": patch["metadata"], "spec": pod}, "1.37", strict=True
    )


def test_an_older_trainer_is_given_its_own_form():
    """2.1 gets equivalent overrides; unsupported fields, and version 2.0, are rejected. No objects are left."""
    cluster = Trained(drops=["runtimePatches", "activeDeadlineSeconds"])
    submit(cluster)
    (job,) = cluster.of("trainjobs")
    newer = Trained()
    submit(newer)
    old, new = pod_patch(job), pod_patch(newer.of("trainjobs")[0])
    assert old["spec"] == new["spec"] and old["metadata"]["labels"].keys() == new["metadata"]["labels"].keys()
    for drops, cfg, said in [
        (
            ["runtimePatches", "activeDeadlineSeconds"],
            {"deadline_s": 5},
            "does not support time limits; this needs 2.2",
        ),
        (["runtimePatches", "podTemplateOverrides"], {}, "older than 2.1"),
    ]:
        cluster = Trained(drops)
        with pytest.raises(BackendError, match=said) as e:
            submit(cluster, **cfg)
        assert "kind=jobset" in e.value.hint and cluster.objects == {}
    secure = app()
    set_overlay(secure.roles[0], "kubernetes", "pod", {"spec": {"securityContext": {"runAsNonRoot": True}}})
    submit(Trained(), secure)
    with pytest.raises(BackendError, match=r"cannot set `securityContext`; this needs 2\.2"):
        submit(Trained(["runtimePatches"]), secure)


def test_the_form_is_asked_for_without_a_warning():
    """The dry run sets `fieldValidation`, so that unknown fields cause no warnings."""
    cluster = Trained()
    submit(cluster)
    asked = [query for method, path, query in cluster.calls if method == "POST" and path.endswith("/trainjobs")]
    assert asked[0] == {"dryRun": "All", "fieldValidation": "Ignore"}
    assert asked[1:] == [{"dryRun": "All"}, {}]


def two_roles():
    return AppDef("train", [Role(n, "img", entrypoint="t", resource=Resource(1, 0, 64)) for n in "ab"])


def overlaid(spec):
    given = app()
    set_overlay(given.roles[0], "kubernetes", "pod", {"spec": spec})
    return given


@pytest.mark.parametrize(
    ("given", "cfg", "said"),
    [
        (two_roles(), {}, "a TrainJob has one role, and `train` has 2"),
        (app(max_retries=1), {}, "does not support retries"),
        (app(min_replicas=1), {}, "does not support `min_replicas`"),
        (app(), {"ttl_s": 5}, "does not support `ttl_s`"),
        (app(), {"priority_class": "high"}, "cannot set `spec.priorityClassName`"),
        (app(), {"spread": ["zone"]}, "cannot set `spec.topologySpreadConstraints`"),
        (overlaid({"hostNetwork": True}), {}, "cannot set `spec.hostNetwork`"),
        (overlaid({"containers": [{"name": "side", "image": "x"}]}), {}, r"cannot set `spec.containers\[side\]`"),
        (overlaid({"containers": [{"name": "main", "tty": True}]}), {}, r"cannot set `spec.containers\[main\].tty`"),
    ],
    ids=["roles", "retries", "elastic", "ttl", "priority", "spread", "host", "sidecar", "container"],
)
def test_what_a_trainjob_cannot_have_is_refused(given, cfg, said):
    """The dry run rejects it, and the hint names another kind: nothing is ignored."""
    with pytest.raises(SpecError, match=said) as e:
        create_scheduler("me").submit_dryrun(given, {**KIND, **cfg})
    assert "use `-cfg kind=jobset`" in e.value.hint


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"queue": "q", **KIND}, "is an option of Volcano"),
        ({"runtime": "x", "kind": "job"}, "is an option of `kind=kubeflow`"),
    ],
)
def test_options_that_contradict_one_another(cfg, said):
    """The error names them."""
    with pytest.raises(ConfigError, match=said):
        create_scheduler("me").submit_dryrun(app(), cfg)


def test_retries_by_cause_are_refused():
    """Only plain Jobs support them."""
    with Runner("me", {"kubernetes": lambda *_, **__: create_scheduler("me")}) as runner:
        given = app()
        given.metadata = {RETRY: "node:free"}
        with pytest.raises(NotSupportedError, match="not kind `kubeflow`"):
            runner.dryrun(given, "kubernetes", KIND)


def test_code_and_secrets_go_along(code, monkeypatch):
    """The TrainJob owns them, so that they are deleted with it."""
    monkeypatch.setenv("MY_PASSWORD", "sesame-open")
    cluster = Trained()
    scheduler = create_scheduler("me", client=cluster)
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        given = app(env={"MY_PASSWORD": "sesame-open"})
        handle = runner.run(given, "kubernetes", KIND, workspace=str(code))
        (job,) = cluster.of("trainjobs")
        trainer, pod = job["spec"]["trainer"], pod_patch(job)["spec"]
        assert trainer["command"] == ["sh"] and trainer["args"][-3:] == ["torchrun", "t.py", "$$(HOME)"]
        assert "/torchx-code" in {m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
        assert "sesame-open" not in str(job) and len(cluster.of("secrets")) == len(cluster.of("configmaps")) == 1
        runner.delete(handle)
    assert cluster.objects == {}


def said_of(scheduler, app_id):
    found = scheduler.describe(app_id)
    return found.state, found.msg


def test_its_life():
    """Its conditions determine its state; `list` shows the state of `status`."""
    cluster = Trained()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("trainjobs")
    assert said_of(scheduler, app_id) == (AppState.PENDING, "its pods are not created yet")
    cluster.run_pods(job, RUNNING)
    found = scheduler.describe(app_id)
    assert found.state is AppState.RUNNING
    assert [(r.role, r.id, r.state) for role in found.roles_statuses for r in role.replicas] == [
        ("trainer", 0, AppState.RUNNING),
        ("trainer", 1, AppState.RUNNING),
    ]
    complete = {"type": "Complete", "status": "True", "reason": "JobsCompleted"}
    job["status"] = {"conditions": [complete], "jobsStatus": [{"name": "node", "succeeded": 1}]}
    for pod in cluster.of("pods"):
        pod["status"] = {"phase": "Succeeded"}
    assert said_of(scheduler, app_id)[0] is AppState.SUCCEEDED
    assert [(one.app_id, one.state) for one in scheduler.list()] == [(app_id, AppState.SUCCEEDED)]


def test_why_it_failed():
    """The cause is the pod that failed first, or a deadline."""
    cluster = Trained()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("trainjobs")
    cluster.run_pods(job, RUNNING)
    ended = {"exitCode": 3, "reason": "Error", "message": "ValueError: boom"}
    status = {"phase": "Failed", "containerStatuses": [{"name": "node", "state": {"terminated": ended}}]}
    first, second = cluster.of("pods")
    second["status"] = status
    assert said_of(scheduler, app_id)[0] is AppState.RUNNING  # its runtime may start it again
    cluster.take(first)
    failed = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "jobset failed"}
    job["status"] = {"conditions": [failed]}
    state, msg = said_of(scheduler, app_id)
    assert (state, msg) == (AppState.FAILED, "trainer/1 on n1: exit code 3: ValueError: boom")
    job["status"] = {"conditions": [{**failed, "reason": "DeadlineExceeded"}]}
    for pod in list(cluster.of("pods")):
        cluster.take(pod)
    assert said_of(scheduler, app_id) == (AppState.FAILED, "it ran longer than its deadline (DeadlineExceeded)")


RESTARTED: dict[str, Any] = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "node",
            "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 9, "reason": "Error", "message": "ValueError: boom"}},
        }
    ],
}


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "runs again"])
def test_a_restarted_command_that_is_gone_at_the_end(waits):
    """The last poll has seen exit code and message; the event of the Job, that it used up its restarts."""
    cluster = Trained()
    scheduler = create_scheduler("me", client=cluster)
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        handle = runner.run(app(), "kubernetes", KIND)
        (job,) = cluster.of("trainjobs")
        cluster.run_pods(job, RUNNING, most=2)
        state = RESTARTED["containerStatuses"][0]["state"] if waits else {"running": {}}
        (container,) = RESTARTED["containerStatuses"]
        cluster.of("pods")[1]["status"] = {**RESTARTED, "containerStatuses": [{**container, "state": state}]}
        seen = runner.status(handle)
        assert (seen.state, seen.num_restarts) == (AppState.RUNNING, 2)
        assert "restarted after: exit code 9: ValueError: boom" in seen.format()
        for pod in list(cluster.of("pods")):
            cluster.take(pod)
        child = {
            "kind": "Job",
            "metadata": {**job["metadata"], "name": f"{job['metadata']['name']}-node-0", "uid": "u"},
        }
        cluster.warn(child, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        job["status"] = {
            "conditions": [{"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "failed"}]
        }
        state, msg = said_of(scheduler, handle.rpartition("/")[2])
        assert msg == "one of its jobs failed (FailedJobs); more pods failed than it retries (BackoffLimitExceeded)"
        ended = runner.status(handle)
    assert (ended.state, ended.num_restarts) == (AppState.FAILED, 2)
    assert ended.msg.startswith("trainer/1 on n1: exit code 9: ValueError: boom; one of its jobs failed")


@pytest.mark.parametrize(
    ("spec", "kind", "said"),
    [
        (None, "ClusterTrainingRuntime", ""),
        ({"replicatedJobs": [{"name": "node", "template": {}}]}, "ClusterTrainingRuntime", "each failed pod up to 6 times"),
        ({"replicatedJobs": [{"name": "node", "template": {"spec": {"backoffLimit": 0}}}]}, "ClusterTrainingRuntime", ""),
        (
            {"failurePolicy": {"maxRestarts": 3}, "replicatedJobs": [{"name": "other"}, {"name": "node", "template": {"spec": {"backoffLimit": 1}}}]},
            "TrainingRuntime",
            "each failed pod up to 1 time, and all pods after a failure up to 3 times",
        ),
    ],
)  # fmt: skip
def test_restarts_by_the_runtime_are_said(spec, kind, said, caplog):
    """At the submission, by the runtime that the TrainJob names; nothing if it is not known."""
    cluster = Trained()
    name = "torch-distributed" if kind == "ClusterTrainingRuntime" else "ours"
    if spec is not None:
        runtime = {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}
        space = None if kind == "ClusterTrainingRuntime" else "default"
        cluster.objects[f"apis/{GROUP}/{kind.lower()}s", space, name] = runtime
    with caplog.at_level("INFO", "torchx.schedulers"):
        submit(cluster, **({} if kind == "ClusterTrainingRuntime" else {"runtime": "TrainingRuntime/ours"}))
    heard = [r.getMessage() for r in caplog.records if "restarts" in r.getMessage()]
    assert heard == ([f"the runtime `{name}` restarts {said}"] if said else [])


def test_why_it_has_no_pods():
    """The reason is in an event of the Job that JobSet has created."""
    cluster = Trained()
    scheduler, app_id = submit(cluster)
    (job,) = cluster.of("trainjobs")
    child = {"kind": "Job", "metadata": {**job["metadata"], "name": f"{job['metadata']['name']}-node-0", "uid": "u"}}
    cluster.warn(child, "FailedCreate", "exceeded quota: gpus")
    assert said_of(scheduler, app_id) == (AppState.PENDING, "its pods cannot be created: exceeded quota: gpus")


def test_cancel_suspends_it_and_delete_removes_it():
    """As for a Job; the printed rights are sufficient."""
    cluster = Trained()
    scheduler = create_scheduler("me", client=cluster)
    cluster.grant(yaml.safe_load(scheduler.rights(KIND))["rules"])
    app_id = scheduler.submit(app(), KIND)
    scheduler.cancel(app_id)
    (job,) = cluster.of("trainjobs")
    assert job["spec"]["suspend"] is True
    assert scheduler.describe(app_id).state is AppState.CANCELLED
    scheduler.delete(app_id)
    assert cluster.objects == {} and scheduler.describe(app_id) is None


def test_its_logs():
    """By replica, without container names before the lines."""
    cluster = Trained()
    scheduler, app_id = submit(cluster)
    cluster.run_pods(cluster.of("trainjobs")[0], {**RUNNING, "phase": "Succeeded"})
    for pod in cluster.of("pods"):
        pod["status"]["containerStatuses"] = [{"name": "node", "state": {"terminated": {"exitCode": 0}}}]
        name = pod["metadata"]["name"]
        cluster.logs[name, ""] = f"2026-01-01T00:00:00.000000001Z from {name}\n".encode()
    assert scheduler.log_replicas(app_id) == [("trainer", 0), ("trainer", 1)]
    (line,) = scheduler.log_iter(app_id, "trainer", 1)
    assert line.startswith("from train-") and line.endswith("-node-0-1-abcde\n")


def test_a_cluster_without_trainer():
    """The hint names a kind that needs no operator."""
    with pytest.raises(BackendError, match="the cluster has no `TrainJob`") as e:
        submit(Cluster())
    assert "kind=job" in e.value.hint


def test_a_runtime_that_the_cluster_has_not():
    """The error has the message of Trainer's webhook."""
    cluster = Trained()
    words = 'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: ClusterTrainingRuntime.trainer.kubeflow.org "torch-distributed" not found'
    body = {"kind": "Status", "reason": "Forbidden", "message": words, "code": 403}
    cluster.faults = [("POST", "/trainjobs", Response(403, body), "before")]
    with pytest.raises(BackendError, match='"torch-distributed" not found'):
        submit(cluster)
    assert cluster.objects == {}


def test_what_a_dry_run_prints():
    """One object in the form of Trainer 2.2; no cluster is used."""
    text = str(create_scheduler("me").submit_dryrun(app(), KIND))
    job = yaml.safe_load(text)
    assert (job["kind"], job["apiVersion"]) == ("TrainJob", GROUP)
    assert set(job["spec"]) == {"runtimeRef", "trainer", "runtimePatches"}
