"""Options of placement: what they add to a pod, and what is rejected."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from tests.schedulers.kubernetes.test_kubernetes_golden import built_in
from torchx.errors import BackendError, ConfigError
from torchx.schedulers.kubernetes.overlays import set_overlay
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.failures import parse_failure

JOBSETS = "jobset.x-k8s.io/v1alpha2"
ALL: dict[str, Any] = {
    "node_selector": {"example.com/rack": "r1"},
    "tolerations": ["nvidia.com/gpu:NoSchedule", "dedicated=ml", "*"],
    "spread": ["kubernetes.io/hostname!", "topology.kubernetes.io/zone"],
    "pack": "topology.kubernetes.io/zone",
    "deadline_s": 3600,
    "local_queue": "team",
    "topology": "cloud.provider.com/topology-rack!",
}


def app(**fields):
    resource = Resource(1, 0, 64, capabilities={"node.kubernetes.io/instance-type": "p5"})
    return AppDef("train", [Role(n, "img", entrypoint="t", num_replicas=2, resource=resource, **fields) for n in "ab"])


def rendered(kind="job", given=None, **cfg):
    scheduler = create_scheduler("me")
    info = scheduler.submit_dryrun(given or app(), {"kind": kind, **cfg})
    return info.request.resource


def templates(resource):
    """The pod templates of all roles."""
    if resource["kind"] == "JobSet":
        return [job["template"]["spec"]["template"] for job in resource["spec"]["replicatedJobs"]]
    if resource["kind"] == "List":
        return [item["spec"]["template"] for item in resource["items"][1:]]
    return [task["template"] for task in resource["spec"]["tasks"]]


@pytest.mark.parametrize("version", ["1.25", "1.30", "1.37"])
@pytest.mark.parametrize("kind", ["job", "jobset", "volcano"])
def test_the_schemas_agree(kind, version):
    """With all options, pods are valid in old and new clusters, without unknown fields."""
    validate = pytest.importorskip("kubernetes_validate")
    cfg = dict(ALL)
    if kind == "volcano":
        del cfg["local_queue"], cfg["topology"]
    scheduler = create_scheduler("me")
    job = scheduler.submit_dryrun(app(), {"kind": kind, **cfg}).request
    major, minor = map(int, version.split("."))
    for part in built_in(scheduler._render(job.kind, app(), job.app_id, job.opts, (major, minor))):
        validate.validate(part, version, strict=True)


def test_claims_by_the_schema():
    """The role's container has its DRA devices."""
    validate = pytest.importorskip("kubernetes_validate")
    resource = rendered(claims={"gpu": "two-gpus"})
    for part in built_in(resource):
        validate.validate(part, "1.37", strict=True)
    spec = templates(resource)[0]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "two-gpus"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    assert spec["containers"][0]["image"] == "img"


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_what_they_add_to_a_pod(kind):
    """In addition to the role's resource; each role is spread separately, and all are packed together."""
    pods = templates(rendered(kind, **ALL))
    assert pods
    for i, template in enumerate(pods):
        spec, labels = template["spec"], template["metadata"]["labels"]
        assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "p5", "example.com/rack": "r1"}
        assert spec["tolerations"] == [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "dedicated", "operator": "Equal", "value": "ml"},
            {"operator": "Exists"},
        ]
        spread = spec["topologySpreadConstraints"]
        assert [s["whenUnsatisfiable"] for s in spread] == ["DoNotSchedule", "ScheduleAnyway"]
        mine = spread[0]["labelSelector"]["matchLabels"]
        assert mine == {key: labels[key] for key in mine} and mine["torchx.pytorch.org/role-index"] == str(i)
        (near,) = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert list(near["podAffinityTerm"]["labelSelector"]["matchLabels"]) == ["app.kubernetes.io/instance"]
        notes = template["metadata"]["annotations"]
        assert notes["kueue.x-k8s.io/podset-required-topology"] == "cloud.provider.com/topology-rack"


