"""`kubernetes` on Kubernetes 1.26 to 1.36: what these versions reject, report and omit, unlike older ones."""

from __future__ import annotations

import logging

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response, refusal
from torchx.errors import BackendError
from torchx.schedulers.kubernetes.kinds.kinds import render
from torchx.schedulers.kubernetes.names import JOB, JOBSET
from torchx.schedulers.kubernetes.overlays import set_overlay
from torchx.schedulers.kubernetes.pods.facts import read_pod
from torchx.schedulers.kubernetes.pods.specs import JobRules
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, RetryPolicy, Role

DONE = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
FAILED = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 3}}}]}


def role(**fields):
    return Role("trainer", "img", entrypoint="true", num_replicas=3, resource=Resource(1, 0, 64), **fields)


@pytest.fixture
def job():
    """A submitted job: its scheduler, its id, the cluster, and the Job object."""
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(AppDef("train", [role()]), {})
    yield scheduler, app_id, cluster, cluster.of("jobs")[0]
    scheduler.close()


def condition(kind, **fields):
    return {"type": kind, "status": "True", **fields}


# -- the request -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JOB, JOBSET])
@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        ({"max_retries": 2}, 2),
        ({"max_retries": 2, "retry_policy": RetryPolicy.REPLICA}, 6),
        ({"max_retries": 1, "min_replicas": 1}, 5),
    ],
)
def test_pods_that_start_their_containers_again_have_no_failure_policy(kind, policy, limit):
    """`restartPolicy: OnFailure` excludes `podFailurePolicy` (1.26) and `backoffLimitPerIndex` (1.28)."""
    trainer = role(**policy)
    set_overlay(trainer, "kubernetes", "pod", {"spec": {"restartPolicy": "OnFailure"}})
    made = render(kind, AppDef("train", [trainer]), "train-x1", JobRules())[-1]["spec"]
    spec = made["replicatedJobs"][0]["template"]["spec"] if kind == JOBSET else made
    assert spec["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert not {"podFailurePolicy", "backoffLimitPerIndex", "maxFailedIndexes"} & spec.keys()
    whole = kind == JOBSET and "retry_policy" not in policy and "min_replicas" not in policy
    assert spec["backoffLimit"] == (0 if whole else limit)


# -- what it says ----------------------------------------------------------------------------------


def test_a_warning_of_the_server_is_passed_on_once(caplog):
    """The dry run and the creation return the same warning, which is logged once."""
    cluster = Cluster()
    text = r"would violate PodSecurity \"restricted:latest\": runAsNonRoot != true"
    answer = Response(201, {"metadata": {"uid": "u"}}, {"Warning": f'299 - "{text}"'})
    cluster.faults += [("POST", "/jobs", answer, "after"), ("POST", "/jobs", answer, "after")]
    with caplog.at_level(logging.WARNING, logger="torchx.schedulers"):
        create_scheduler("me", client=cluster).submit(AppDef("train", [role()]), {})
    said = 'the cluster warns: would violate PodSecurity "restricted:latest": runAsNonRoot != true'
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize(
    "said",
    [
        "jobs.batch \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no team label",
        'admission webhook "w" denied the request: no',
        'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
    ],
)
def test_a_policys_refusal_is_no_lack_of_rights(said):
    """Both have status 403, but only missing rights have the hint to grant them."""
    cluster = Cluster()
    cluster.faults.append(("POST", "/jobs", refusal(403, "Forbidden", said), "before"))
    with pytest.raises(BackendError, match=r"denied|violates") as error:
        create_scheduler("me", client=cluster).submit(AppDef("train", [role()]), {})
    assert "can-i" not in error.value.hint
    assert not cluster.objects


def test_a_job_that_has_given_up_makes_no_pod_again(job):
    """Since 1.31 it has FailureTarget until its last pod has ended, and only then Failed."""
    scheduler, app_id, cluster, item = job
    cluster.run_pods(item, RUNNING)
    pods = cluster.of("pods")
    pods[1]["status"] = FAILED
    item["status"] = {"conditions": [condition("FailureTarget", reason="BackoffLimitExceeded")]}
    found = scheduler.describe(app_id)
    assert (found.state, found.msg) == (
        AppState.RUNNING,
        "trainer/1 on n1: exit code 3; the others are being ended",
    )
    pods[0]["status"] = pods[2]["status"] = DONE
    item["status"]["conditions"].append(condition("Failed", reason="BackoffLimitExceeded"))
    found = scheduler.describe(app_id)
    assert (found.state, found.msg) == (AppState.FAILED, "trainer/1 on n1: exit code 3")


def test_a_job_whose_pods_have_all_ended_is_not_over_before_it_says_so(job):
    """SuccessCriteriaMet comes before Complete."""
    scheduler, app_id, cluster, item = job
    cluster.run_pods(item, DONE)
    item["status"] = {"conditions": [condition("SuccessCriteriaMet", reason="CompletionsReached")]}
    assert scheduler.describe(app_id).state is AppState.RUNNING
    item["status"]["conditions"].append(condition("Complete", reason="CompletionsReached"))
    assert scheduler.describe(app_id).state is AppState.SUCCEEDED


def test_a_replica_whose_pod_went_with_its_node_has_ended_as_its_job_says(job):
    """The status of an Indexed Job has the indexes that have ended."""
    scheduler, app_id, cluster, item = job
    cluster.run_pods(item, RUNNING)
    for key in [key for key in cluster.objects if key[2].endswith(("-0-abcde", "-1-abcde"))]:
        del cluster.objects[key]
    item["status"] = {"completedIndexes": "0", "failedIndexes": "1", "active": 1}
    states = [r.state for r in scheduler.describe(app_id).roles_statuses[0].replicas]
    assert states == [AppState.SUCCEEDED, AppState.FAILED, AppState.RUNNING]
    item["status"] = {"completedIndexes": "0,2", "failedIndexes": "1", "conditions": [condition("Failed")]}
    cluster.objects = {key: value for key, value in cluster.objects.items() if not key[0].endswith("/pods")}
    states = [r.state for r in scheduler.describe(app_id).roles_statuses[0].replicas]
    assert states == [AppState.SUCCEEDED, AppState.FAILED, AppState.SUCCEEDED]


@pytest.mark.parametrize("indexes", ["0-1,2", "0,1,2", "0-2"])
def test_numbers_come_in_ranges(job, indexes):
    """Indexes are parsed in the format of the Job controller."""
    scheduler, app_id, _, item = job
    item["status"] = {"completedIndexes": indexes}
    assert {r.state for r in scheduler.describe(app_id).roles_statuses[0].replicas} == {AppState.SUCCEEDED}


# -- nodes and the scheduler -----------------------------------------------------------------------


def lost(**fields):
    """A pod on a node that does not respond, as recorded on a real cluster."""
    conditions = [condition("Ready", status="False"), condition("ContainersReady")]
    status = {**RUNNING, "conditions": [*conditions, *fields.pop("conditions", ())]}
    return {"metadata": {"name": "x", **fields}, "spec": {"nodeName": "n7"}, "status": status}


def test_a_node_that_has_fallen_silent_is_named():
    """The status names the node, although the phase of its pods is Running for minutes."""
    view = read_pod(lost())
    assert (view.facts.state, view.facts.reason) == (AppState.RUNNING, "its node `n7` does not answer")
    view = read_pod(lost(deletionTimestamp="2026-01-01T00:05:00Z"))
    assert view.facts.reason == "its node `n7` does not answer"


def test_a_pod_that_cannot_leave_its_lost_node_says_who_took_it():
    """It remains until the node responds or is removed, and is not replaced before."""
    taken = condition("DisruptionTarget", reason="DeletionByTaintManager")
    view = read_pod(lost(deletionTimestamp="2026-01-01T00:05:00Z", conditions=[taken]))
    assert view.facts.reason == "was evicted from its node, which became unfit (DeletionByTaintManager)"


def test_a_pod_that_is_not_ready_by_a_gate_of_its_own_is_on_a_good_node():
    """A readiness gate may be set by an overlay."""
    pod = lost()
    pod["spec"]["readinessGates"] = [{"conditionType": "lb"}]
    assert read_pod(pod).facts.reason == ""


@pytest.mark.parametrize(
    "tried",
    [
        ". preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod.",
        ". no new claims to deallocate, preemption: 0/4 nodes are available: 4 Preemption is not helpful.",
        ". still not schedulable, preemption: not eligible due to preemptionPolicy=Never.",
        ".",
    ],
)
def test_what_the_scheduler_tried_in_vain_is_left_out(tried):
    """Since 1.34, several of its plugins append such messages."""
    message = "0/4 nodes are available: 3 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable"
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message + tried}]
    pod = {"metadata": {}, "spec": {}, "status": {"phase": "Pending", "conditions": conditions}}
    assert read_pod(pod).facts.reason == f"no node fits: {message}"
