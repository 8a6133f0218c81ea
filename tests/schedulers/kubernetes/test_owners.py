"""What each kind of owner says of itself, and what follows for its job, its roles and its replicas: tables with all rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.answers import definition, facts_of, lacks_pods
from torchx.schedulers.kubernetes.names import APPWRAPPER, JOB, JOBSET, KUBEFLOW, OLD_APPWRAPPER, PYTORCH, VOLCANO
from torchx.schedulers.kubernetes.owners import (
    JobObjects,
    Owner,
    appwrapper_state,
    is_elastic,
    is_suspended,
    is_sweep,
    number_of,
    read_owner,
)
from torchx.schedulers.kubernetes.pods.facts import unix_time
from torchx.schedulers.kubernetes.reasons import ended, why_failed
from torchx.specs import AppDef, AppState, Role
from torchx.specs.images import image_digests
from torchx.specs.serialize import appdef_to_dict

P, R, S, F, C, U = (AppState[name] for name in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "UNKNOWN"))
CANCELLED, STOPPED = {names.ANNOTATION_CANCELLED: "1"}, {names.ANNOTATION_STOPPED: "1"}


def item(
    spec: Any = None,
    status: Any = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "metadata": {"annotations": annotations or {}, "labels": labels or {}},
        "spec": spec,
        "status": status,
        **more,
    }


def condition(kind: str, status: str = "True", **fields: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, **fields}]}


# -- all kinds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JOB, JOBSET, KUBEFLOW])
@pytest.mark.parametrize(
    ("spec", "status", "annotations", "owner"),
    [
        ({}, {}, {}, {}),
        (None, None, None, {}),
        ({}, condition("Complete"), {}, {"state": S, "native": "Complete"}),
        ({}, condition("Completed"), {}, {"state": S, "native": "Completed"}),
        ({}, condition("Succeeded"), {}, {"state": S, "native": "Succeeded"}),
        ({}, condition("Complete", "False"), {}, {}),
        ({}, condition("Suspended"), {}, {}),
        ({}, condition("Complete", reason="x", message="y"), {}, {"state": S, "native": "Complete"}),
        (
            {},
            condition("Failed", reason="DeadlineExceeded", message="y"),
            {},
            {"state": F, "native": "Failed", "kind": "timeout", "reason": "it ran longer than its deadline (DeadlineExceeded)"},
        ),
        ({}, condition("Failed", reason="Odd", message="y"), {}, {"state": F, "native": "Failed", "reason": "Odd: y"}),
        ({}, condition("Failed"), {}, {"state": F, "native": "Failed"}),
        ({}, {"conditions": [{"type": "FailureTarget", "status": "True"}]}, {}, {"failing": True}),
        ({}, condition("FailureTarget", "False"), {}, {}),
        ({"suspend": True}, {}, {}, {"state": P, "reason": "it is suspended"}),
        ({"suspend": False}, {}, {}, {}),
        ({"runPolicy": {"suspend": True}}, {}, {}, {"state": P, "reason": "it is suspended"}),
        ({"suspend": True}, {}, CANCELLED, {"state": C, "cancelled": True}),
        ({"parallelism": 0}, {}, CANCELLED, {"state": C, "cancelled": True}),
        ({}, {}, CANCELLED, {"cancelled": True}),
        ({"suspend": True}, {}, STOPPED, {"state": C}),
        ({}, {}, STOPPED, {}),
        ({"suspend": True}, condition("Complete"), CANCELLED, {"state": S, "native": "Complete"}),
        ({"suspend": True}, condition("FailureTarget"), {}, {"state": P, "reason": "it is suspended"}),
    ],
)  # fmt: skip
def test_its_conditions_count_first(kind: str, spec: Any, status: Any, annotations: Any, owner: dict[str, Any]) -> None:
    """Then whether it was cancelled, and then whether it is suspended."""
    assert read_owner(kind, item(spec, status, annotations)) == Owner(**owner)


def test_a_queue_is_named() -> None:
    """While it holds the job back."""
    waits = item({"suspend": True}, {}, labels={names.LABEL_QUEUE: "team"})
    assert read_owner(JOB, waits).reason == "it waits in the queue `team`"
    assert read_owner(JOB, item({}, {}, labels={names.LABEL_QUEUE: "team"})).reason == ""
    assert [is_suspended(spec) for spec in ({}, {"runPolicy": None}, {"runPolicy": {}}, {"suspend": True})] == [
        False
    ] * 3 + [True]


@pytest.mark.parametrize(
    ("state", "over"), [(None, False), (P, False), (R, False), (U, False), (S, True), (F, True), (C, True)]
)
def test_an_owner_that_has_ended(state: AppState | None, over: bool) -> None:
    """By its state alone."""
    assert Owner(state=state).over is over


# -- each kind ---------------------------------------------------------------------------------------------


def labelled(**labels: str) -> dict[str, str]:
    return {f"torchx.pytorch.org/{name.replace('_', '-')}": value for name, value in labels.items()}


@pytest.mark.parametrize(
    ("spec", "status", "labels", "owner"),
    [
        ({"parallelism": 3}, {}, {}, {"wants": 3}),
        ({"parallelism": 3}, {"succeeded": 1}, {}, {"wants": 2}),
        ({"parallelism": 3}, {"succeeded": 1, "failedIndexes": "1"}, {}, {"wants": 1, "ended": {1: F}}),
        ({"parallelism": 1}, {"succeeded": 3}, {}, {"wants": 0}),
        ({"backoffLimit": 4}, {}, {}, {"spare": 4}),
        ({"backoffLimit": 0}, {}, {}, {"spare": 0}),
        ({"backoffLimit": None}, {}, {}, {"spare": 0}),
        ({"backoffLimit": 4, "backoffLimitPerIndex": 0}, {}, {}, {}),
        ({}, {"completedIndexes": "0,3-5", "failedIndexes": "1"}, {}, {"ended": {0: S, 3: S, 4: S, 5: S, 1: F}}),
        ({}, {"completedIndexes": "x,1-,-2,,2-y,7"}, {}, {"ended": {1: S, 7: S}}),
        ({}, {"completedIndexes": None}, {}, {}),
        ({}, {}, labelled(role_index="2", replica_id="7"), {"role_index": 2, "replica": 7}),
        ({}, {}, labelled(role_index="x", replica_id=""), {}),
    ],
)
def test_a_job(spec: dict[str, Any], status: dict[str, Any], labels: dict[str, str], owner: dict[str, Any]) -> None:
    """The pods that it wants, may lose, and has seen the end of; role and replica are those of its labels."""
    assert read_owner(JOB, item(spec, status, labels=labels)) == Owner(**owner)


def inner(*specs: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [{"template": {"spec": spec}} for spec in specs]


@pytest.mark.parametrize(
    ("spec", "status", "owner"),
    [
        ({"replicatedJobs": inner({"parallelism": 2}, {"parallelism": 3})}, {}, {"wants": 5}),
        ({"replicatedJobs": inner({"parallelism": 2}, {}, None)}, {}, {"wants": 2}),
        ({"replicatedJobs": [{}, {"template": None}]}, {}, {}),
        ({"replicatedJobs": inner({"parallelism": 2})}, {"replicatedJobsStatus": [{"succeeded": 0}, {"succeeded": 1}]}, {}),
        ({"replicatedJobs": inner({"parallelism": 2})}, {"replicatedJobsStatus": [{"succeeded": None}, {}]}, {"wants": 2}),
        ({"replicatedJobs": inner({"backoffLimit": 0})}, {}, {"spare": 0}),
        ({"replicatedJobs": inner({"backoffLimit": 0}, {"backoffLimit": 0})}, {}, {"spare": 0}),
        ({"replicatedJobs": inner({"backoffLimit": 0}, {"backoffLimit": 1})}, {}, {}),
        ({"replicatedJobs": inner({"backoffLimit": 0}, {})}, {}, {}),
        ({"replicatedJobs": inner({"backoffLimit": 0}), "failurePolicy": {"maxRestarts": 1}}, {}, {}),
        ({"replicatedJobs": inner({"backoffLimit": 0}), "failurePolicy": {"maxRestarts": 1}}, {"restarts": 1}, {"spare": 0, "restarts": 1}),
        ({"replicatedJobs": inner({"backoffLimit": 0}), "failurePolicy": {"maxRestarts": 1}}, {"restarts": 2}, {"spare": 0, "restarts": 2}),
        ({"replicatedJobs": inner({"backoffLimit": 0}), "failurePolicy": {"maxRestarts": 3}}, {"restarts": 1}, {"restarts": 1}),
        ({"replicatedJobs": inner({"backoffLimit": 0}), "failurePolicy": None}, {"restarts": None}, {"spare": 0}),
    ],
)  # fmt: skip
def test_a_jobset(spec: dict[str, Any], status: dict[str, Any], owner: dict[str, Any]) -> None:
    """The pods of all its jobs; it may lose none if neither it nor one of them tries again."""
    assert read_owner(JOBSET, item(spec, status)) == Owner(**owner)


@pytest.mark.parametrize(
    ("spec", "status", "wants"),
    [
        ({"trainer": {"numNodes": 4}}, {}, 4),
        ({"trainer": {"numNodes": 4}}, {"jobsStatus": [{"succeeded": 0}, {"succeeded": 2}]}, 0),
        ({"trainer": {"numNodes": 4}}, {"jobsStatus": [{"succeeded": 0}, {}]}, 4),
        ({"trainer": {"numNodes": None}}, {}, 0),
        ({"trainer": None}, {"jobsStatus": None}, 0),
    ],
)
def test_a_trainjob(spec: dict[str, Any], status: dict[str, Any], wants: int) -> None:
    """Its nodes, until some have succeeded."""
    assert read_owner(KUBEFLOW, item(spec, status)) == Owner(wants=wants)


@pytest.mark.parametrize(
    ("spec", "status", "wants"),
    [
        ({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}, {}, 4),
        ({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {}}}, {}, 1),
        ({"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}, {"replicaStatuses": {"Worker": {"succeeded": 1, "failed": 1, "active": 1}}}, 1),
        ({"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}, {"replicaStatuses": {"Worker": {"succeeded": 3}}}, 0),
        ({"pytorchReplicaSpecs": None}, {"replicaStatuses": None}, 0),
        (None, None, 0),
    ],
)  # fmt: skip
def test_a_pytorchjob(spec: Any, status: Any, wants: int) -> None:
    """Its replicas that have not ended; it replaces none."""
    assert read_owner(PYTORCH, item(spec, status)) == Owner(wants=wants, replaces=False)


@pytest.mark.parametrize(
    ("spec", "status", "annotations", "owner"),
    [
        (None, None, {}, {"state": P, "reason": "Volcano has not processed it yet: is it installed?"}),
        ({}, {"state": {}}, {}, {"state": P, "reason": "Volcano has not processed it yet: is it installed?"}),
        ({}, {"state": {"phase": "Running"}}, {}, {"state": R, "native": "Running", "spare": 0}),
        ({}, {"state": {"phase": "Restarting"}, "retryCount": 2}, {}, {"state": R, "native": "Restarting", "restarts": 2}),
        ({"maxRetry": 3}, {"state": {"phase": "Running"}, "retryCount": 2}, {}, {"state": R, "native": "Running", "restarts": 2}),
        ({"maxRetry": 2}, {"state": {"phase": "Running"}, "retryCount": 2}, {}, {"state": R, "native": "Running", "restarts": 2, "spare": 0}),
        ({}, {"state": {"phase": "Aborted"}}, {}, {"state": C, "native": "Aborted", "spare": 0}),
        ({}, {"state": {"phase": "Aborted"}, "failed": 1}, {}, {"state": F, "native": "Aborted", "spare": 0}),
        ({}, {"state": {"phase": "Aborted"}, "failed": 1}, CANCELLED, {"state": C, "native": "Aborted", "spare": 0, "cancelled": True}),
        ({}, {"state": {"phase": "Running"}, "failed": 1}, CANCELLED, {"state": R, "native": "Running", "spare": 0, "cancelled": True}),
        ({}, {"state": {"phase": "Failed", "message": "m", "reason": "r"}}, {}, {"state": F, "native": "Failed", "spare": 0, "reason": "m"}),
        ({}, {"state": {"phase": "Failed", "reason": "r"}}, {}, {"state": F, "native": "Failed", "spare": 0, "reason": "r"}),
        ({}, {"state": {"phase": "Odd"}}, {}, {"state": U, "native": "Odd", "spare": 0, "reason": "its phase is `Odd`"}),
        ({}, {"state": {"phase": "Odd", "message": "m"}}, {}, {"state": U, "native": "Odd", "spare": 0, "reason": "its phase is `Odd`: m"}),
        ({}, {"state": {"message": "m"}}, {}, {"state": U, "spare": 0, "reason": "its phase is ``: m"}),
    ],
)  # fmt: skip
def test_a_job_of_volcano(spec: Any, status: Any, annotations: dict[str, str], owner: dict[str, Any]) -> None:
    """By its phase; one that it aborted because of a failure has failed, unless a user cancelled it."""
    assert read_owner(VOLCANO, item(spec, status, annotations)) == Owner(**owner)


def said(kind: str, status: str = "True", message: str = "", reason: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "message": message, "reason": reason}


# as the controller of v1beta2 sets them: https://project-codeflare.github.io/appwrapper/arch-controller/
DEPLOYED = (
    said("QuotaReserved", "True", "Suspend is false", "Resuming"),
    said("ResourcesDeployed", "True", "Suspend is false", "Resuming"),
)
READY = said("PodsReady", "True", "2 pods running; 0 pods succeeded", "SufficientPodsReady")
FOUND = said("Unhealthy", "True", "", "FoundFailedPods")
LATE = said("Unhealthy", "True", "1 pods pending; 1 pods running; 0 pods succeeded", "InsufficientPodsReady")
WELL = said("Unhealthy", "False", "", "FoundNoFailedPods")
DELETED = said("ResourcesDeployed", "False", "Resources deleted for failed AppWrapper", "Failed")


def conditions(phase: str, *found: dict[str, str]) -> dict[str, Any]:
    return {"phase": phase, "conditions": list(found)}


def old_conditions(state: str, *found: dict[str, str]) -> dict[str, Any]:
    return {"state": state, "conditions": list(found)}


ONLY_PODS = "some of its replicas failed (FoundFailedPods)"
NOT_READY = "not all of its pods were ready in time (InsufficientPodsReady)"
RETRIES = {names.RETRY_LIMIT: "2"}
OLD_RETRIES = {"schedulingSpec": {"requeuing": {"maxNumRequeuings": 2}}}


@pytest.mark.parametrize(
    ("kind", "spec", "status", "annotations", "owner"),
    [
        (APPWRAPPER, {}, None, {}, {"state": AppState.SUBMITTED, "reason": "MCAD has not processed it yet: is it installed?", "replaces": False}),
        (APPWRAPPER, {}, conditions("Suspended", said("QuotaReserved", "False", "Suspend is true")), {}, {"state": P, "native": "Suspended", "replaces": False}),
        (APPWRAPPER, {}, conditions("Resetting", *DEPLOYED, LATE), {}, {"state": P, "native": "Resetting", "reason": LATE["message"], "replaces": False}),
        (APPWRAPPER, {}, conditions("Failed", *DEPLOYED, READY, FOUND), {}, {"state": F, "native": "Failed", "reason": ONLY_PODS, "replaces": False}),
        (APPWRAPPER, {}, conditions("Failed", *DEPLOYED, READY, FOUND, DELETED), {}, {"state": F, "native": "Failed", "reason": ONLY_PODS, "replaces": False}),
        (APPWRAPPER, {}, conditions("Failed", *DEPLOYED, LATE, DELETED), {}, {"state": F, "native": "Failed", "reason": NOT_READY, "replaces": False}),
        (APPWRAPPER, {}, conditions("Failed", *DEPLOYED, READY, WELL), {}, {"state": F, "native": "Failed", "replaces": False}),
        (APPWRAPPER, {}, conditions("Succeeded", *DEPLOYED, READY, WELL), {}, {"state": AppState.SUCCEEDED, "native": "Succeeded", "replaces": False}),
        (OLD_APPWRAPPER, None, old_conditions("Pending", said("Init"), said("Backoff", "True", "Insufficient quota.", "AppWrapperNotRunnable")), {}, {"state": P, "native": "Pending", "reason": "Insufficient quota.", "replaces": False}),
        (OLD_APPWRAPPER, None, old_conditions("Failed", said("Running", "True", "2 pods run"), said("Failed", "True", "too many restarts")), {}, {"state": F, "native": "Failed", "reason": "too many restarts", "replaces": False}),
        (OLD_APPWRAPPER, None, old_conditions("Failed", said("Failed", "False", "not yet")), {}, {"state": F, "native": "Failed", "replaces": False}),
        (APPWRAPPER, {}, {"phase": "Running"}, {}, {"native": "Running", "replaces": False}),
        (APPWRAPPER, {}, {"phase": "Running"}, RETRIES, {"native": "Running"}),
        (APPWRAPPER, {}, {"phase": "Running", "retries": 1}, RETRIES, {"native": "Running", "restarts": 1}),
        (APPWRAPPER, {}, {"phase": "Running", "retries": 2}, RETRIES, {"native": "Running", "restarts": 2, "replaces": False}),
        (APPWRAPPER, {}, {"phase": "Failed"}, {}, {"state": F, "native": "Failed", "replaces": False}),
        (APPWRAPPER, {}, conditions("Odd", said("x", "True", "why"), said("y", "False", "no")), {}, {"state": U, "native": "Odd", "reason": "its state is `Odd`: why", "replaces": False}),
        (APPWRAPPER, {}, {"phase": "Odd"}, {}, {"state": U, "native": "Odd", "reason": "its state is `Odd`", "replaces": False}),
        (APPWRAPPER, {"suspend": True}, {"phase": "Suspending", "retries": 1}, CANCELLED, {"state": C, "cancelled": True, "restarts": 1}),
        (APPWRAPPER, {"suspend": False}, {"phase": "Running"}, CANCELLED, {"native": "Running", "cancelled": True, "replaces": False}),
        (APPWRAPPER, None, {"phase": "Running"}, CANCELLED, {"native": "Running", "cancelled": True, "replaces": False}),
        (APPWRAPPER, {"suspend": True}, {"phase": "Failed"}, CANCELLED, {"state": F, "native": "Failed", "cancelled": True, "replaces": False}),
        (APPWRAPPER, {"suspend": True}, {"phase": "Suspended"}, {}, {"state": P, "native": "Suspended", "replaces": False}),
        (OLD_APPWRAPPER, OLD_RETRIES, {"state": "Running"}, {}, {"native": "Running"}),
        (OLD_APPWRAPPER, OLD_RETRIES, {"state": "Running", "retries": 2}, RETRIES, {"native": "Running", "restarts": 2, "replaces": False}),
        (OLD_APPWRAPPER, {"schedulingSpec": {"requeuing": None}}, {"state": "Running"}, RETRIES, {"native": "Running", "replaces": False}),
        (OLD_APPWRAPPER, {"schedulingSpec": None}, {"state": "Deleted"}, {}, {"state": C, "native": "Deleted", "replaces": False}),
        (OLD_APPWRAPPER, None, {"state": "Resuming"}, {}, {"state": U, "native": "Resuming", "reason": "its state is `Resuming`", "replaces": False}),
    ],
)  # fmt: skip
def test_an_appwrapper(kind: str, spec: Any, status: Any, annotations: dict[str, str], owner: dict[str, Any]) -> None:
    """Of either version: by its state, unless it runs, when its pods are more precise; only a condition that is True
    and speaks for the state says why.
    """
    version = names.V1BETA1 if kind == OLD_APPWRAPPER else names.V1BETA2
    assert read_owner(kind, item(spec, status, annotations, apiVersion=version)) == Owner(**owner)
    assert appwrapper_state({"apiVersion": version}) == ("", AppState.SUBMITTED)


@pytest.mark.parametrize(
    ("reason", "message", "kind"),
    [
        ("Evicted", "The node was low on resource: memory.", "oom"),
        ("Evicted", "The node was low on resource: ephemeral-storage.", "node"),
        ("Evicted", "Pod ephemeral local storage usage exceeds the total limit", "quota"),
        ("Evicted", "The node had condition: [DiskPressure].", "node"),
        ("OOMKilled", "", "oom"),
        ("Odd", "", ""),
    ],
)
def test_the_class_of_an_end(reason: str, message: str, kind: str) -> None:
    """An eviction for memory is the pod's; one for the node is not."""
    assert ended(reason, message)[0] == kind
    assert why_failed("Odd", "")[1] == "Odd" and why_failed("", "m")[1] == "m"


