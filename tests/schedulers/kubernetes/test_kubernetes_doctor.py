"""`torchx doctor -s kubernetes` and `run --check`: answers of a cluster, and the findings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.schedulers.kubernetes_mcad_scheduler import create_scheduler as create_mcad
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, BindMount, Resource, Role, VolumeMount
from torchx.workspace.images.registry import Manifest, Registry

from .fake_cluster import Cluster, refusal

urllib3 = pytest.importorskip("urllib3")
IMAGE = "reg.example.com/me/train:1"
OCI = "application/vnd.oci.image.index.v1+json"


def node(name: str = "n1", *, cpu: str = "64", memory: str = "512Gi", gpu: int = 8, **more: Any) -> dict[str, Any]:
    room = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": str(gpu)} if gpu else {})}
    status = {"allocatable": room, "nodeInfo": {"architecture": "amd64"}, "images": more.pop("images", [])}
    return {"metadata": {"name": name, "labels": more.pop("labels", {})}, "spec": more, "status": status}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster with a namespace, a large node, and a registry that has the image."""
    made = Cluster(groups=["scheduling.k8s.io/v1"])
    put(made, "api/v1/namespaces", None, "default", {"status": {"phase": "Active"}})
    put(made, "api/v1/nodes", None, "n1", node())
    serve(monkeypatch, {IMAGE: ["amd64", "arm64"]})
    return made


def put(cluster: Cluster, base: str, space: str | None, name: str, item: dict[str, Any]) -> None:
    cluster.objects[base, space, name] = {
        **item,
        "metadata": {**item.get("metadata", {}), "name": name, "uid": f"{base}{name}"},
    }


def serve(monkeypatch: pytest.MonkeyPatch, images: dict[str, list[str]] | Exception) -> None:
    """A registry with these images, for these platforms."""
    from torchx.errors import NotFoundError

    def manifest(self: Registry, image: Any) -> Manifest:
        if isinstance(images, Exception):
            raise images
        if str(image) not in images:
            raise NotFoundError(f"registry `{self.host}` has no image `{image}`")
        rows = [{"platform": {"architecture": a, "os": "linux"}} for a in images[str(image)]]
        rows.append({"platform": {"architecture": "unknown", "os": "unknown"}})
        return Manifest(OCI, "sha256:x", json.dumps({"manifests": rows}).encode())

    monkeypatch.setattr(Registry, "manifest", manifest)


def system(cluster: Cluster, **cfg: Any) -> dict[str, Finding]:
    scheduler = create_scheduler("me", client=cluster)
    return {f.what: f for check in scheduler.diagnose({"namespace": "default", **cfg}) for f in check.findings()}


def job(
    cluster: Cluster, change: Callable[[Role], object] = lambda _: None, create: Any = create_scheduler, **cfg: Any
) -> dict[str, Finding]:
    role = Role("trainer", IMAGE, entrypoint="python", args=["t.py"], num_replicas=2, resource=Resource(8, 2, 65536))
    change(role)
    scheduler, given = create("me", client=cluster), {"namespace": "default", **cfg}
    checks = scheduler.diagnose(given, scheduler.submit_dryrun(AppDef("train", [role]), given))
    return {f.what: f for check in checks for f in check.findings()}


def verdicts(found: dict[str, Finding]) -> dict[str, str]:
    return {what: f.verdict for what, f in found.items()}


def test_a_cluster_that_works(cluster: Cluster) -> None:
    """All findings are good, and no object is created."""
    before = dict(cluster.objects)
    assert verdicts(system(cluster)) == dict.fromkeys(
        ["cluster", "namespace `default`", "kind", "rights", "small job"], GOOD
    )
    assert cluster.objects == before


