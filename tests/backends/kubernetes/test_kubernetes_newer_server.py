"""An API server of 1.36's libraries: newer fields are kept, newer policies are obeyed; a test plays the controllers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from typing import Any

import pytest

from tests.backends.docker.engine import Unavailable
from tests.backends.kubernetes import cluster, newer_cluster, trainer
from tests.backends.kubernetes.jobs import Jobs, audited
from tests.backends.kubernetes.operators import defined, definitions, served, set_status
from torchx.errors import BackendError
from torchx.runs import NewRun, default_registry
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.specs import AppDef, AppState, Ready, RetryPolicy
from torchx.specs.tasks import TaskList
from torchx.specs.wishes.retries import RETRY

JOBS = "apis/batch/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture(scope="module")
def newer():
    """It is up; it is stopped again if it was not."""
    if not newer_cluster.is_built() and not os.environ.get("TORCHX_BUILD_KUBERNETES_1_36"):
        pytest.skip(
            "its server is not built yet: TORCHX_BUILD_KUBERNETES_1_36=1 does it, in 15 minutes; so does `make check-real ALL=1`"
        )
    before = set(cluster.started)
    try:
        yield newer_cluster.up()
    except Unavailable as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(e))
    finally:
        if set(cluster.started) - before:
            newer_cluster.down()


@pytest.fixture
def jobs(newer, monkeypatch, tmp_path, caplog):
    """Jobs in a namespace of its own. The server warns of every field that it does not know: it must not."""
    monkeypatch.setattr(cluster, "SERVER", newer_cluster.SERVER)
    monkeypatch.setattr(cluster, "AUDIT", newer_cluster.AUDIT)
    monkeypatch.setenv("KUBECONFIG", newer)
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path))
    namespace = f"t-{uuid.uuid4().hex[:12]}"
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    made = Jobs(namespace, "img")
    yield made
    made.close()
    cluster.call("DELETE", f"/api/v1/namespaces/{namespace}")
    assert "the cluster warns" not in caplog.text


def job_of(jobs):
    (item,) = cluster.call("GET", jobs.path("jobs", group=JOBS))["items"]
    return item, jobs.path("jobs", item["metadata"]["name"], JOBS)


def run_pods(jobs, job, status=None, *, first=None):
    """What the Job controller makes of an Indexed Job: numbered pods, in this state, or just made."""
    for k in range(first or job["spec"]["completions"]):
        template = job["spec"]["template"]
        annotations = {**template["metadata"]["annotations"], "batch.kubernetes.io/job-completion-index": str(k)}
        name = f"{job['metadata']['name']}-{k}-abcde"
        metadata = {**template["metadata"], "name": name, "annotations": annotations}
        cluster.call("POST", jobs.path("pods"), {"metadata": metadata, "spec": template["spec"]})
        if status:
            set_status(jobs.path("pods", name), status)


def condition(kind, **fields):
    return {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z", **fields}


RUNNING: dict[str, Any] = {
    "phase": "Running",
    "containerStatuses": [
        {"name": "main", "image": "img", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
    ],
}


def test_an_indexed_job_is_kept_whole(jobs):
    """Every field that is sent comes back: numbered pods, limits for each replica, the policy on failures."""
    jobs.run(num_replicas=3, max_retries=2, retry_policy=RetryPolicy.REPLICA, cfg={"kind": "job", "ttl_s": 60})
    item, _ = job_of(jobs)
    spec = item["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert (spec["backoffLimitPerIndex"], spec["ttlSecondsAfterFinished"]) == (2, 60)
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    (reference,) = item["metadata"]["ownerReferences"]
    service = cluster.call("GET", jobs.path("services", reference["name"]))
    assert service["metadata"]["uid"] == reference["uid"] and service["spec"]["publishNotReadyAddresses"] is True


def test_a_policy_on_retries_is_kept_whole(jobs):
    """As the rules on failed pods; a pod that the cluster took away, and one that ran out of memory, are attempts."""
    app = AppDef("job", [jobs.role()], metadata={RETRY: "standard"})
    app_id = jobs.run(app, cfg={"kind": "job"})
    item, path = job_of(jobs)
    rules = item["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Count", "FailJob"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert [rule["onExitCodes"]["operator"] for rule in rules[1:]] == ["In", "NotIn"]
    assert item["spec"]["backoffLimit"] == 2
    run_pods(jobs, item)
    terminated = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:09Z"}
    ran_out = {**RUNNING["containerStatuses"][0], "state": {"terminated": terminated}}
    status = {"phase": "Failed", "startTime": "2026-01-01T00:00:01Z", "containerStatuses": [ran_out]}
    set_status(jobs.path("pods", f"{item['metadata']['name']}-0-abcde"), status)
    (attempt,) = jobs.scheduler.describe(app_id).attempts
    assert (attempt.kind, attempt.again, attempt.ended - attempt.started) == ("oom", True, 8)
    set_status(path, {"failed": 1, "conditions": [condition("Failed", reason="BackoffLimitExceeded")]})
    found = jobs.scheduler.describe(app_id)
    assert (found.state, found.attempts[0].again) == (AppState.FAILED, False)


def test_the_next_attempt_is_a_copy_that_the_server_takes(jobs):
    """Of an Indexed Job as the server keeps it; with more memory, and not a second time."""
    app = AppDef("job", [jobs.role()], metadata={RETRY: "oom:2:mem*2, node:1:avoid"})
    app_id = jobs.run(app, cfg={"kind": "job"})
    item, _ = job_of(jobs)
    run_pods(jobs, item)
    terminated = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:09Z"}
    ran_out = {**RUNNING["containerStatuses"][0], "state": {"terminated": terminated}}
    set_status(
        jobs.path("pods", f"{item['metadata']['name']}-0-abcde"), {"phase": "Failed", "containerStatuses": [ran_out]}
    )
    for _ in range(2):
        found = jobs.scheduler.describe(app_id)
        assert [(a.kind, a.again, a.memory) for a in found.attempts] == [("oom", True, 2.0)]
    there = {each["metadata"]["name"]: each for each in cluster.call("GET", jobs.path("jobs", group=JOBS))["items"]}
    assert len(there) == 2
    (second,) = (each for name, each in there.items() if "-a2-" in name)
    asked = [
        each["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] for each in (item, second)
    ]
    assert asked == ["128M", "256M"]
    assert second["spec"]["completionMode"] == "Indexed"


def test_a_chain_of_six_pieces(jobs):
    """Each is a Job that the server keeps whole, made when the containers of the last one have ended."""
    metadata = {RETRY: "standard, total:6h", "torchx/timeout": "1h"}
    app_id = jobs.run(AppDef("job", [jobs.role()], metadata=metadata), cfg={"kind": "job"})
    for number in range(1, 7):
        there = cluster.call("GET", jobs.path("jobs", group=JOBS))["items"]
        assert len(there) == number
        item = max(there, key=lambda one: int(one["metadata"]["labels"]["torchx.pytorch.org/attempt"]))
        spec = item["spec"]["template"]["spec"]
        assert (spec["activeDeadlineSeconds"], item["spec"]["backoffLimit"]) == (3600, 0)
        assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][:2] == ["sh", "-c"]
        run_pods(jobs, item)
        ended = {"terminated": {"exitCode": 143, "reason": "Error", "finishedAt": "2026-01-01T01:00:00Z"}}
        one = {**RUNNING["containerStatuses"][0], "state": ended}
        late = {"phase": "Failed", "reason": "DeadlineExceeded", "startTime": "2026-01-01T00:00:00Z"}
        set_status(jobs.path("pods", f"{item['metadata']['name']}-0-abcde"), {**late, "containerStatuses": [one]})
        found = jobs.scheduler.describe(app_id)
        assert [(a.kind, a.used) for a in found.attempts] == [("timeout", 3600.0 * n) for n in range(1, number + 1)]
    assert (found.state, found.attempts[-1].why) == (AppState.RUNNING, "timeout: the total of 6h is used")


def test_the_life_of_an_indexed_job(jobs):
    """As its controller of 1.31 and later tells it, with the pods' numbers in their annotations."""
    app_id = jobs.run(num_replicas=3, cfg={"kind": "job"})
    assert jobs.scheduler.describe(app_id).msg == "its pods are not created yet"
    item, path = job_of(jobs)
    run_pods(jobs, item, RUNNING)
    set_status(path, {"active": 3, "ready": 3})
    found = jobs.scheduler.describe(app_id)
    assert [r.state for r in found.roles_statuses[0].replicas] == [AppState.RUNNING] * 3
    terminated = {"terminated": {"exitCode": 3, "reason": "Error", "message": "boom"}}
    status = {"phase": "Failed", "containerStatuses": [{**RUNNING["containerStatuses"][0], "state": terminated}]}
    set_status(jobs.path("pods", f"{item['metadata']['name']}-1-abcde"), status)
    failing = condition("FailureTarget", reason="BackoffLimitExceeded")
    set_status(path, {"active": 2, "failed": 1, "conditions": [failing]})
    found = jobs.scheduler.describe(app_id)
    assert (found.state, found.msg) == (
        AppState.RUNNING,
        "main/1: exit code 3: boom; the others are being ended",
    )
    for k in (0, 2):
        cluster.call("DELETE", jobs.path("pods", f"{item['metadata']['name']}-{k}-abcde"))
    set_status(path, {"active": 0, "conditions": [failing, condition("Failed", reason="BackoffLimitExceeded")]})
    found = jobs.scheduler.describe(app_id)
    assert (found.state, found.msg) == (AppState.FAILED, "main/1: exit code 3: boom")