# -- jobs of several objects -------------------------------------------------------------------------------


def attempt(number: str, name: str = "") -> dict[str, Any]:
    return item({}, {}, labels={names.LABEL_ATTEMPT: number} if number else {}, name=name)


def test_attempts_of_a_job() -> None:
    """The newest one counts, or one of those before it; without numbers, all objects do."""
    owners, pods = [attempt(n) for n in "1223"], [attempt(n) for n in "1233"]
    found = JobObjects(JOB, owners, pods, "7", failed=True)
    assert [number_of(one) for one in owners] == [1, 2, 2, 3] and number_of(attempt("")) == 0
    for back, (some, others) in enumerate([(owners[3:], pods[2:]), (owners[1:3], pods[1:2]), (owners[:1], pods[:1])]):
        newest = found.newest(back)
        assert (newest.owners, newest.pods, newest.version, newest.failed, newest.kind) == (
            some,
            others,
            "7",
            True,
            JOB,
        )
    plain = JobObjects(JOB, [attempt("")], [attempt("")])
    assert plain.newest() is plain and JobObjects(JOB).newest().owners == []


def test_owners_that_go_on() -> None:
    """Those that have not ended."""
    going, over = item({}, {}), item({}, condition("Complete"))
    assert JobObjects(JOB, [going, over, going]).going() == [going, going]
    assert [owner.state for owner in JobObjects(JOB, [going, over]).read()] == [None, S]


