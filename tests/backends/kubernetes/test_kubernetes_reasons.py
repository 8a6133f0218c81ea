"""Why a job waits or failed, on the real node, in the words that a user sees."""

from __future__ import annotations

import threading
import time

import pytest

from tests.backends.kubernetes import cluster
from torchx.errors import BackendError
from torchx.specs import AppDef, AppState, is_terminal

NODE_PATH = "/api/v1/nodes/ghost"


def test_a_pod_that_fills_its_disk_is_evicted(jobs):
    """By the kubelet, which says what was too much."""
    volume = {"name": "small", "emptyDir": {"sizeLimit": "1Mi"}}
    main = {"name": "main", "volumeMounts": [{"name": "small", "mountPath": "/small"}]}
    script = "head -c 5000000 /dev/zero > /small/x; sleep 3600"
    app_id = jobs.run(script, overlay={"spec": {"volumes": [volume], "containers": [main]}})
    found = jobs.until(app_id)
    assert found.state is AppState.FAILED
    assert found.msg.startswith("main/0 on node1: was evicted from its node (Evicted): Usage of EmptyDir volume")


def test_a_pod_whose_node_is_lost_is_said_and_made_again(jobs):
    """A node that nobody runs, bound by hand; when it is removed, the cluster removes the pod, and the job makes another."""
    taint = {"key": "ghost", "effect": "NoSchedule"}
    cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": "ghost"}, "spec": {"taints": [taint]}})
    try:
        app_id = jobs.run(
            max_retries=1, overlay={"spec": {"nodeName": "ghost", "tolerations": [{"operator": "Exists"}]}}
        )
        jobs.until(app_id, lambda _: jobs.pods(app_id))
        (pod,) = jobs.pods(app_id)
        path = jobs.path("pods", f"{pod['metadata']['name']}/status")
        # What the node controller writes of a pod whose node has fallen silent, and what it does next.
        lost = {"status": {"phase": "Failed", "reason": "NodeLost", "message": "Node ghost is no longer ready"}}
        cluster.call("PATCH", path, lost, "application/merge-patch+json")
        waits = "main/0: it waits for its node `ghost` to start it"
        why = "its node was lost (NodeLost): Node ghost is no longer ready"
        told = (AppState.PENDING, f"{waits}; restarted because it failed: {why}", 1)
        jobs.until(app_id, lambda job: (job.state, job.msg, job.num_restarts) == told)
        assert len(jobs.pods(app_id)) == 2
    finally:
        jobs.scheduler.delete(app_id)
        cluster.call("DELETE", NODE_PATH)


def test_a_failed_pod_is_made_again_and_the_job_goes_on(jobs, gate):
    """Between two tries the job runs, and who waits is not told of its end."""
    again = f"if [ -e /gate/again ]; then {gate.wait('seen')}; fi; touch /gate/again; exit 3"
    app_id = jobs.run(again, max_retries=1, mounts=[gate.mount])
    found = jobs.until(app_id, lambda job: "exit code 3" in job.msg and "is being restarted" in job.msg)
    assert not is_terminal(found.state)
    gate.open("seen")
    found = jobs.until(app_id)
    assert (found.state, found.num_restarts) == (AppState.FAILED, 1)


@pytest.fixture
def refused(jobs, eventually):
    """Waits until the server has noticed what makes it refuse a pod or a Job."""

    def wait(word, plural="jobs", group="apis/batch/v1"):
        pod = {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}
        spec = {"template": {"spec": pod}} if plural == "jobs" else pod
        path = f"{jobs.path(plural, group=group)}?dryRun=All"
        trial = {"metadata": {"name": "x"}, "spec": spec}
        eventually(lambda: word in cluster.ask("POST", path, trial)[1], timeout_s=240)

    return wait


@pytest.fixture
def quota(jobs, refused):
    """None may be made of one kind of objects."""

    def make(name, kind):
        spec = {"hard": {kind: "0"}}
        cluster.call("POST", jobs.path("resourcequotas"), {"metadata": {"name": name}, "spec": spec})
        refused("exceeded quota", *(("pods", "api/v1") if kind == "pods" else ()))

    return make