def test_replicas_whose_pods_are_gone_have_ended_as_their_job_says(jobs):
    """A node that was scaled away takes them along."""
    app_id = jobs.run(num_replicas=3, cfg={"kind": "job"})
    item, path = job_of(jobs)
    run_pods(jobs, item, RUNNING)
    for k in (0, 2):
        cluster.call("DELETE", jobs.path("pods", f"{item['metadata']['name']}-{k}-abcde"))
    set_status(path, {"active": 1, "succeeded": 2, "completedIndexes": "0,2"})
    states = [r.state for r in jobs.scheduler.describe(app_id).roles_statuses[0].replicas]
    assert states == [AppState.SUCCEEDED, AppState.RUNNING, AppState.SUCCEEDED]


def test_cancel_suspends(jobs):
    """The field is kept, so that nothing else is tried; the job is known as cancelled, also to another machine."""
    app_id = jobs.run(num_replicas=2, cfg={"kind": "job"})
    with audited(jobs.namespace) as audit:
        jobs.scheduler.cancel(app_id)
    assert audit.verbs().count("patch") == 1
    spec = job_of(jobs)[0]["spec"]
    assert (spec["suspend"], spec["parallelism"]) == (True, 2)
    jobs.use("kubernetes")
    found = jobs.scheduler.describe(app_id)
    assert found.state is AppState.CANCELLED and found.roles[0].name == "main"