def test_a_small_job_is_tried(cluster: Cluster) -> None:
    """As a dry run, on a cluster and in its namespace alone; what other checks say is not said twice."""
    refused = refusal(403, "Forbidden", 'pods "x" is forbidden: violates PodSecurity "restricted:latest"')
    cluster.away = lambda method, path: refused if method == "POST" and path.endswith("/jobs") else None
    found = system(cluster, kind="job")["small job"]
    assert (found.verdict, "violates PodSecurity" in found.said) == (BAD, True)
    cluster.away = lambda method, path: None
    assert "small job" not in system(cluster, kind="jobset")
    posts = [(path, query) for method, path, query in cluster.calls if method == "POST" and "reviews" not in path]
    assert posts and all(query == {"dryRun": "All"} for _, query in posts)
    scheduler = create_mcad("me", client=Cluster(groups=["workload.codeflare.dev/v1beta2"]))
    checks = scheduler.diagnose({"namespace": "default"})
    assert {f.what: f.verdict for check in checks for f in check.findings()}["small job"] == GOOD


def test_a_job_that_fits(cluster: Cluster) -> None:
    """Admission, quota, nodes and image are good; nothing is created."""
    before = dict(cluster.objects)
    assert verdicts(job(cluster)) == dict.fromkeys(["admission", "quota", "nodes", "image of role `trainer`"], GOOD)
    assert cluster.objects == before
    assert all(
        query.get("dryRun") for method, path, query in cluster.calls if method == "POST" and "reviews" not in path
    )


def test_mcad(cluster: Cluster) -> None:
    """Jobs and clusters are checked for AppWrappers, too; both checks report a cluster without MCAD."""
    found = job(cluster, create=create_mcad)
    assert found["admission"].verdict == BAD
    scheduler = create_mcad("me", client=cluster)
    kind = {f.what: f for check in scheduler.diagnose({"namespace": "default"}) for f in check.findings()}["kind"]
    assert (kind.verdict, "no `workload.codeflare.dev`" in kind.said) == (BAD, True)


@pytest.mark.parametrize(
    ("cfg", "what", "fix"),
    [
        ({"namespace": "tame"}, "namespace `tame`", "`kubectl create namespace tame`"),
        ({"kind": "jobset"}, "kind", "`-cfg kind=job`"),
        ({"kind": "volcano"}, "kind", "`-cfg kind=job`"),
        ({"kind": "kubeflow"}, "kind", "`-cfg kind=job`"),
    ],
)
def test_options_for_which_there_is_nothing(cluster: Cluster, cfg: dict[str, str], what: str, fix: str) -> None:
    """Each missing object is bad, with a fix."""
    found = system(cluster, **cfg)[what]
    assert found.verdict == BAD
    assert fix in found.fix


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize("there", [True, False])
def test_a_queue_of_kueue(cluster: Cluster, there: bool, version: str) -> None:
    """A missing queue is bad; one that accepts no jobs now, or a cluster without Kueue, is a doubt."""
    queue = f"apis/kueue.x-k8s.io/{version}/localqueues"
    assert system(cluster, local_queue="team")["queue `team`"].verdict == UNKNOWN
    cluster.groups.add(f"kueue.x-k8s.io/{version}")
    assert system(cluster, local_queue="team")["queue `team`"].verdict == BAD
    inactive = {"status": {"conditions": [{"type": "Active", "status": "False", "message": "stopped"}]}}
    put(cluster, queue, "default", "team", {} if there else inactive)
    assert system(cluster, local_queue="team")["queue `team`"].verdict == (GOOD if there else UNKNOWN)


@pytest.mark.parametrize(
    ("right", "verdict"),
    [
        (("create", "batch", "jobs"), BAD),
        (("delete", "batch", "jobs"), BAD),
        (("list", "", "pods"), BAD),
        (("create", "", "services"), BAD),
        (("create", "", "configmaps"), BAD),
        (("list", "", "events"), UNKNOWN),
        (("create", "", "secrets"), UNKNOWN),
    ],
)
def test_a_right_that_is_missing(cluster: Cluster, right: tuple[str, str, str], verdict: str) -> None:
    """A right that every job needs is bad, others are doubts; the fix prints what to grant."""
    from torchx.schedulers.kubernetes.api.rights import needed
    from torchx.schedulers.kubernetes.client import PLURALS

    cluster.rights = {
        (verb, PLURALS[kind.partition("/")[0]][0].removeprefix("apis/").partition("/")[0].removeprefix("api"), PLURALS[kind.partition("/")[0]][1])
        for kind, verbs in needed("job", queued=False, inline=True).items()
        for verb in verbs.split()
    } - {right}  # fmt: skip
    found = system(cluster, kind="job")["rights"]
    assert (found.verdict, right[0] in found.said, "runopts kubernetes --rbac" in found.fix) == (verdict, True, True)