def test_an_exceeded_quota_is_said(jobs, quota):
    """The pods cannot be made: only an event of the Job knows."""
    quota("small", "pods")
    app_id = jobs.run()
    found = jobs.until(app_id, lambda job: "exceeded quota: small, requested: pods=1" in job.msg)
    assert found.state is AppState.PENDING and "its pods cannot be created: " in found.msg, found


def test_a_quota_on_jobs_refuses_the_submission(jobs, quota):
    """In the server's words; the Service that was made before is gone."""
    quota("none", "count/jobs.batch")
    with pytest.raises(BackendError, match="exceeded quota: none"):
        jobs.run(cfg={"validate_spec": False})
    assert cluster.call("GET", jobs.path("services"))["items"] == []


@pytest.fixture
def webhook(jobs, refused):
    """Registers one for Jobs of the test's namespace, which it is told by a label."""
    made = []

    def register(version="v1", **fields):
        name = f"{jobs.namespace}.torchx.test"
        label = {"metadata": {"labels": {"hooked": jobs.namespace}}}
        cluster.call("PATCH", f"/api/v1/namespaces/{jobs.namespace}", label, "application/merge-patch+json")
        rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["CREATE"]}
        hook = {
            "name": name,
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"hooked": jobs.namespace}},
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
            **fields,
        }
        path = f"/apis/admissionregistration.k8s.io/{version}/validatingwebhookconfigurations"
        cluster.call("POST", path, {"metadata": {"name": name}, "webhooks": [hook]})
        made.append(f"{path}/{name}")
        refused("webhook")

    yield register
    for path in made:
        cluster.call("DELETE", path)


def test_a_webhook_that_refuses_is_quoted(jobs, webhook, tmp_path):
    """A policy of the cluster's: its name and its words."""
    from tests.backends.kubernetes.webhook import refusing

    with refusing(tmp_path, "jobs need a cost-centre label") as (url, authority):
        webhook(sideEffects="None", clientConfig={"url": url, "caBundle": authority}, failurePolicy="Fail")
        with pytest.raises(BackendError) as error:
            jobs.run()
    assert f'admission webhook "{jobs.namespace}.torchx.test" denied the request: jobs need a cost-centre' in str(
        error.value
    )
    assert cluster.call("GET", jobs.path("services"))["items"] == []


def test_a_webhook_that_does_not_answer_is_named(jobs, webhook):
    """`failurePolicy: Fail`: nothing is made, and it is said whose fault it is."""
    webhook(sideEffects="None", clientConfig={"url": "https://127.0.0.1:9/"}, failurePolicy="Fail")
    with pytest.raises(BackendError, match=r"failed calling webhook .*\.torchx\.test"):
        jobs.run()
    assert cluster.call("GET", jobs.path("services"))["items"] == []


def test_a_webhook_that_cannot_be_asked_beforehand_is_no_obstacle(jobs, webhook):
    """It knows no dry run: the check is left out, and the job is made."""
    webhook("v1beta1", sideEffects="Unknown", clientConfig={"url": "https://127.0.0.1:9/"}, failurePolicy="Ignore")
    assert jobs.until(jobs.run()).state is AppState.SUCCEEDED