def test_a_job_for_kueue_is_held(jobs):
    """Made suspended, with the label of its queue."""
    app_id = jobs.run(cfg={"kind": "job", "local_queue": "team"})
    item, _ = job_of(jobs)
    assert item["spec"]["suspend"] is True and item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert jobs.scheduler.describe(app_id).msg == "it waits in the queue `team`, and this cluster has no Kueue"


def test_the_end_is_told_by_a_watch(jobs, waits):
    """One that this server's cache serves."""
    app_id = jobs.run(cfg={"kind": "job"})
    jobs.scheduler.describe(app_id)
    _, path = job_of(jobs)
    assert waits(jobs, app_id, lambda: set_status(path, {"conditions": [condition("Complete")]})) == ["watch"]
    assert jobs.scheduler.describe(app_id).state is AppState.SUCCEEDED


def test_a_watch_from_the_beginning_of_time_begins_anew(jobs, waits):
    """Who waits is not kept, whether the server says 410 or tells from there."""
    app_id = jobs.run(cfg={"kind": "job"})
    jobs.scheduler.describe(app_id)
    _, path = job_of(jobs)
    set_status(path, {"conditions": [condition("Complete")]})
    jobs.scheduler._found[app_id].version = "1"
    assert waits(jobs, app_id) == ["watch"]