REFERENCES: dict[str, tuple[Callable[[Role], object], dict[str, str], str, str]] = {
    "claim": (
        lambda r: r.mounts.append(VolumeMount("models", "/m")),
        {},
        "claim `models`",
        "kubectl get persistentvolumeclaims",
    ),
    "account": (lambda r: None, {"service_account": "tarin"}, "service account `tarin`", "create serviceaccount tarin"),
    "priority": (lambda r: None, {"priority_class": "hihg"}, "priority class `hihg`", "kubectl get priorityclasses"),
    "secret": (lambda r: None, {"secret_files": {"/etc/hf": "hf"}}, "secret `hf`", "kubectl get secrets"),  # type: ignore[dict-item]  # a mapping
}
PLACES = {
    "claim": ("api/v1/persistentvolumeclaims", "default", "models"),
    "account": ("api/v1/serviceaccounts", "default", "tarin"),
    "priority": ("apis/scheduling.k8s.io/v1/priorityclasses", None, "hihg"),
    "secret": ("api/v1/secrets", "default", "hf"),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_what_pods_refer_to(cluster: Cluster, case: str) -> None:
    """A missing object is bad, an existing one good, and one that we may not read a doubt."""
    change, cfg, what, fix = REFERENCES[case]
    found = job(cluster, change, **cfg)[what]
    assert (found.verdict, fix in found.fix) == (BAD, True)
    put(cluster, *PLACES[case], {})
    assert job(cluster, change, **cfg)[what].verdict == GOOD
    cluster.rights = set()
    assert job(cluster, change, **cfg)[what].verdict == UNKNOWN


def test_a_host_path_is_nobodys_business(cluster: Cluster) -> None:
    """Host paths are not checked, because they are on the nodes."""
    assert set(job(cluster, lambda r: r.mounts.append(BindMount("/data", "/d")))) == set(job(cluster))


SIZES: dict[str, tuple[Callable[[Role], object], str]] = {
    "too many CPUs": (lambda r: setattr(r.resource, "cpu", 65), BAD),
    "too much memory": (lambda r: setattr(r.resource, "memMB", 600_000), BAD),
    "too many GPUs": (lambda r: setattr(r.resource, "gpu", 16), BAD),
    "all of it": (lambda r: setattr(r.resource, "gpu", 8), GOOD),
    "a device that nobody has": (lambda r: r.resource.devices.update({"vpc.amazonaws.com/efa": 1}), BAD),
}


@pytest.mark.parametrize("case", SIZES)
def test_a_node_that_fits(cluster: Cluster, case: str) -> None:
    """One node must have all resources of a replica; the fix shows the nodes' resources."""
    change, verdict = SIZES[case]
    found = job(cluster, change)["nodes"]
    assert found.verdict == verdict
    assert ("kubectl get nodes" in found.fix) == (verdict == BAD)


def test_what_a_trainjob_asks_for(cluster: Cluster) -> None:
    """The resources of its replicas are in its trainer, not in the template of its pods."""
    put(cluster, "api/v1/resourcequotas", "default", "q", {"status": {"hard": {"requests.nvidia.com/gpu": "17"}}})
    found = job(cluster, lambda role: setattr(role.resource, "gpu", 16), kind="kubeflow")
    assert (found["nodes"].verdict, "nvidia.com/gpu 16" in found["nodes"].said) == (BAD, True)
    assert (found["quota"].verdict, found["quota"].said.partition(" ")[0]) == (BAD, "32")


def test_labels_of_nodes(cluster: Cluster) -> None:
    """A label that no node has, or only a node that is too small, is bad."""
    assert job(cluster, node_selector={"gpu": "a100"})["nodes"].verdict == BAD
    put(cluster, "api/v1/nodes", None, "n2", node(gpu=1, labels={"gpu": "a100"}))
    assert job(cluster, node_selector={"gpu": "a100"})["nodes"].verdict == BAD
    put(cluster, "api/v1/nodes", None, "n2", node(labels={"gpu": "a100"}))
    assert job(cluster, node_selector={"gpu": "a100"})["nodes"].verdict == GOOD


@pytest.mark.parametrize("grows", ["cloud", "karpenter", "autoscaler", "hidden", "forbidden"])
def test_clusters_that_grow(cluster: Cluster, grows: str) -> None:
    """If larger nodes may be added, too small nodes are a doubt."""
    if grows == "cloud":
        put(cluster, "api/v1/nodes", None, "n1", node(providerID="gce://p/z/n1"))
    elif grows == "karpenter":
        cluster.groups.add("karpenter.sh/v1")
    elif grows == "autoscaler":
        put(cluster, "api/v1/configmaps", "kube-system", "cluster-autoscaler-status", {})
    elif grows == "hidden":
        cluster.away = lambda method, path: refusal(403, "Forbidden", "no") if path.endswith("-status") else None
    else:
        cluster.away = lambda method, path: refusal(403, "Forbidden", "no") if path.endswith("/nodes") else None
    assert job(cluster, lambda r: setattr(r.resource, "gpu", 16))["nodes"].verdict == UNKNOWN


@pytest.mark.parametrize(
    ("hard", "used", "verdict"),
    [
        ({"requests.nvidia.com/gpu": "3"}, {}, BAD),
        ({"requests.nvidia.com/gpu": "8"}, {"requests.nvidia.com/gpu": "6"}, UNKNOWN),
        ({"requests.nvidia.com/gpu": "8"}, {"requests.nvidia.com/gpu": "2"}, GOOD),
        ({"cpu": "15"}, {}, BAD),
        ({"requests.memory": "100Gi"}, {}, BAD),
        ({"pods": "1"}, {}, BAD),
        ({"pods": "2", "count/jobs.batch": "1"}, {}, GOOD),
    ],
)
def test_quotas(cluster: Cluster, hard: dict[str, str], used: dict[str, str], verdict: str) -> None:
    """Needing more than the quota is bad; needing more than is free now is a doubt."""
    put(cluster, "api/v1/resourcequotas", "default", "q", {"spec": {}, "status": {"hard": hard, "used": used}})
    assert job(cluster)["quota"].verdict == verdict
    scoped = {"spec": {"scopes": ["BestEffort"]}, "status": {"hard": {"pods": "0"}}}
    put(cluster, "api/v1/resourcequotas", "default", "q", scoped)
    assert job(cluster)["quota"].verdict == GOOD


@pytest.mark.parametrize("kind", ["job", "volcano"])
def test_a_quota_of_two_roles(cluster: Cluster, kind: str) -> None:
    """Each role counts with its own requests, also if there is a template for each replica."""
    put(cluster, "api/v1/resourcequotas", "default", "q", {"status": {"hard": {"requests.nvidia.com/gpu": "4"}}})
    roles = [
        Role(name, IMAGE, entrypoint="e", num_replicas=n, resource=Resource(1, gpu, 1))
        for name, n, gpu in [("a", 2, 1), ("b", 1, 8)]
    ]
    scheduler, cfg = create_scheduler("me", client=cluster), {"kind": kind}
    checks = scheduler.diagnose(cfg, scheduler.submit_dryrun(AppDef("train", roles), cfg))
    (found,) = next(check for check in checks if check.what == "quota").findings()
    assert (found.verdict, found.said.partition(" ")[0]) == (BAD, "10")


def test_an_elastic_job_needs_the_least_only(cluster: Cluster) -> None:
    """Only `min_replicas` must fit."""
    put(cluster, "api/v1/resourcequotas", "default", "q", {"status": {"hard": {"pods": "1"}}})
    assert job(cluster, lambda r: setattr(r, "min_replicas", 1))["quota"].verdict != BAD


@pytest.mark.parametrize(
    ("said", "status", "verdict"),
    [
        ('admission webhook "policy" denied the request: no latest tags', 403, BAD),
        ("Job.batch is invalid: spec.template: Invalid value", 422, BAD),
        ('jobs.batch is forbidden: User "ann" cannot create resource "jobs"', 403, BAD),
        ("jobs.batch is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: 1", 403, UNKNOWN),
        ("exceeded quota: q, requested: cpu=1,pods=1, used: cpu=0,pods=3, limited: cpu=4,pods=3", 403, UNKNOWN),
        ("exceeded quota: q, requested: cpu=1500m,pods=1, used: cpu=0,pods=0, limited: cpu=1,pods=3", 403, BAD),
        ("exceeded quota: q, requested: cpu=1, used: cpu=0, limited: cpu=0", 403, BAD),
        ("exceeded quota: q, requested: cpu=a, used: cpu=0, limited: cpu=0", 403, UNKNOWN),
        ('failed calling webhook "x": Post timed out', 500, UNKNOWN),
        ("too many requests", 429, UNKNOWN),
    ],
)
def test_admission(cluster: Cluster, said: str, status: int, verdict: str) -> None:
    """A rejection by the API server is bad, unless it is transient."""
    cluster.away = lambda method, path: (
        refusal(status, "x", said) if method == "POST" and path.endswith("/jobs") else None
    )
    assert job(cluster)["admission"].verdict == verdict


IMAGES = {
    "typo in the tag": (IMAGE + "0", [node()], BAD),
    "on a node already": (IMAGE + "0", [node(images=[{"names": [IMAGE + "0"]}])], GOOD),
    "nodes list a part only": (IMAGE + "0", [node(images=[{"names": [f"x:{i}"]} for i in range(50)])], UNKNOWN),
}


@pytest.mark.parametrize("case", IMAGES)
def test_images(cluster: Cluster, case: str) -> None:
    """An image that is neither in its registry nor on a node is bad."""
    image, nodes, verdict = IMAGES[case]
    put(cluster, "api/v1/nodes", None, "n1", nodes[0])
    found = job(cluster, lambda r: setattr(r, "image", image))["image of role `trainer`"]
    assert found.verdict == verdict
    assert "--image HOST/NAME:TAG" in found.fix or verdict == GOOD


def test_an_image_for_other_machines(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix builds an image for the platform of the nodes."""
    serve(monkeypatch, {IMAGE: ["arm64"]})
    found = job(cluster)["image of role `trainer`"]
    assert (found.verdict, "--platform linux/amd64" in found.fix) == (BAD, True)


def test_a_registry_that_lets_us_not_in(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that requires a login, or does not respond, is a doubt: the cluster may have access."""
    from torchx.errors import BackendError, TransientError

    for error in (BackendError("401 Unauthorized"), TransientError("no answer")):
        serve(monkeypatch, error)
        assert job(cluster)["image of role `trainer`"].verdict == UNKNOWN


@pytest.mark.parametrize(
    "error",
    [
        urllib3.exceptions.ConnectTimeoutError(None, "/", "timed out"),
        urllib3.exceptions.NewConnectionError(None, "refused"),
        urllib3.exceptions.ProtocolError("Connection aborted"),
    ],
)
def test_cut_connections(cluster: Cluster, error: Exception) -> None:
    """They are doubts, and nothing is retried."""
    cluster.away = lambda method, path: error  # type: ignore[assignment]  # it is raised
    assert set(verdicts(system(cluster)).values()) == {UNKNOWN}
    assert (
        set(verdicts(job(cluster)).values()) - {UNKNOWN} == set()
        or job(cluster)["image of role `trainer`"].verdict != BAD
    )
    assert all(f.verdict != BAD for f in job(cluster).values())


def test_no_cluster_is_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """This is certain, and reported once."""
    pytest.importorskip("kubernetes")
    from torchx.runner import get_runner

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with get_runner() as runner:
        (found,) = runner.doctor("kubernetes")
    assert (found.verdict, "KUBECONFIG" in found.fix) == (BAD, True)


def test_credentials_that_are_refused(cluster: Cluster) -> None:
    """Status 401 is certain, 403 for the version is not."""
    cluster.away = lambda method, path: refusal(401, "Unauthorized", "Unauthorized")
    assert system(cluster)["cluster"].verdict == BAD
    cluster.away = lambda method, path: refusal(403, "Forbidden", "no")
    assert system(cluster)["cluster"].verdict == UNKNOWN