@pytest.mark.parametrize(
    ("mark", "spec", "sweep"),
    [("3", {"completions": 2}, True), ("", {"completions": 2}, False), ("x", {"completions": 2}, False), ("3", {}, False), ("3", None, False)],
)  # fmt: skip
def test_the_job_of_a_sweep(mark: str, spec: Any, sweep: bool) -> None:
    """It has a number of tasks at once, and tasks."""
    assert is_sweep(item(spec, {}, {names.ANNOTATION_SWEEP: mark})) is sweep


def pod(phase: str = "Running", k: int = 0, role: int = 0, **more: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"Running": {"running": {}}, "Pending": {}}.get(
        phase, {"terminated": {"exitCode": int(phase == "Failed")}}
    )
    labels = {names.LABEL_ROLE_INDEX: str(role), names.LABEL_REPLICA_ID: str(k), names.LABEL_ROLE_NAME: f"r{role}"}
    status = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}], **more}
    return {"metadata": {"name": f"p{role}-{k}", "labels": labels}, "spec": {}, "status": status}


@pytest.mark.parametrize(
    ("kind", "owner", "phases", "lacks"),
    [
        (JOB, item({"parallelism": 2}, {}), ["Running"], True),
        (JOB, item({"parallelism": 2}, {}), ["Running", "Pending"], False),
        (JOB, item({"parallelism": 2}, {}), ["Running", "Failed"], True),
        (JOB, item({"parallelism": 2}, {"succeeded": 1}), ["Running", "Succeeded"], False),
        (JOB, item({"parallelism": 2}, {"succeeded": 1}), ["Succeeded"], True),
        (JOB, item({"parallelism": 2}, condition("Failed")), [], False),
        (JOB, item({}, {}), [], True),
        (JOB, item({}, {}), ["Failed"], False),
        (JOBSET, item({"replicatedJobs": inner({"parallelism": 2})}, {}), ["Running", "Succeeded"], False),
        (JOBSET, item({"replicatedJobs": inner({"parallelism": 2})}, {}), ["Running", "Failed"], True),
        (KUBEFLOW, item({"trainer": {"numNodes": 2}}, {}), ["Running", "Succeeded"], False),
        (KUBEFLOW, item({"trainer": {"numNodes": 3}}, {}), ["Running", "Succeeded"], True),
    ],
)
def test_pods_that_are_missing(kind: str, owner: dict[str, Any], phases: list[str], lacks: bool) -> None:
    """Those that have succeeded are wanted of some kinds; nothing is missing at the end."""
    assert lacks_pods(JobObjects(kind, [owner], [pod(phase) for phase in phases])) is lacks