def test_what_the_server_warns_of_is_passed_on_once(jobs, caplog):
    """A form that is going to be removed, or pods that a policy will refuse: an answer's `Warning` header, twice."""
    from tests.backends.kubernetes.operators import definitions, served

    said = "this form of JobSets is old"
    name = definitions()["jobset.x-k8s.io"]["metadata"]["name"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    with served("jobset.x-k8s.io"):
        versions = cluster.call("GET", path)["spec"]["versions"]
        versions[0].update(deprecated=True, deprecationWarning=said)
        cluster.call("PATCH", path, {"spec": {"versions": versions}}, "application/merge-patch+json")
        deadline = time.monotonic() + 240
        while said not in caplog.text:
            assert time.monotonic() < deadline
            jobs.run(cfg={"kind": "jobset"})
        jobs.run(cfg={"kind": "jobset"})
    assert [r.getMessage() for r in caplog.records].count(f"the cluster warns: {said}") == 1


def test_a_volume_that_is_not_there_is_said(jobs):
    """Of a pod that does not start, the event that says why: without it there is but `ContainerCreating`."""
    app_id = jobs.run(cfg={"secret_files": {"/s": "no-such-secret"}})
    said = "its container is being created (ContainerCreating): MountVolume.SetUp failed"
    found = jobs.until(app_id, lambda job: job.msg.startswith(said) and "no-such-secret" in job.msg)
    assert found.state is AppState.PENDING


def test_a_key_of_a_secret_that_is_not_there_is_said(jobs):
    """CreateContainerConfigError, and which."""
    app_id = jobs.run(env={"T": "[SECRET]nobody/key"})
    said = 'its container cannot be configured (CreateContainerConfigError): secret "nobody" not found'
    jobs.until(app_id, lambda job: said in job.msg)


def test_a_job_with_a_ttl_takes_its_service_with_it(jobs, eventually):
    """Nothing is left of it, and its status is that nobody knows it."""
    app_id = jobs.run(cfg={"ttl_s": 1})
    kinds = (("services",), ("jobs", "", "apis/batch/v1"))
    eventually(lambda: not any(cluster.call("GET", jobs.path(*kind))["items"] for kind in kinds), timeout_s=240)
    eventually(lambda: jobs.scheduler.describe(app_id) is None)  # its pods go last


def test_a_role_that_a_ttl_took_had_ended(jobs, gate, eventually):
    """The other role goes on, and the job succeeds with it; who waits for it is told."""
    quick, slow = jobs.role(name="quick"), jobs.role(gate.wait("go"), name="slow", mounts=[gate.mount])
    app_id = jobs.run(AppDef("two", [quick, slow]), cfg={"ttl_s": 8})
    kind = ("jobs", "", "apis/batch/v1")
    eventually(lambda: len(cluster.call("GET", jobs.path(*kind))["items"]) == 1, timeout_s=240)
    found = jobs.until(app_id, lambda job: job.roles_statuses[1].replicas[0].state is AppState.RUNNING)
    assert found.state is AppState.RUNNING
    assert found.roles_statuses[0].replicas[0].state is AppState.SUCCEEDED
    gate.open("go")
    while (now := jobs.scheduler.describe(app_id)) is not None and now.state is not AppState.SUCCEEDED:
        jobs.scheduler.wait_for_end(app_id, 10)
    assert now is not None


def test_who_waits_for_a_job_that_kubectl_deletes(torchx, image, namespace, eventually):
    """It ends with an exit code of its own, and the last state; what is left can be deleted by torchx."""
    jobs, services = (f"/{group}/namespaces/{namespace}" for group in ("apis/batch/v1", "api/v1"))

    def remove() -> None:
        eventually(lambda: cluster.call("GET", f"{jobs}/jobs")["items"], timeout_s=240)
        eventually(lambda: '"RUNNING"' in torchx("status", "--json", "@last", code=None).stdout, timeout_s=240)
        for item in cluster.call("GET", f"{jobs}/jobs")["items"]:
            cluster.call("DELETE", f"{jobs}/jobs/{item['metadata']['name']}?propagationPolicy=Background")

    kubectl = threading.Thread(target=remove)
    kubectl.start()
    done = torchx("run", "--wait", "utils.sh", "--image", image, "sleep", "600", code=7)
    kubectl.join()
    assert "no longer knows this job; it was last seen" in done.stderr
    torchx("delete", "--force", done.stdout.strip())
    eventually(lambda: not cluster.call("GET", f"{services}/services")["items"])


def test_the_image_that_really_runs_is_told(jobs):
    """By its digest, or the engine's id of it."""
    from torchx.specs.images import image_digests

    app_id = jobs.run()
    found = jobs.until(app_id)
    assert image_digests(found.roles)["main"].rpartition("@")[2].startswith("sha256:")