@pytest.mark.timeout(600)
def test_a_thousand_replicas_are_submitted_in_few_calls_and_asked_for_in_pages(jobs):
    """By the server's own account, and in the pages of its cache."""
    with audited(jobs.namespace) as audit:
        app_id = jobs.run(num_replicas=1000, cfg={"kind": "job"})
    assert len(audit.calls()) == 5, "two checked, two made, and the version"
    item, _ = job_of(jobs)
    run_pods(jobs, item, first=501)  # two pages
    with audited(jobs.namespace) as audit:
        found = jobs.scheduler.describe(app_id)
    asked = [call["requestURI"].partition("?")[0].rpartition("/")[2] for call in audit.calls()]
    assert asked == ["jobs", "pods", "pods", "events"]  # which say why the other half is missing
    assert [r.state for r in found.roles_statuses[0].replicas] == [AppState.PENDING] * 1000


def test_an_admission_policy_is_quoted(jobs):
    """A rule of the cluster's in CEL (1.30): its words, no hint at rights, and nothing is left."""
    name = f"p-{jobs.namespace}"
    rule = {
        "apiGroups": ["batch"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["jobs"],
        "scope": "*",
    }
    # This server fills in no defaults.
    defaults = {"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent"}
    policy = {
        "matchConstraints": {**defaults, "resourceRules": [rule]},
        "validations": [
            {
                "expression": "has(object.metadata.labels.team)",
                "message": "jobs need the label team",
                "reason": "Forbidden",
            }
        ],
        "failurePolicy": "Fail",
    }
    where = {"matchResources": {**defaults, "namespaceSelector": {"matchLabels": {"policed": "yes"}}}}
    binding = {"policyName": name, "validationActions": ["Deny"], **where}
    label = {"metadata": {"labels": {"policed": "yes"}}}
    cluster.call("PATCH", f"/api/v1/namespaces/{jobs.namespace}", label, "application/merge-patch+json")
    cluster.call("POST", f"{POLICIES}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": policy})
    cluster.call("POST", f"{POLICIES}/validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": binding})
    try:
        error = refused(jobs)
        assert "denied request: jobs need the label team" in str(error)
        assert "can-i" not in error.hint
    finally:
        cluster.call("DELETE", f"{POLICIES}/validatingadmissionpolicybindings/{name}")
        cluster.call("DELETE", f"{POLICIES}/validatingadmissionpolicies/{name}")


def refused(jobs, timeout_s=240):
    """What a submission is told once the server has noticed the policy; what was made before then is left out."""
    deadline = time.monotonic() + timeout_s
    while True:
        before = len(cluster.call("GET", jobs.path("services"))["items"])
        try:
            jobs.run(cfg={"kind": "job", "validate_spec": False})
        except BackendError as e:
            assert len(cluster.call("GET", jobs.path("services"))["items"]) == before
            return e
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("kind", "group", "version", "plural"),
    [
        ("jobset", "jobset.x-k8s.io", "v1alpha2", "jobsets"),
        ("volcano", "batch.volcano.sh", "v1alpha1", "jobs"),
    ],
)
def test_custom_resources_are_taken(jobs, kind, group, version, plural):
    """By `auto`, where the server lists their group; they are found, listed and removed."""
    with served(group):
        app_id = jobs.run(AppDef("two", [jobs.role(name="a"), jobs.role(name="b", num_replicas=2)]))
        (item,) = cluster.call("GET", jobs.path(plural, group=f"apis/{group}/{version}"))["items"]
        assert item["kind"] == {"jobset": "JobSet", "volcano": "Job"}[kind]
        assert jobs.scheduler.describe(app_id).state is AppState.PENDING
        assert app_id in [job.app_id for job in jobs.scheduler.list({"namespace": jobs.namespace})]
        jobs.scheduler.delete(app_id)
        assert jobs.scheduler.describe(app_id) is None


