"""JobSets, Volcano jobs, AppWrappers and Kueue on a real API server; a test plays their controllers."""

from __future__ import annotations

import pytest

from tests.backends.kubernetes import cluster, trainer
from tests.backends.kubernetes.jobs import audited
from tests.backends.kubernetes.operators import served, set_status
from torchx.errors import BackendError
from torchx.schedulers.kubernetes import client as kube_api
from torchx.specs import AppDef, AppState

JOBSET = "apis/jobset.x-k8s.io/v1alpha2"
VOLCANO = "apis/batch.volcano.sh/v1alpha1"
NEW_MCAD = "apis/workload.codeflare.dev/v1beta2"
OLD_MCAD = "apis/mcad.ibm.com/v1beta1"


@pytest.fixture(scope="module", autouse=True)
def operators(kubeconfig):
    """All of them but JobSet, by which `auto` would choose."""
    with served("batch.volcano.sh", "bus.volcano.sh", "kueue.x-k8s.io", "workload.codeflare.dev", "mcad.ibm.com"):
        yield


@pytest.fixture
def jobsets(operators):
    with served("jobset.x-k8s.io"):
        yield


def condition(kind, status="True", **fields):
    return {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:10Z", **fields}


def one(jobs, group, plural):
    (item,) = cluster.call("GET", jobs.path(plural, group=group))["items"]
    return item, jobs.path(plural, item["metadata"]["name"], group)


def listed(jobs, app_id):
    return {job.app_id: job.state for job in jobs.scheduler.list({"namespace": jobs.namespace})}[app_id]


def check(jobs, app_id, path, steps):
    """Each status that a controller may write, and what is then said."""
    for status, state, msg in steps:
        set_status(path, status)
        found = jobs.scheduler.describe(app_id)
        assert (found.state, found.msg if msg is not None else None) == (state, msg), status
        assert listed(jobs, app_id) is state or not msg, status


def test_a_jobset_is_chosen_where_the_cluster_has_them(jobs, jobsets):
    """By `auto`; its states, messages, list, cancel and delete."""
    app_id = jobs.run(AppDef("set", [jobs.role(name="a"), jobs.role(name="b", num_replicas=2)]))
    item, path = one(jobs, JOBSET, "jobsets")
    assert [job["name"] for job in item["spec"]["replicatedJobs"]] == ["a", "b"]
    failed = condition("Failed", reason="FailedJobs", message="jobset failed due to one or more job failures")
    check(
        jobs,
        app_id,
        path,
        [
            ({"restarts": 1}, AppState.PENDING, "its pods are gone, and are not created again yet"),
            ({"conditions": [condition("Completed")]}, AppState.SUCCEEDED, None),
            ({"conditions": [failed]}, AppState.FAILED, "one of its jobs failed (FailedJobs); after 1 restart"),
            ({"conditions": None, "restarts": None}, AppState.PENDING, "its pods are not created yet"),
        ],
    )
    jobs.scheduler.cancel(app_id)
    assert one(jobs, JOBSET, "jobsets")[0]["spec"]["suspend"] is True
    assert jobs.scheduler.describe(app_id).state is AppState.CANCELLED is listed(jobs, app_id)
    jobs.scheduler.delete(app_id)
    assert jobs.scheduler.describe(app_id) is None


def test_volcano_is_chosen_where_the_cluster_has_that_alone(jobs):
    """By `auto`; its phases, list, abort by a Command, delete."""
    app_id = jobs.run(num_replicas=2)
    item, path = one(jobs, VOLCANO, "jobs")
    assert (item["spec"]["minAvailable"], len(item["spec"]["tasks"])) == (2, 2)
    asked = jobs.scheduler.describe(app_id)
    assert (asked.state, asked.msg) == (AppState.PENDING, "Volcano has not processed it yet: is it installed?")
    state = lambda phase, **fields: {"state": {"phase": phase, **fields}}  # noqa: E731  # short
    check(
        jobs,
        app_id,
        path,
        [
            (
                state("Pending", message="not enough resource in cluster"),
                AppState.PENDING,
                "not enough resource in cluster",
            ),
            (state("Running", message=None), AppState.RUNNING, None),
            (state("Restarting"), AppState.RUNNING, None),
            (state("Completing"), AppState.RUNNING, None),
            (state("Failed", reason="PodFailed"), AppState.FAILED, "PodFailed"),
            (state("Aborted", reason=None), AppState.CANCELLED, None),
            (state("Terminated"), AppState.CANCELLED, None),
            (state("Completed"), AppState.SUCCEEDED, None),
            (state("Odd"), AppState.UNKNOWN, "its phase is `Odd`"),
            (state("Running"), AppState.RUNNING, None),
        ],
    )
    for _ in range(2):
        jobs.scheduler.cancel(app_id)
    command, _ = one(jobs, "apis/bus.volcano.sh/v1alpha1", "commands")
    assert command["action"] == "AbortJob" and command["target"]["name"] == item["metadata"]["name"]
    assert command["target"]["uid"] == item["metadata"]["uid"]
    jobs.scheduler.delete(app_id)
    assert jobs.scheduler.describe(app_id) is None


def test_a_named_queue_is_volcanos(jobs, jobsets):
    """Whatever else the cluster has."""
    jobs.run(cfg={"queue": "gpu", "priority_class": "high"})
    item, _ = one(jobs, VOLCANO, "jobs")
    assert (item["spec"]["queue"], item["spec"]["priorityClassName"]) == ("gpu", "high")


def test_a_watch_tells_of_the_end_of_a_custom_object(jobs, waits):
    """By one call, and long before who waits would look for himself."""
    app_id = jobs.run(cfg={"kind": "volcano"})
    _, path = one(jobs, VOLCANO, "jobs")
    set_status(path, {"state": {"phase": "Running"}})
    jobs.scheduler.describe(app_id)
    assert waits(jobs, app_id, lambda: set_status(path, {"state": {"phase": "Completed"}})) == ["watch"]
    assert jobs.scheduler.describe(app_id).state is AppState.SUCCEEDED


def test_a_watch_from_too_long_ago_begins_anew(jobs, waits):
    """410: the next look is a new one, and who waits is not kept."""
    app_id = jobs.run(cfg={"kind": "volcano"})
    jobs.scheduler.describe(app_id)
    jobs.scheduler._found[app_id].version = "1"
    assert waits(jobs, app_id) == ["watch"]


# -- Kubeflow Trainer ------------------------------------------------------------------------------


def over(found):
    """Whether each replica has ended."""
    return all(r.state is AppState.SUCCEEDED for role in found.roles_statuses for r in role.replicas)


def test_a_trainjob_runs(jobs):
    """With its number, the name of rank 0 and its logs, in pods as Trainer makes them; then it has ended, by its conditions."""
    with trainer.served("2.2"):
        app_id = jobs.run(
            "echo $TORCHX_REPLICA_ID $TORCHX_RANK0_HOST; df /dev/shm >/dev/null",
            num_replicas=2,
            cfg={"kind": "kubeflow"},
        )
        item, path = one(jobs, trainer.PATH, "trainjobs")
        name = item["metadata"]["name"]
        trainer.play(jobs)
        jobs.until(app_id, over, timeout_s=120)
        assert [jobs.log(app_id, k=k) for k in (0, 1)] == [[f"{k} {name}-node-0-0.{name}"] for k in (0, 1)]
        set_status(path, {"conditions": [condition("Complete", reason="JobsCompleted")]})
        assert jobs.scheduler.describe(app_id).state is AppState.SUCCEEDED is listed(jobs, app_id)


def test_a_pytorchjob_runs(jobs):
    """As workers, in pods as Training Operator makes them: each with its number and the name of the first."""
    with trainer.pytorch_served():
        app_id = jobs.run(
            "echo $TORCHX_REPLICA_ID $TORCHX_RANK0_HOST; df /dev/shm >/dev/null",
            num_replicas=2,
            cfg={"kind": "pytorchjob"},
        )
        item, path = one(jobs, trainer.OPERATOR, "pytorchjobs")
        name = item["metadata"]["name"]
        trainer.play_pytorch(jobs)
        jobs.until(app_id, over, timeout_s=120)
        assert [jobs.log(app_id, k=k) for k in (0, 1)] == [[f"{k} {name}-worker-0"] for k in (0, 1)]
        set_status(path, {"conditions": [condition("Succeeded", reason="PyTorchJobSucceeded")]})
        assert jobs.scheduler.describe(app_id).state is AppState.SUCCEEDED is listed(jobs, app_id)


# -- Kueue -----------------------------------------------------------------------------------------


def test_a_cluster_that_cannot_suspend_jobs_is_no_place_for_a_queue(jobs):
    """1.20 would run it at once, past the queue."""
    with pytest.raises(BackendError, match=r"Kubernetes 1\.20 cannot suspend"):
        jobs.run(cfg={"local_queue": "team", "kind": "job"})
    assert cluster.call("GET", jobs.path("jobs", group="apis/batch/v1"))["items"] == []


def test_a_job_waits_for_kueue_and_is_taken_out_of_its_queue(jobs, jobsets):
    """Suspended until admitted; what Kueue says is told; a cancelled one is deactivated, for Kueue would start it again."""
    app_id = jobs.run(cfg={"local_queue": "team"})
    item, _ = one(jobs, JOBSET, "jobsets")
    assert item["spec"]["suspend"] is True
    assert item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert jobs.scheduler.describe(app_id).msg == "it waits in the queue `team`"
    labels = {"kueue.x-k8s.io/job-uid": item["metadata"]["uid"]}
    group = "apis/kueue.x-k8s.io/v1beta1"
    workload = {"apiVersion": group[5:], "kind": "Workload", "metadata": {"name": "w", "labels": labels}, "spec": {}}
    cluster.call("POST", jobs.path("workloads", group=group), workload)
    said = condition("QuotaReserved", "False", reason="Pending", message="couldn't assign flavors: insufficient quota")
    set_status(jobs.path("workloads", "w", group), {"conditions": [said]})
    found = jobs.scheduler.describe(app_id)
    assert found.state is AppState.PENDING
    assert found.msg == "it waits in the queue `team`: couldn't assign flavors: insufficient quota"
    preempted = [condition("Evicted", reason="Preempted"), condition("Preempted", reason="InClusterQueue")]
    set_status(jobs.path("workloads", "w", group), {"conditions": [said, *preempted]})
    (attempt,) = jobs.scheduler.describe(app_id).attempts
    assert (attempt.kind, attempt.cause) == (
        "preempted",
        "it was preempted by a job of higher priority in its cluster queue",
    )
    assert listed(jobs, app_id) is AppState.PENDING
    jobs.scheduler.cancel(app_id)
    assert cluster.call("GET", jobs.path("workloads", "w", group))["spec"]["active"] is False
    assert jobs.scheduler.describe(app_id).state is AppState.CANCELLED


# -- MCAD ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "group", "word", "steps"),
    [
        ("v1beta2", NEW_MCAD, "phase", ["Suspended", "Resuming", "Running", "Resetting", "Succeeded", "Failed"]),
        ("v1beta1", OLD_MCAD, "state", ["Pending", "Pending", "Running", "Pending", "Completed", "Failed"]),
    ],
)
def test_an_appwrapper_of_either_form(jobs, form, group, word, steps):
    """States, messages, list; the pods in it are those that `kubernetes` makes."""
    jobs.use("kubernetes_mcad")
    app_id = jobs.run(AppDef("two", [jobs.role(name="a"), jobs.role(name="b")]), cfg={"appwrapper_version": form})
    _, path = one(jobs, group, "appwrappers")
    asked = jobs.scheduler.describe(app_id)
    assert (asked.state, asked.msg) == (AppState.SUBMITTED, "MCAD has not processed it yet: is it installed?")
    wanted = [AppState.PENDING] * 2 + [AppState.PENDING, AppState.PENDING, AppState.SUCCEEDED, AppState.FAILED]
    for step, state in zip(steps, wanted, strict=True):
        set_status(path, {word: step, "conditions": [condition("Any", message="says MCAD")]})
        found = jobs.scheduler.describe(app_id)
        assert found.state is state, step
        assert found.msg != "says MCAD", "a condition that does not speak for the state"
    assert [role.name for role in found.roles] == ["a", "b"]
    assert listed(jobs, app_id) is AppState.FAILED
    jobs.scheduler.delete(app_id)
    assert jobs.scheduler.describe(app_id) is None