# -- facts -------------------------------------------------------------------------------------------------


def app(*roles: Role) -> dict[str, str]:
    return {names.ANNOTATION_APP: json.dumps(appdef_to_dict(AppDef("a", list(roles))))}


ONE = Role("w", "img", entrypoint="x", num_replicas=2)
ELASTIC = Role("w", "img", entrypoint="x", num_replicas=2, min_replicas=1)


def job(
    spec: Any = None, status: Any = None, *, role: Role = ONE, cancelled: bool = False, index: str = "0", **labels: str
) -> dict[str, Any]:
    marks = {**app(role), **(CANCELLED if cancelled else {})}
    labels = {names.LABEL_ROLE_INDEX: index, **labelled(**labels)} if index else labelled(**labels)
    return item({"parallelism": 2, **(spec or {})}, status, marks, labels)


@pytest.mark.parametrize(
    ("owner", "pods", "role", "states", "restarts", "ending"),
    [
        (job(), [], None, [P, P], True, False),
        (job(), [pod(), pod("Failed", 1)], None, [R, F], True, False),
        (job({"backoffLimit": 0}), [pod(), pod("Failed", 1)], None, [R, F], False, True),
        (job({"backoffLimit": 1}), [pod(), pod("Failed", 1)], None, [R, F], True, False),
        (job({"backoffLimit": 1}), [pod("Failed"), pod("Failed", 1)], None, [F, F], False, True),
        (job({}, condition("FailureTarget")), [pod()], None, [R, P], False, True),
        (job({}, {"failedIndexes": "1"}), [pod()], None, [R, F], False, True),
        (job({}, {"completedIndexes": "1"}), [pod()], None, [R, S], True, False),
        (job({}, condition("Complete")), [], S, [P, P], False, False),
        (job({}, condition("Failed")), [pod("Failed")], F, [F, P], False, False),
        (job({"suspend": True}, cancelled=True), [], C, [C, C], False, False),
        (job({"suspend": True}), [], P, [P, P], True, False),
        (job({}, condition("Failed"), role=ELASTIC), [pod("Failed")], F, [F, P], False, False),
    ],
)
def test_a_role_and_its_replicas(
    owner: dict[str, Any], pods: list[Any], role: AppState | None, states: list[AppState], restarts: bool, ending: bool
) -> None:
    """Its state is that of its Job; whether pods are created again, or it waits for the last ones to end."""
    (found,) = facts_of("a", JobObjects(JOB, [owner], pods)).roles
    assert (found.name, found.state, [r.state for r in found.replicas]) == ("w", role, states)
    assert (found.restarts, found.ending) == (restarts, ending)
    assert [r.stopped for r in found.replicas if r.state is C] == [True] * states.count(C)


