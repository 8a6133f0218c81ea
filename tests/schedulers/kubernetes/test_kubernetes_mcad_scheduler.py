"""`kubernetes_mcad`: an AppWrapper contains the whole job; MCAD's state and the pods determine its state."""

from __future__ import annotations

import pytest
import yaml

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.errors import BackendError, ConfigError
from torchx.schedulers.kubernetes_mcad_scheduler import KubernetesMCADJob, create_scheduler
from torchx.specs import AppDef, AppState, Resource, RetryPolicy, Role, macros

NEW, OLD = "workload.codeflare.dev/v1beta2", "mcad.ibm.com/v1beta1"


def app(**fields):
    args = ["-c", f"echo {macros.replica_id}"]
    trainer = Role("trainer", "img", entrypoint="sh", args=args, num_replicas=2, port_map={"c10d": 29500}, **fields)
    trainer.resource = Resource(1, 1, 2048)
    return AppDef("train", [trainer])


def wrapper(given=None, **cfg):
    info = create_scheduler("me").submit_dryrun(given or app(), cfg)
    return info.request.resource


def parts(found):
    spec = found["spec"]
    if "components" in spec:
        return [c["template"] for c in spec["components"]]
    return [i["generictemplate"] for i in spec["resources"]["GenericItems"]]


@pytest.mark.parametrize("form", ["v1beta2", "v1beta1"])
def test_all_of_a_job_is_one_object(form):
    """It contains a Service and a pod for each replica, whose host names lead to rank 0."""
    found = wrapper(appwrapper_version=form, namespace="team")
    assert found["apiVersion"] == {"v1beta2": NEW, "v1beta1": OLD}[form]
    service, *replicas = parts(found)
    name = found["metadata"]["name"]
    assert service["kind"] == "Service" and service["spec"]["clusterIP"] == "None"
    assert [p["spec"]["hostname"] for p in replicas] == [f"{name}-trainer-0", f"{name}-trainer-1"]
    for k, pod in enumerate(replicas):
        assert pod["metadata"]["namespace"] == "team" and pod["spec"]["subdomain"] == name
        container = pod["spec"]["containers"][0]
        assert container["command"] == ["sh", "-c", f"echo {k}"]
        assert {"name": "TORCHX_RANK0_HOST", "value": f"{name}-trainer-0.{name}"} in container["env"]


@pytest.mark.parametrize("version", ["1.25", "1.30", "1.37"])
def test_what_is_wrapped_is_valid(version):
    """It is valid in the schemas of several versions of Kubernetes, without unknown fields."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    given = app(max_retries=1, retry_policy=RetryPolicy.REPLICA)
    found = wrapper(given, network="net", service_account="sa", image_secret="s", priority_class_name="high")
    for part in parts(found):
        kubernetes_validate.validate(part, version, strict=True)


def test_retries_are_given_to_mcad():
    """Each version has its own fields for retries."""
    prefix = "workload.codeflare.dev.appwrapper"
    found = wrapper(app(max_retries=3))["metadata"]["annotations"]
    assert found[f"{prefix}/retryLimit"] == "3" and f"{prefix}/failureGracePeriodDuration" not in found
    found = wrapper(app())["metadata"]["annotations"]
    assert found[f"{prefix}/failureGracePeriodDuration"] == "0s", "nothing could correct the failure"
    assert found[f"{prefix}/deletionOnFailureGracePeriodDuration"] == "5m", "else cause and log would be gone at once"
    old = wrapper(app(max_retries=3), appwrapper_version="v1beta1", priority=7)["spec"]
    assert old["schedulingSpec"] == {"minAvailable": 2, "requeuing": {"maxNumRequeuings": 3}}
    assert old["priority"] == 7


def test_priority_of_the_form_that_has_none():
    """It is rejected instead of ignored."""
    with pytest.raises(ConfigError, match="v1beta1") as e:
        wrapper(app(), priority=7)
    assert "priority_class_name" in e.value.hint


def test_a_coscheduler_gets_a_group_for_each_role():
    """A label of the pods names their group."""
    found = wrapper(coscheduler_name="cosched", network="net")
    _, group, *replicas = parts(found)
    assert group["kind"] == "PodGroup" and group["spec"] == {"minMember": 2}
    for pod in replicas:
        assert pod["metadata"]["labels"]["pod-group.scheduling.sigs.k8s.io"] == group["metadata"]["name"]
        assert pod["spec"]["schedulerName"] == "cosched"
        assert pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "net"


def test_a_form_that_nobody_knows_is_refused():
    """An unknown version is rejected before anything is created."""
    with pytest.raises(ConfigError, match="`v2`"):
        wrapper(appwrapper_version="v2")


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [
        ({}, AppState.SUBMITTED, "is it installed?"),
        (
            {
                "phase": "Resetting",
                "conditions": [{"type": "Unhealthy", "status": "True", "message": "1 pods pending"}],
            },
            AppState.PENDING,
            "1 pods pending",
        ),
        ({"phase": "Succeeded"}, AppState.SUCCEEDED, "<NONE>"),
        (
            {"phase": "Failed", "conditions": [{"type": "Unhealthy", "status": "True", "reason": "FoundFailedPods"}]},
            AppState.FAILED,
            "some of its replicas failed",
        ),
        ({"phase": "Odd"}, AppState.UNKNOWN, "`Odd`"),
    ],
)
def test_states(status, state, said):
    """MCAD's phase is the state until the pods run, and its message is shown."""
    cluster = Cluster(groups=[NEW])
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(app(), {})
    (item,) = cluster.of("appwrappers")
    item["status"] = status
    found = scheduler.describe(app_id)
    assert found.state is state and said in found.msg
    assert [job.app_id for job in scheduler.list()] == [app_id]