@pytest.mark.parametrize(("form", "group"), [("v1beta2", NEW_MCAD), ("v1beta1", OLD_MCAD)])
def test_the_pods_of_an_appwrapper_run_as_they_are(jobs, form, group):
    """What MCAD would make of it is made by the test, from what lies in the wrapper: they run, log, and are told of."""
    jobs.use("kubernetes_mcad")
    app_id = jobs.run(
        "echo I am $TORCHX_REPLICA_ID of $TORCHX_RANK0_HOST", num_replicas=2, cfg={"appwrapper_version": form}
    )
    item, path = one(jobs, group, "appwrappers")
    name = item["metadata"]["name"]
    parts = (
        [part["template"] for part in item["spec"]["components"]]
        if form == "v1beta2"
        else [part["generictemplate"] for part in item["spec"]["resources"]["GenericItems"]]
    )
    plurals = {"Pod": "pods", "Service": "services"}
    for part in parts:
        cluster.call("POST", jobs.path(plurals[part["kind"]]), part)
    set_status(path, {"phase" if form == "v1beta2" else "state": "Running"})
    found = jobs.until(app_id)
    assert found.state is AppState.SUCCEEDED, found.msg
    assert jobs.log(app_id, k=1) == [f"I am 1 of {name}-main-0.{name}"]