def each(*states: Any, role: Role = ONE) -> list[dict[str, Any]]:
    """A Job for each replica, as before Kubernetes 1.22."""
    return [job({}, condition(state) if state else {}, role=role, replica_id=str(k)) for k, state in enumerate(states)]


@pytest.mark.parametrize(
    ("owners", "state", "replicas"),
    [
        (each("", ""), None, [P, P]),
        (each("Complete", "Complete"), S, [S, S]),
        (each("Complete", "Failed"), F, [S, F]),
        (each("Complete", ""), None, [S, P]),
        (each("Failed", ""), None, [F, P]),
        ([job({"suspend": True}, cancelled=True, replica_id="0"), *each("", "Complete")[1:]], C, [C, S]),
        ([job({"suspend": True}, cancelled=True, replica_id="0"), *each("", "Failed")[1:]], F, [C, F]),
        ([job({"suspend": True}, replica_id="0"), *each("", "Complete")[1:]], None, [P, S]),
        (each("Failed", "", role=ELASTIC), None, [F, P]),
        (each("Complete"), None, [S, U]),
    ],
)
def test_a_job_for_each_replica(owners: list[Any], state: AppState | None, replicas: list[AppState]) -> None:
    """A failure counts before a cancellation; a Job that is gone says nothing, unless it was seen to end."""
    (found,) = facts_of("a", JobObjects(JOB, owners, [])).roles
    assert (found.state, [r.state for r in found.replicas]) == (state, replicas)