@pytest.mark.parametrize(
    ("depends", "kept"),
    [({}, False), ({"maxItems": 1}, False), ({"maxItems": 5}, True)],
    ids=["none", "one-at-most", "several"],
)
def test_a_jobset_depends_on_what_its_version_can(jobs, depends, kept):
    """The server would drop the field, or refuse it; it is checked strictly, as JobSet's definition has it."""
    fields = {"name": {"type": "string"}, "status": {"type": "string", "enum": ["Ready", "Complete"]}}
    one = {"type": "object", "required": ["name", "status"], "properties": fields}
    opened = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    part = {"name": {"type": "string"}, "replicas": {"type": "integer"}, "template": opened}
    if depends:
        part["dependsOn"] = {"type": "array", "items": one, **depends}
    parts = {"type": "array", "items": {"type": "object", "properties": part}}
    definition = definitions()["jobset.x-k8s.io"]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"] = {"replicatedJobs": parts}
    servers = [jobs.role(name=name, num_replicas=2, port_map={"p": 80}, ready=Ready(tcp="p")) for name in ("a", "b")]
    with defined(definition):
        jobs.run(AppDef("two", [jobs.role(name="c", after=["a", "b"], ends_job=True), *servers]))
        (item,) = cluster.call("GET", jobs.path("jobsets", group="apis/jobset.x-k8s.io/v1alpha2"))["items"]
        found = {part["name"]: part.get("dependsOn") for part in item["spec"]["replicatedJobs"]}
        wanted = [{"name": name, "status": "Ready"} for name in ("a", "b")] if kept else None
        assert found == {"a": None, "b": None, "c": wanted}
        assert item["spec"]["successPolicy"] == {"operator": "Any", "targetReplicatedJobs": ["c"]}


POD_GROUPS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "scheduling.k8s.io",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["schedulingPolicy"],
                                "properties": {
                                    "schedulingPolicy": {
                                        "type": "object",
                                        "properties": {
                                            "basic": {"type": "object"},
                                            "gang": {
                                                "type": "object",
                                                "required": ["minCount"],
                                                "properties": {"minCount": {"type": "integer", "minimum": 1}},
                                            },
                                        },
                                    }
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}
"""PodGroup of scheduling.k8s.io/v1alpha2, by its published type (k8s.io/api 0.36), as far as torchx writes it."""


def test_a_gang_of_plain_jobs(jobs):
    """Strictly checked: the PodGroup, and the field of the pods, which is of the real type of a Job."""
    with defined(POD_GROUPS):
        app_id = jobs.run(
            AppDef("two", [jobs.role(name="a"), jobs.role(name="b", num_replicas=2)]), cfg={"kind": "job"}
        )
        group = cluster.call("GET", jobs.path("podgroups", app_id.partition(":")[2], "apis/scheduling.k8s.io/v1alpha2"))
        assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 3}}}
        made = cluster.call("GET", jobs.path("jobs", group=JOBS))["items"]
        fields = [job["spec"]["template"]["spec"]["schedulingGroup"] for job in made]
        assert fields == [{"podGroupName": group["metadata"]["name"]}] * 2
        for job in made:
            run_pods(jobs, job)
        waits = {"type": "PodGroupScheduled", "status": "False", "reason": "Unschedulable", "message": "2/3 pods fit"}
        path = jobs.path("podgroups", group["metadata"]["name"], "apis/scheduling.k8s.io/v1alpha2")
        set_status(path, {"conditions": [waits]})
        assert jobs.scheduler.describe(app_id).msg == "a/0 (and 2 more): its gang waits: 2/3 pods fit"
        jobs.scheduler.delete(app_id)