def test_an_appwrapper_is_cancelled(jobs):
    """The newer form is suspended, the older one removed."""
    jobs.use("kubernetes_mcad")
    new = jobs.run()
    jobs.scheduler.cancel(new)
    assert one(jobs, NEW_MCAD, "appwrappers")[0]["spec"]["suspend"] is True
    assert jobs.scheduler.describe(new).state is AppState.CANCELLED
    old = jobs.run(cfg={"appwrapper_version": "v1beta1"})
    jobs.scheduler.cancel(old)
    assert jobs.scheduler.describe(old) is None


# -- a thousand replicas ---------------------------------------------------------------------------


@pytest.fixture
def newer(monkeypatch):
    """The requests for a cluster that numbers pods: this one, of 1.20, takes them, and only lets the mode fall."""
    monkeypatch.setattr(kube_api.KubeApi, "version", lambda self: (1, 30))


@pytest.mark.timeout(600)
def test_a_thousand_replicas_are_submitted_in_few_calls_and_asked_for_in_pages(jobs, newer, eventually):
    """By the API server's own account: as many calls as for two replicas; status in pages of 500."""
    nobody = {"spec": {"schedulerName": "nobody"}}
    counts = []
    for replicas in (2, 1000):
        with audited(jobs.namespace) as audit:
            app_id = jobs.run(num_replicas=replicas, overlay=nobody, cfg={"kind": "job"})
        counts.append(len(audit.calls()))
    assert counts == [4, 4], "two checked and two made; and one for the version, which is made up here"
    name = f"{app_id.partition(':')[2]}-main"
    eventually(
        lambda: cluster.call("GET", jobs.path("jobs", name, "apis/batch/v1"))["status"].get("active") == 1000,
        timeout_s=500,
        every_s=1,
    )
    with audited(jobs.namespace) as audit:
        found = jobs.scheduler.describe(app_id)
    asked = [call["requestURI"].partition("?")[0].rpartition("/")[2] for call in audit.calls()]
    # A third page where the controller of 1.20 has just made a few pods more than it was to, which it takes away again.
    assert asked in (["jobs", "pods", "pods"], ["jobs", "pods", "pods", "pods"])
    assert len(found.roles_statuses[0].replicas) == 1000
    jobs.scheduler.delete(app_id)