def test_a_job_that_is_gone_was_seen_to_end() -> None:
    """By its name, with the number of the replica if each had one."""
    asked: list[str] = []

    def said(name: str) -> AppState | None:
        asked.append(name)
        return F

    labels = {names.LABEL_UNIQUE_NAME: "a-1"}
    first = each("Complete")[0]
    first["metadata"]["labels"] |= labels
    (found,) = facts_of("a-1", JobObjects(JOB, [first], []), ended=said).roles
    assert (asked, [r.state for r in found.replicas]) == (["a-1-w-1"], [S, F])
    asked.clear()
    two = item(
        {}, condition("Complete"), app(ONE, Role("v", "i", entrypoint="x")), {names.LABEL_ROLE_INDEX: "0", **labels}
    )
    _, other = facts_of("a-1", JobObjects(JOB, [two], []), ended=said).roles
    assert (asked, other.state, other.restarts, other.ending) == (["a-1-v"], F, False, False)
    assert facts_of("a-1", JobObjects(JOBSET, [two], []), ended=said).roles[1].state is None


@pytest.mark.parametrize(
    ("kind", "status", "begun"),
    [
        (JOB, {}, False),
        (JOB, {"startTime": "2026-01-01T00:00:00Z", "active": 2}, False),
        (JOB, {"terminating": 1}, True),
        (JOBSET, {"replicatedJobsStatus": [{"name": "w", "active": 1}]}, False),
        (JOBSET, {"replicatedJobsStatus": [{"name": "w", "failed": 1}]}, True),
        (KUBEFLOW, {"jobsStatus": [{"name": "node", "failed": 0}, {"name": "node", "failed": 1}]}, True),
        (PYTORCH, {"replicaStatuses": {"Worker": {"active": 1}}}, False),
        (PYTORCH, {"replicaStatuses": {"Worker": {"failed": 1}}}, True),
    ],
)
def test_a_job_that_has_run_does_not_wait_for_its_first_pods(kind: str, status: dict[str, Any], begun: bool) -> None:
    """By the counters of any kind of owner."""
    one = job({"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}, status)
    said = "its pods are gone, and are not created again yet" if begun else "its pods are not created yet"
    assert facts_of("a", JobObjects(kind, [one])).reason == said


@pytest.mark.parametrize(
    ("owner", "pods", "missing", "reason"),
    [
        (job(), [], "", "its pods are not created yet"),
        (job(), [], "no quota", "no quota"),
        (job({"suspend": True}), [], "", "it is suspended"),
        (job({"suspend": True}), [], "no quota", "no quota"),
        (job(), [pod()], "no quota", ""),
        (job({"suspend": True}), [pod()], "", "it is suspended"),
        (job({}, condition("Failed", reason="BackoffLimitExceeded")), [pod("Failed")], "", ""),
        (job({}, condition("Failed", reason="BackoffLimitExceeded")), [pod()], "", "more pods failed than it retries (BackoffLimitExceeded)"),
        (job({}, condition("Failed", reason="DeadlineExceeded")), [pod("Failed")], "", "it ran longer than its deadline (DeadlineExceeded)"),
        (job({}, condition("Failed", reason="DeadlineExceeded")), [], "its Job says", "it ran longer than its deadline (DeadlineExceeded); its Job says"),
        (item({}, {}), [], "", "the cluster has neither its pods nor its final state"),
        (item({}, {}), [], "no quota", "no quota"),
    ],
)  # fmt: skip
def test_the_reason_of_a_job(owner: dict[str, Any], pods: list[Any], missing: str, reason: str) -> None:
    """A failed pod says more than that pods have failed; why there are none is said until there are."""
    found = facts_of("a", JobObjects(JOB, [owner], pods), missing=missing)
    assert found.reason == reason
    if found.roles and pods == [pod()]:
        assert [r.reason for r in found.roles[0].replicas] == ["", missing]


def test_reasons_are_said_once() -> None:
    """Of several Jobs, in their order."""
    waits = [
        job({"suspend": True}),
        job({"suspend": True}, index="1"),
        job({}, condition("Failed", reason="Odd"), index="2"),
    ]
    assert facts_of("a", JobObjects(JOB, waits, [pod()])).reason == "it is suspended; Odd"


def test_times_and_counts() -> None:
    """The first start of a pod, else the creation; the last end of all; restarts of owners, containers and attempts."""

    def at(second: int) -> str:
        return f"2026-01-01T00:00:{second:02}Z"

    created = job({}, {"completionTime": at(30), "conditions": [{"type": "x", "lastTransitionTime": at(20)}]})
    created["metadata"]["creationTimestamp"] = at(5)
    other = {**job(index="1"), "status": None}
    other["metadata"] = {**other["metadata"], "creationTimestamp": at(4)}
    found = facts_of("a", JobObjects(JOB, [created, other], []))
    assert (found.started, found.ended) == (unix_time(at(4)), unix_time(at(30)))
    assert facts_of("a", JobObjects(JOB, [job()], [])).started is None
    assert facts_of("a", JobObjects(JOB, [job()], [])).ended is None
    ran = [pod("Failed", k) for k in range(2)]
    for k, one in enumerate(ran):
        one["status"]["startTime"] = at(10 + k)
        one["status"]["containerStatuses"][0]["state"] = {
            "terminated": {"exitCode": 1, "startedAt": at(10 + k), "finishedAt": at(40 + k)}
        }
        one["status"]["containerStatuses"][0]["restartCount"] = 2
    found = facts_of("a", JobObjects(JOB, [created], ran))
    assert (found.started, found.ended, found.restarts) == (unix_time(at(10)), unix_time(at(41)), 4)
    again = [job(attempt="3"), job(attempt="2")]
    assert facts_of("a", JobObjects(JOB, again, [])).restarts == 2
    sets = item({}, {"restarts": 3}, app(ONE))
    assert facts_of("a", JobObjects(JOBSET, [sets], [])).restarts == 3
    assert facts_of("a", JobObjects(JOBSET, [], [])).restarts == 0


def test_a_job_without_its_definition() -> None:
    """Its roles are those of its pods."""
    for text in ("", "{", "[]", '{"roles": 7}', "[" * 5000):
        assert definition([item({}, {}), item({}, {}, {names.ANNOTATION_APP: text})]) is None
    found = facts_of("a", JobObjects(JOBSET, [item({}, {})], [pod(k=2), pod(k=0), pod(role=2)]))
    assert [(role.name, len(role.replicas)) for role in found.roles] == [("r0", 3), ("role-1", 0), ("r2", 1)]
    assert (found.definition, found.metadata) == ([], {})
    assert facts_of("a", JobObjects(JOBSET, [item({}, {})], [])).roles == []


def test_what_is_known_of_the_whole_job() -> None:
    """The state of an owner of all roles, its word for it, and who cancelled it."""
    whole = facts_of("a", JobObjects(JOBSET, [item({}, condition("Completed"), app(ONE))], []))
    assert (whole.state, whole.native, whole.kind, whole.cancelled) == (S, "Completed", "", False)
    failed = facts_of(
        "a",
        JobObjects(JOB, [job({}, condition("Failed", reason="DeadlineExceeded")), job(cancelled=True, index="1")], []),
    )
    assert (failed.state, failed.native, failed.kind, failed.cancelled) == (None, "Failed", "timeout", True)
    assert [role.name for role in failed.definition] == ["w"]


@pytest.mark.parametrize(("role", "elastic"), [(ONE, False), (ELASTIC, True)])
def test_a_role_that_may_shrink(role: Role, elastic: bool) -> None:
    """It has a minimum of replicas."""
    assert is_elastic([item({}, {}), job(role=role)]) is elastic
    assert [r.min_replicas for r in facts_of("a", JobObjects(JOB, [job(role=role)], [])).roles] == [
        1 if elastic else None
    ]


def test_the_image_that_a_pod_ran() -> None:
    """Its digest is that of the role."""
    ran = pod()
    ran["status"]["containerStatuses"][0]["imageID"] = "img@sha256:" + "a" * 64
    found = facts_of("a", JobObjects(JOB, [job()], [ran])).definition
    assert list(image_digests(found).values()) == ["img@sha256:" + "a" * 64]
    assert image_digests(facts_of("a", JobObjects(JOB, [job()], [pod()])).definition) == {}