def test_a_gang_that_the_server_does_not_serve_is_refused(jobs):
    """Nothing is made; without being asked for, the pods are scheduled one by one."""
    with pytest.raises(BackendError, match="serves no PodGroups, which `gang=yes` needs"):
        jobs.run(num_replicas=2, cfg={"kind": "job", "gang": "yes"})
    assert cluster.call("GET", jobs.path("services"))["items"] == []
    jobs.run(num_replicas=2, cfg={"kind": "job"})
    item, _ = job_of(jobs)
    assert "schedulingGroup" not in item["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_trainjob_is_kept_whole(jobs, version):
    """Strictly checked, field by field, by the schema of either Trainer: nothing is dropped, and nothing warned of."""
    with trainer.served(version):
        role = jobs.role(num_replicas=2, overlay={"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}})
        cfg = {
            "kind": "kubeflow",
            "service_account": "me",
            "pack": "zone",
            "local_queue": "team",
            "image_secret": "ghcr",
        }
        app_id = jobs.run(role, cfg=cfg)
        (item,) = cluster.call("GET", jobs.path("trainjobs", group=trainer.PATH))["items"]
        assert ("runtimePatches" in item["spec"]) is (version == "2.2")
        assert ("podTemplateOverrides" in item["spec"]) is (version == "2.1")
        again = {
            "apiVersion": item["apiVersion"],
            "kind": "TrainJob",
            "metadata": {"name": "again"},
            "spec": item["spec"],
        }
        strictly = f"{jobs.path('trainjobs', group=trainer.PATH)}?fieldValidation=Strict&dryRun=All"
        assert cluster.call("POST", strictly, again)["spec"] == item["spec"]
        assert jobs.scheduler.describe(app_id).msg.startswith("it waits in the queue `team`")
        cluster.call(
            "PATCH",
            jobs.path("trainjobs", item["metadata"]["name"], trainer.PATH),
            {"spec": {"suspend": False}},
            "application/merge-patch+json",
        )
        names = trainer.play(jobs)
        for name in names:
            set_status(jobs.path("pods", name), RUNNING)
        assert jobs.scheduler.describe(app_id).state is AppState.RUNNING
        jobs.scheduler.cancel(app_id)
        assert jobs.scheduler.describe(app_id).state is AppState.RUNNING, "its pods are still there"
        for name in names:
            cluster.call("DELETE", f"{jobs.path('pods', name)}?gracePeriodSeconds=0")
        assert jobs.scheduler.describe(app_id).state is AppState.CANCELLED
        jobs.scheduler.delete(app_id)
        assert jobs.scheduler.describe(app_id) is None


def test_what_an_older_trainer_cannot_do_is_refused(jobs):
    """Its server would drop the field, and the job would run for ever."""
    with trainer.served("2.1"), pytest.raises(BackendError, match=r"does not support time limits; this needs 2\.2"):
        jobs.run(cfg={"kind": "kubeflow", "deadline_s": 60})


def test_a_pytorchjob_is_kept_whole(jobs):
    """Strictly checked by the schema of Training Operator; held and let go by its policy."""
    with trainer.pytorch_served():
        role = jobs.role(num_replicas=2, overlay={"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}})
        app_id = jobs.run(role, cfg={"kind": "pytorchjob", "local_queue": "team", "ttl_s": 60, "deadline_s": 600})
        (item,) = cluster.call("GET", jobs.path("pytorchjobs", group=trainer.OPERATOR))["items"]
        again = {
            "apiVersion": item["apiVersion"],
            "kind": "PyTorchJob",
            "metadata": {"name": "again"},
            "spec": item["spec"],
        }
        strictly = f"{jobs.path('pytorchjobs', group=trainer.OPERATOR)}?fieldValidation=Strict&dryRun=All"
        assert cluster.call("POST", strictly, again)["spec"] == item["spec"]
        assert jobs.scheduler.describe(app_id).msg.startswith("it waits in the queue `team`")
        path = jobs.path("pytorchjobs", item["metadata"]["name"], trainer.OPERATOR)
        go = {"spec": {"runPolicy": {"suspend": False}}}
        cluster.call("PATCH", path, go, "application/merge-patch+json")
        names = trainer.play_pytorch(jobs)
        for name in names:
            set_status(jobs.path("pods", name), RUNNING)
        assert jobs.scheduler.describe(app_id).state is AppState.RUNNING
        jobs.scheduler.cancel(app_id)
        assert cluster.call("GET", path)["spec"]["runPolicy"]["suspend"] is True
        for name in names:
            cluster.call("DELETE", f"{jobs.path('pods', name)}?gracePeriodSeconds=0")
        assert jobs.scheduler.describe(app_id).state is AppState.CANCELLED


@pytest.fixture
def config_maps(monkeypatch):
    """By name: this server has none, so they are kept here."""
    kept = {}
    create, patch = KubeApi.create, KubeApi.patch

    def make(api, item, **how):
        if item["kind"] != "ConfigMap":
            return create(api, item, **how)
        kept[item["metadata"]["name"]] = item
        return {**item, "metadata": {**item["metadata"], "uid": "of-the-test"}}

    def change(api, path, content):
        if "/configmaps/" not in path:
            return patch(api, path, content)
        kept[path.rpartition("/")[2]]["data"].update(content["data"])
        return {}

    monkeypatch.setattr(KubeApi, "create", make)
    monkeypatch.setattr(KubeApi, "patch", change)
    return kept


def test_a_sweep_is_one_indexed_job(jobs, config_maps):
    """Its fields are kept, its pods are asked for but for those that have succeeded, and one task is cancelled."""
    role = jobs.role("echo {v}", "w")
    info = jobs.scheduler.submit_dryrun(AppDef("sweep", [role]), {"namespace": jobs.namespace})
    tasks = TaskList(names=["v"], points=[(f"it's\n{k}",) for k in range(6)], max_parallel=3)
    jobs.scheduler.check_tasks(info, tasks)
    app_id = jobs.scheduler.submit_tasks(info, tasks)
    item, path = job_of(jobs)
    spec = item["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == (6, 3, 0)
    assert "maxFailedIndexes" not in spec
    values = config_maps[f"{info.request.app_id}-values"]["data"]
    assert len(values["values"].splitlines()) == 6
    run_pods(jobs, item, RUNNING, first=3)
    names = [f"{item['metadata']['name']}-{k}-abcde" for k in range(3)]
    set_status(jobs.path("pods", names[0]), {"phase": "Succeeded"})
    terminated = {**RUNNING["containerStatuses"][0], "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    set_status(jobs.path("pods", names[1]), {"phase": "Failed", "containerStatuses": [terminated]})
    set_status(path, {"completedIndexes": "0", "failedIndexes": "1", "succeeded": 1, "failed": 1})
    jobs.scheduler.cancel_task(app_id, 5)
    assert values["skipped"] == "5\n"
    found = jobs.scheduler.describe(app_id).tasks
    assert [s.name for s in found.states] == ["SUCCEEDED", "FAILED", "RUNNING", "PENDING", "PENDING", "CANCELLED"]
    assert found.exit_codes[1] == 3
    assert jobs.scheduler.describe_tasks(app_id, [1])[0].msg.startswith("w/1: exit code 3")
    jobs.scheduler.cancel_task(app_id, 2)
    assert not [p for p in cluster.call("GET", jobs.path("pods"))["items"] if p["metadata"]["name"] == names[2]]
    jobs.scheduler.cancel(app_id)
    assert [s.name for s in jobs.scheduler.describe(app_id).tasks.states][2:] == ["CANCELLED"] * 4


def test_hundreds_of_jobs_are_watched_once(jobs, tmp_path):
    """However many look: one of them asks for all by some lists, and listens; a change reaches everybody."""
    registry, count = default_registry(), int(os.environ.get("WATCHED_JOBS", "500"))
    for _ in range(count):
        handle = f"kubernetes://tests/{jobs.run(cfg={'kind': 'job'})}"
        registry.submitted(registry.begin(NewRun(scheduler="kubernetes", session="tests", name="job")), handle)
    registry.close()
    outs = [tmp_path / f"watcher{k}" for k in range(int(os.environ.get("WATCHERS", "4")))]
    argv = [sys.executable, "-m", "torchx", "watch", "--json"]

    def told(state: str, times: int) -> None:
        deadline = time.monotonic() + 120
        while any(out.read_text().count(f'"state": "{state}"') < times for out in outs):
            assert time.monotonic() < deadline, [out.read_text().count(f'"{state}"') for out in outs]
            time.sleep(0.05)

    with contextlib.ExitStack() as stack, audited(jobs.namespace) as audit:
        for out in outs:
            file = stack.enter_context(out.open("w"))
            stack.callback(stack.enter_context(subprocess.Popen(argv, stdout=file)).kill)
        told("PENDING", count)
        first, now = -1, len(audit.calls())
        while now > first:  # a watch begins with all that there is
            assert now < count, audit.verbs()[-20:]  # and lasts
            time.sleep(6)
            first, now = now, len(audit.calls())
        item = cluster.call("GET", jobs.path("jobs", group=JOBS) + "?limit=1")["items"][0]
        began = time.monotonic()
        done = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:20Z", "succeeded": 1}
        conditions = [condition("SuccessCriteriaMet"), condition("Complete")]
        set_status(jobs.path("jobs", item["metadata"]["name"], JOBS), {**done, "conditions": conditions})
        told("SUCCEEDED", 1)
        took = time.monotonic() - began
        later = audit.verbs()[first:]
    print(f"{count} Jobs, {len(outs)} watch: {first} requests to begin, then {later}; told after {took:.2f} s")
    assert first + len(later) < count  # some looks at all, two watches; why there are no pods is asked of 50 jobs