@pytest.mark.parametrize(("retries", "state"), [(0, AppState.SUCCEEDED), (1, AppState.RUNNING)])
def test_while_a_wrapper_runs_its_pods_know_better(retries, state):
    """The pods determine the state, unless MCAD may recreate them."""
    cluster = Cluster(groups=[NEW])
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(app(max_retries=retries), {})
    (item,) = cluster.of("appwrappers")
    item["status"] = {"phase": "Running"}
    for pod in parts(item)[1:]:
        made = {
            **pod,
            "metadata": {**pod["metadata"], "uid": pod["metadata"]["name"]},
            "status": {"phase": "Succeeded"},
        }
        cluster.objects["api/v1/pods", "default", pod["metadata"]["name"]] = made
    assert scheduler.describe(app_id).state is state
    assert [job.state for job in scheduler.list()] == [state]


@pytest.mark.parametrize(("group", "form"), [(NEW, "v1beta2"), (OLD, "v1beta1")])
def test_the_end_of_a_job(group, form):
    """A cancelled v1beta2 AppWrapper is kept; a deleted one no longer exists."""
    cluster = Cluster(groups=[group])
    scheduler = create_scheduler("me", client=cluster)
    app_id = scheduler.submit(app(), {"appwrapper_version": form})
    scheduler.cancel(app_id)
    if form == "v1beta2":
        assert cluster.of("appwrappers")[0]["spec"]["suspend"] is True
        assert scheduler.describe(app_id).state is AppState.CANCELLED
    scheduler.cancel(app_id)
    scheduler.delete(app_id)
    assert cluster.objects == {} and scheduler.describe(app_id) is None


def test_a_cluster_without_mcad_is_said():
    """The error says so, and nothing is created."""
    cluster = Cluster()
    with pytest.raises(BackendError, match="has no `AppWrapper`"):
        create_scheduler("me", client=cluster).submit(app(), {})
    assert cluster.objects == {}


@pytest.mark.parametrize("resource", [{"kind": "AppWrapper"}, {"hello": "world"}], ids=str)
def test_a_request_by_hand_is_shown_as_it_is(resource):
    """It has the two documented fields; a note on kinds of Kubernetes jobs would be wrong for it."""
    job = KubernetesMCADJob(images_to_push={}, resource=resource)
    assert yaml.safe_load(str(job)) == resource and "#" not in str(job)
    assert repr(job).startswith("KubernetesMCADJob(")