def test_what_must_be_and_what_is_preferred():
    """The last character of a key decides."""
    (must, _) = templates(rendered(pack="rack!"))
    (term,) = must["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "rack"
    (wish, _) = templates(rendered(local_queue="q", topology="rack"))
    assert wish["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"] == "rack"


def test_an_overlay_goes_before():
    """The overlay of the role is applied after the options."""
    given = app()
    set_overlay(given.roles[0], "kubernetes", "pod", {"spec": {"nodeSelector": {"example.com/rack": "r2"}}})
    first, second = templates(rendered(given=given, node_selector={"example.com/rack": "r1"}))
    assert first["spec"]["nodeSelector"]["example.com/rack"] == "r2"
    assert second["spec"]["nodeSelector"]["example.com/rack"] == "r1"


def test_without_options_nothing_is_added():
    """There are no empty lists."""
    (template, _) = templates(rendered())
    assert not {"affinity", "tolerations", "topologySpreadConstraints", "resourceClaims"} & template["spec"].keys()


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"tolerations": ["gpu:NoSuchEffect"]}, "tolerations `gpu:NoSuchEffect` is not"),
        ({"tolerations": ["*=x"]}, r"tolerations `\*=x` is not"),
        ({"tolerations": ["a b"]}, "tolerations `a b` is not"),
        ({"tolerations": [""]}, "tolerations `` is not"),
        ({"spread": ["a/b/c"]}, "spread `a/b/c` is not the key of a label"),
        ({"pack": "-rack"}, "pack `-rack` is not the key of a label"),
        ({"node_selector": {"rack": "a b"}}, "node_selector `rack=a b` does not have a valid"),
        ({"node_selector": {"": "a"}}, "node_selector `` is not the key"),
        ({"claims": {"GPU": "x"}}, "claims `GPU=x` is not NAME=TEMPLATE"),
        ({"topology": "rack"}, "needs `local_queue`"),
        ({"local_queue": "q", "kind": "volcano"}, "`local_queue` is an option of Kueue"),
        ({"local_queue": "q", "queue": "v", "kind": "auto"}, "`local_queue` is an option of Kueue"),
        ({"local_queue": "q", "topology": "a b"}, "topology `a b` is not the key"),
        ({"deadline_s": 0}, "deadline_s `0` is not a positive number"),
    ],
)
def test_what_no_server_takes_is_refused(cfg, said):
    """Before anything is built or submitted."""
    with pytest.raises(ConfigError, match=said):
        rendered(**cfg)


def test_claims_need_a_server_that_has_them():
    """An older server would drop the field, and the program would have no device."""
    with pytest.raises(BackendError, match=r"Kubernetes 1\.33 does not support `claims`"):
        create_scheduler("me", client=Cluster(version=(1, 33))).submit(app(), {"claims": {"gpu": "two-gpus"}})


def test_a_deadline_is_the_cause_whatever_the_job_is_made_of():
    """For a Job and for a JobSet, which is not restarted afterwards."""
    reasons = {"job": "DeadlineExceeded", "jobset": "FailJobSetFailurePolicyAction"}
    for kind, reason in reasons.items():
        cluster = Cluster(groups=[JOBSETS])
        scheduler = create_scheduler("me", client=cluster)
        app_id = scheduler.submit(app(max_retries=2), {"kind": kind, "deadline_s": 60})
        items = cluster.of("jobs" if kind == "job" else "jobsets")
        for item in items:
            item["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": reason}]}
        found = scheduler.describe(app_id)
        assert found.state is AppState.FAILED
        assert "it ran longer than its deadline" in found.msg
        assert parse_failure(found.structured_error_msg).kind == "timeout"
    (rule,) = items[0]["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["DeadlineExceeded"])


@pytest.mark.parametrize("knows", [True, False])
def test_claims_that_the_definition_of_a_kind_lacks(knows: bool) -> None:
    """They are refused, because the server would drop them; nothing is created."""

    class Operated(Cluster):
        def _create(self, base: str, namespace: str, item: Any, query: Any) -> Any:
            if base.endswith("/jobsets") and not knows:
                item["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"].pop("resourceClaims")
            return super()._create(base, namespace, item, query)

    cluster: Any = Operated(groups=["jobset.x-k8s.io/v1alpha2"])
    scheduler = create_scheduler("me", client=cluster)
    app = AppDef("a", [Role("w", "img", entrypoint="x", resource=Resource(1, 0, 64))])
    if knows:
        scheduler.submit(app, {"claims": {"gpu": "two-gpus"}})
        assert len(cluster.of("jobsets")) == 1
        return
    with pytest.raises(BackendError, match="definition of JobSet is too old for `claims`") as e:
        scheduler.submit(app, {"claims": {"gpu": "two-gpus"}})
    assert ("kind=job" in e.value.hint, cluster.objects) == (True, {})
