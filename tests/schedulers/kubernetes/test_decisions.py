"""Decisions of one line each: errors of the API, checks of a cluster, limits and retries of Jobs, and the next attempt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response, refusal
from torchx.errors import (
    BackendError,
    NotFoundError,
    NotSupportedError,
    ParseError,
    SpecError,
    TorchXError,
    TransientError,
)
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN
from torchx.schedulers.kubernetes import client, doctor, job_retries, names, our_retries, shipped_code
from torchx.schedulers.kubernetes.api import errors
from torchx.schedulers.kubernetes.api.errors import ApiError, BusyError
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.export import export
from torchx.schedulers.kubernetes.kinds import kinds
from torchx.schedulers.kubernetes.options import KubernetesOpts
from torchx.schedulers.kubernetes.pods.specs import JobRules
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, Resource, RetryPolicy, Role
from torchx.specs.api import Workspace
from torchx.specs.wishes.retries import Attempt

# -- the API -------------------------------------------------------------------------------------------------

CANNOT = 'pods is forbidden: User "ann" cannot list resource "pods" in API group ""'
NO_KIND = "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("status", "message", "known", "error", "hint"),
    [
        (404, "x", False, NotFoundError, ""),
        (404, "x", True, NotFoundError, ""),
        (404, NO_KIND, False, NotFoundError, ""),
        (404, NO_KIND, True, BusyError, ""),
        (401, "x", False, ApiError, "log in again"),
        (403, CANNOT, False, ApiError, "administrator can grant it"),
        (403, CANNOT, True, BusyError, "administrator can grant it"),
        (403, "denied by a policy", True, ApiError, ""),
        (400, CANNOT, True, ApiError, ""),
        (409, "x", True, ApiError, ""),
        *((status, "x", False, BusyError, "") for status in (429, 500, 502, 503, 504)),
        (501, "x", False, ApiError, ""),
    ],
)
def test_what_an_error_means(status: int, message: str, known: bool, error: type[Exception], hint: str) -> None:
    """Missing rights and kinds are transient where they were there before: the server is starting."""
    found = errors.refusal("GET", "/p", refusal(status, "X", message, {"Retry-After": "7"}), known=known)
    assert type(found) is error and message in str(found)
    assert hint in str(found.hint) and bool(found.hint) is bool(hint)
    if isinstance(found, ApiError):
        assert (found.status, found.retry_after) == (status, "7")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"message": "m"}', "m"),
        (b'{"message": ""}', '{"message": ""}'),
        (b"[1]", "[1]"),
        (b" first\nsecond", "first"),
        (b"x" * 600, "x" * 500),
        (b"", "HTTP 400"),
        (b"\xff", "\ufffd"),
    ],
)
def test_the_words_of_an_error(body: bytes, said: str) -> None:
    """The message, else the first line of what came, else the status."""
    found = errors.refusal("GET", "/p", Response(400, body), known=False)
    assert str(found) == f"the Kubernetes API refused `GET /p`: {said}"
    assert str(errors.refusal("GET", "/p", Response(400, body, cut=0), known=False)).endswith(": HTTP 400")


@pytest.mark.parametrize(
    ("after", "attempt", "pause"),
    [
        ("", 1, 0.2),
        ("", 2, 0.4),
        ("", 5, 3.2),
        ("", 6, 5.0),
        ("", 9, 5.0),
        ("3", 1, 3.0),
        ("30", 1, 30.0),
        ("30.5", 1, 30.0),
        ("x", 1, 0.2),
    ],
)
def test_the_pause_before_a_retry(after: str, attempt: int, pause: float) -> None:
    """As the server asks, half a minute at most; else longer each time, five seconds at most."""
    assert client._pause(BusyError("x", status=429, retry_after=after), attempt) == pause
    assert client._pause(TransientError("x"), attempt) == pytest.approx(min(0.1 * 2**attempt, 5))


@pytest.mark.parametrize(
    ("answer", "version"),
    [({"major": "1", "minor": "37+"}, (1, 37)), ({"major": "", "minor": "7"}, (1, 7)), ({"major": "2"}, (2, 0)), ({}, (1, 0)), ({"minor": "x"}, (1, 0))],
)  # fmt: skip
def test_the_version_of_a_cluster(answer: Any, version: tuple[int, int]) -> None:
    """Whatever a vendor adds to it."""
    cluster: Any = Cluster()
    cluster.away = lambda method, path: Response(200, answer)
    assert KubeApi(cluster).version() == version


@pytest.mark.parametrize(
    ("status", "fails"), [(200, False), (201, False), (299, False), (300, True), (307, True), (400, True)]
)
def test_which_status_is_an_error(status: int, fails: bool) -> None:
    """From 300 on: redirects are not followed."""
    cluster: Any = Cluster()
    cluster.away = lambda method, path: Response(status, {})
    api = KubeApi(cluster)
    if fails:
        with pytest.raises(BackendError):
            api.get("/x")
    else:
        assert api.get("/x") == {}


def test_warnings_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """Once each, of what we create; in their own words."""
    cluster: Any = Cluster()
    warning = {"Warning": '299 - "a \\"b\\""'}
    cluster.away = lambda method, path: Response(200, {}, warning)
    api = KubeApi(cluster)
    api.get("/x")
    assert caplog.text == ""
    for _ in range(2):
        api.post("/x", {})
    assert caplog.text.count('the cluster warns: a "b"') == 1
    warning["Warning"] = "odd"
    api.post("/x", {})
    assert "the cluster warns: odd" in caplog.text


@pytest.mark.parametrize(
    ("answer", "may"),
    [({"status": {"allowed": True}}, True), ({"status": {"allowed": False}}, False), ({"status": {}}, True), ({"status": None}, True), (403, True), (404, True)],
)  # fmt: skip
def test_whether_we_may(answer: Any, may: bool) -> None:
    """Yes, if the cluster does not say."""
    cluster: Any = Cluster()
    sent: list[Any] = []
    cluster.away = lambda method, path: refusal(answer, "X", "x") if isinstance(answer, int) else Response(201, answer)
    api = KubeApi(cluster)
    post = api.post
    api.post = lambda path, item: sent.append(item["spec"]["resourceAttributes"]) or post(path, item)  # type: ignore[method-assign]
    assert api.may("get", "Pod/log", "n") is may and api.may("create", "Job", "n") is may
    assert sent == [
        {"namespace": "n", "verb": "get", "group": "", "resource": "pods", "subresource": "log"},
        {"namespace": "n", "verb": "create", "group": "batch", "resource": "jobs"},
    ]


def test_a_dry_run_that_a_webhook_prevents() -> None:
    """Its object is taken as it is; any other refusal is an error."""
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}}
    cluster = Cluster()
    said = 'admission webhook "x" does not support dry run'
    cluster.faults += [("POST", "pods", refusal(400, "BadRequest", said), "before")] * 2
    assert KubeApi(cluster).create(item, dry_run=True) is item
    with pytest.raises(ApiError):
        KubeApi(cluster).create(item)
    assert cluster.calls[0][2] == {"dryRun": "All"} and cluster.calls[1][2] == {}
    KubeApi(cluster).create(item, unknown_fields="Strict")
    assert cluster.calls[2][2] == {"fieldValidation": "Strict"}
    with pytest.raises(BackendError, match="there is no namespace `n`") as e:
        cluster.faults.append(("POST", "pods", refusal(404, "NotFound", 'namespaces "n" not found'), "before"))
        KubeApi(cluster).create(item)
    assert e.value.hint == "kubectl create namespace n"
    with pytest.raises(BackendError, match="the cluster has no `JobSet`"):
        KubeApi(cluster).create({**item, "kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2"})


# -- checks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("1500m", 1.5), ("2Gi", 2**31), ("1e3", 1000), ("1E-1", 0.1), ("1k", 1000), ("1Ki", 1024), ("1Ei", 2**60), ("1E", 1e18), ("3n", 3e-9), (3, 3),
     ("", None), ("x", None), ("1X", None), ("-1", None), (None, None)],
)  # fmt: skip
def test_quantities(text: object, number: float | None) -> None:
    """With any unit of the API."""
    if number is None:
        with pytest.raises(ParseError, match="is not a quantity"):
            doctor.amount(text)
    else:
        assert doctor.amount(text) == pytest.approx(number)


def node(cpu: str = "4", *, provider: str = "", images: Any = (), arch: str = "amd64", **labels: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi"}, "images": images, "nodeInfo": {"architecture": arch}}
    return {"metadata": {"name": "n", "labels": labels}, "spec": {"providerID": provider}, "status": status}


def wanted(cpu: str, **selector: str) -> dict[str, Any]:
    return {"containers": [{"resources": {"requests": {"cpu": cpu}}}], "nodeSelector": selector or None}


@pytest.mark.parametrize(
    ("nodes", "spec", "verdict", "said"),
    [
        ([], wanted("1"), UNKNOWN, "not checked"),
        ([node()], wanted("4"), GOOD, "1 of 1 are large enough for a replica (cpu 4)"),
        ([node(), node("1")], wanted("2"), GOOD, "1 of 2 are large enough"),
        ([node()], wanted("5"), BAD, "none of 1 are large enough"),
        ([node()], wanted("1", gpu="x"), BAD, "none of 1 are large enough for a replica (cpu 1, gpu=x)"),
        ([node(gpu="x")], wanted("1", gpu="x"), GOOD, "1 of 1"),
        ([node(gpu="y")], wanted("1", gpu="x"), BAD, "none of 1"),
        ([node(provider="aws:///x")], wanted("5"), UNKNOWN, "none of 1"),
        ([node(provider="kind://x"), node(provider="k3s://x")], wanted("5"), BAD, "none of 2"),
        ([{}], wanted("1"), BAD, "none of 1"),
    ],
)
def test_whether_a_replica_fits(nodes: list[Any], spec: dict[str, Any], verdict: str, said: str) -> None:
    """On one of the nodes; a cluster of a cloud may get larger ones."""
    cluster = Cluster(groups=["apps/v1"])
    (found,) = doctor._fits(KubeApi(cluster), nodes, [spec, spec])
    assert found.verdict == verdict and said in found.said


@pytest.mark.parametrize(
    ("groups", "status", "grows"),
    [
        (["apps/v1"], 404, False),
        (["apps/v1"], 200, True),
        (["apps/v1"], 403, True),
        (["karpenter.sh/v1"], 404, True),
        (["cluster.x-k8s.io/v1beta1"], 404, True),
        (["autoscaling.x-k8s.io/v1"], 404, True),
        ([], 404, True),
    ],
)
def test_whether_nodes_may_be_added(groups: list[str], status: int, grows: bool) -> None:
    """By an autoscaler; if nobody says, they may."""
    cluster: Any = Cluster(groups=groups)
    answer = Response(200, {}) if status == 200 else refusal(status, "X", "x")
    cluster.away = lambda method, path: answer if path.endswith("cluster-autoscaler-status") else None
    assert doctor._may_grow(KubeApi(cluster), [node()]) is grows


@pytest.mark.parametrize(
    ("images", "image", "has"),
    [
        ([[{"names": ["docker.io/library/img:1"]}]], "img:1", True),
        ([[{"names": ["docker.io/library/img:1"]}]], "docker.io/library/img:1", True),
        ([[{"names": ["r.io/img:1"]}]], "docker.io/img:2", False),
        ([[{"names": None}, {}], []], "img:1", False),
        ([[{}] * 49], "img:1", False),
        ([[{}] * 50], "img:1", None),
        ([[{}] * 50, []], "img:1", None),
        ([[], [{"names": ["img:1"]}]], "img:1", True),
        ([], "img:1", None),
    ],
)
def test_whether_a_node_has_an_image(images: list[Any], image: str, has: bool | None) -> None:
    """A node lists some of its images only."""
    assert doctor._has_image([node(images=some) for some in images], image) is has
    assert doctor._has_image([{}], image) is False


def test_the_architectures_of_the_nodes() -> None:
    """Unknown, if one is."""
    assert doctor._architectures([node(), node(arch="arm64")]) == {"amd64", "arm64"}
    assert doctor._architectures([node(), {}]) == doctor._architectures([node(arch="")]) == set()


def quota(hard: str, used: str = "0", *, key: str = "pods", scopes: Any = None, selector: Any = None) -> dict[str, Any]:
    return {
        "metadata": {"name": "q"},
        "spec": {"scopes": scopes, "scopeSelector": selector},
        "status": {"hard": {key: hard}, "used": {key: used}},
    }


@pytest.mark.parametrize(
    ("quotas", "verdicts"),
    [
        ([], [GOOD]),
        ([quota("3")], [GOOD]),
        ([quota("4", "1")], [GOOD]),
        ([quota("4", "2")], [UNKNOWN]),
        ([quota("2")], [BAD]),
        ([quota("2", scopes=["Terminating"])], [GOOD]),
        ([quota("2", selector={})], [BAD]),
        ([quota("2", selector={"matchExpressions": [1]})], [GOOD]),
        ([quota("5", key="requests.cpu")], [BAD]),
        ([quota("6", key="requests.cpu")], [GOOD]),
        ([quota("5", key="cpu")], [BAD]),
        ([quota("1", key="services")], [GOOD]),
        ([quota("2"), quota("5", key="cpu")], [BAD, BAD]),
        ([{"metadata": {"name": "q"}}], [GOOD]),
        (403, [UNKNOWN]),
    ],
)
def test_quotas(quotas: Any, verdicts: list[str]) -> None:
    """What the job needs in all, against what is left; more than the quota itself is bad."""
    cluster: Any = Cluster()
    answer = refusal(403, "Forbidden", "no") if quotas == 403 else Response(200, {"items": quotas})
    cluster.away = lambda method, path: answer
    template = {"metadata": {"labels": {names.LABEL_ROLE_INDEX: "0"}}, "spec": wanted("2")}
    role = Role("w", "i", entrypoint="x", num_replicas=3)
    found = doctor._quotas(KubeApi(cluster), "n", [template], [role])
    findings = found if isinstance(found, list) else [found]
    assert [GOOD if isinstance(one, str) else one.verdict for one in findings] == verdicts
    elastic = Role("w", "i", entrypoint="x", num_replicas=3, min_replicas=1)
    if quotas == [quota("2")]:
        assert isinstance(doctor._quotas(KubeApi(cluster), "n", [template], [elastic]), str)


@pytest.mark.parametrize(
    ("answer", "verdict", "said"),
    [
        ({}, GOOD, "exists"),
        ({"status": {"phase": "Lost"}}, BAD, "is Lost"),
        ({"status": {"phase": "Terminating"}}, BAD, "is Terminating"),
        ({"status": {"phase": "Bound"}}, GOOD, "exists"),
        ({"status": {"conditions": [{"type": "Active", "status": "False", "message": "stopped"}]}}, UNKNOWN, "takes no jobs now: stopped"),
        ({"status": {"conditions": [{"type": "Active", "status": "True"}]}}, GOOD, "exists"),
        ({"status": {"conditions": [{"type": "Other", "status": "False"}]}}, GOOD, "exists"),
        ((404, "x"), BAD, "does not exist"),
        ((404, NO_KIND), UNKNOWN, NO_KIND),
        ((403, CANNOT), UNKNOWN, "jobs do not need this right"),
        ((400, "x"), None, ""),
    ],
)  # fmt: skip
def test_an_object_that_a_job_needs(answer: Any, verdict: str | None, said: str) -> None:
    """Whether it is there, and can be used."""
    cluster: Any = Cluster()
    given = Response(200, answer) if isinstance(answer, dict) else refusal(answer[0], "X", answer[1])
    cluster.away = lambda method, path: given
    api = doctor.HastyApi(cluster)
    if verdict is None:
        with pytest.raises(ApiError):
            doctor._exists(api, "/x", "fix")
        return
    found = doctor._exists(api, "/x", "fix")
    assert (
        (GOOD, found) == (verdict, said) if isinstance(found, str) else found.verdict == verdict and said in found.said
    )


def test_checks_do_not_wait() -> None:
    """One attempt, which ends before the 15 s that all checks have."""
    slept: list[float] = []
    cluster = Cluster()
    cluster.faults += [("GET", "/version", refusal(503, "X", "x"), "before")] * 2
    with pytest.raises(BackendError):
        doctor.HastyApi(cluster, sleep=slept.append).version()
    assert (slept, len(cluster.calls), doctor.HastyApi()._timeout_s) == ([], 1, 13.5)
    found = doctor._cluster(doctor.HastyApi(cluster, sleep=slept.append))
    assert not isinstance(found, str) and found.verdict == UNKNOWN
    assert doctor._cluster(doctor.HastyApi(cluster)) == "Kubernetes 1.37 at `https://cluster:6443`"
    cluster.faults.append(("GET", "/version", refusal(401, "X", "x"), "before"))
    with pytest.raises(ApiError):
        doctor._cluster(doctor.HastyApi(cluster))


@pytest.mark.parametrize(
    ("kind", "groups", "verdict", "said"),
    [
        ("jobset", ["jobset.x-k8s.io/v1alpha2"], GOOD, "the cluster has `jobset.x-k8s.io`"),
        ("jobset", ["apps/v1"], BAD, "the cluster has no `jobset.x-k8s.io`"),
        ("jobset", [], UNKNOWN, "besides Jobs, the cluster has none"),
        ("job", ["jobset.x-k8s.io/v1alpha2", "kueue.x-k8s.io/v1beta1"], GOOD, "has JobSet, Kueue"),
        ("auto", ["batch.volcano.sh/v1alpha1"], GOOD, "has Volcano"),
        ("auto", ["apps/v1"], GOOD, "has none"),
    ],
)
def test_the_kind_of_a_job(kind: str, groups: list[str], verdict: str, said: str) -> None:
    """Whether its operator is there."""
    found = doctor._kind(KubeApi(Cluster(groups=groups)), kind)
    assert (
        GOOD if isinstance(found, str) else found.verdict,
        said in (found if isinstance(found, str) else found.said),
    ) == (verdict, True)


NEEDED = {"Job": "create get", "Pod": "list", "Event": "list"}


@pytest.mark.parametrize(
    ("missing", "verdicts"),
    [([], []), ([("create", "batch", "jobs")], [BAD]), ([("list", "", "events")], [UNKNOWN]), ([("list", "", "pods"), ("list", "", "events")], [BAD, UNKNOWN])],
)  # fmt: skip
def test_rights(missing: list[Any], verdicts: list[str]) -> None:
    """Those without which no job runs, and others."""
    cluster = Cluster()
    every = {("create", "batch", "jobs"), ("get", "batch", "jobs"), ("list", "", "pods"), ("list", "", "events")}
    cluster.rights = every - set(missing)
    found = doctor._rights(KubeApi(cluster), "n", NEEDED)
    if missing:
        assert not isinstance(found, str) and [one.verdict for one in found] == verdicts
        assert "`torchx runopts kubernetes --rbac`" in str(found[0].fix)
    else:
        assert found == "all 4 that are used in `n`"


# -- limits and retries of Jobs ------------------------------------------------------------------------------


def role(**fields: Any) -> Role:
    return Role("w", "img", entrypoint="x", resource=Resource(1, 0, 64), **{"num_replicas": 3, **fields})


REPLICA = RetryPolicy.REPLICA


@pytest.mark.parametrize(
    ("fields", "version", "never", "limits"),
    [
        ({}, (1, 25), True, {"backoffLimit": 0}),
        ({}, (1, 26), True, {"backoffLimit": 0, "policy": 1}),
        ({}, (1, 37), False, {"backoffLimit": 0}),
        ({"max_retries": 2}, (1, 37), True, {"backoffLimit": 2, "policy": 1}),
        (
            {"max_retries": 2, "retry_policy": REPLICA},
            (1, 37),
            True,
            {"backoffLimitPerIndex": 2, "maxFailedIndexes": 0, "policy": 1},
        ),
        ({"max_retries": 2, "retry_policy": REPLICA}, (1, 28), True, {"backoffLimit": 6, "policy": 1}),
        ({"max_retries": 2, "retry_policy": REPLICA}, (1, 37), False, {"backoffLimit": 6}),
        ({"retry_policy": REPLICA}, (1, 37), True, {"backoffLimit": 0, "policy": 1}),
        ({"min_replicas": 1}, (1, 37), True, {"backoffLimitPerIndex": 0, "maxFailedIndexes": 2, "policy": 1}),
        ({"min_replicas": 1, "max_retries": 2}, (1, 28), True, {"backoffLimit": 8, "policy": 1}),
        ({"min_replicas": 3}, (1, 37), True, {"backoffLimit": 0, "policy": 1}),
    ],
)
def test_how_many_pods_may_fail(fields: Any, version: tuple[int, int], never: bool, limits: dict[str, int]) -> None:
    """By what the version of the cluster supports."""
    rules = JobRules(KubernetesOpts(), version=version)
    found = kinds._limits(role(**fields), rules, {"spec": {"restartPolicy": "Never" if never else "OnFailure"}})
    policy = found.pop("podFailurePolicy", None)
    assert {**found, **({"policy": len(policy["rules"])} if policy else {})} == limits


@pytest.mark.parametrize(
    ("wish", "fields", "actions"),
    [
        ("preempted:free", {}, ["Ignore"]),
        ("error:2", {}, ["FailJob", "FailJob", "Count"]),
        ("oom:2", {}, ["FailJob", "Count", "FailJob"]),
        ("oom:2, preempted:free", {}, ["Ignore", "Count", "FailJob"]),
        ("error:2", {"retry_policy": REPLICA}, ["FailIndex", "FailIndex", "Count"]),
        ("error:2", {"min_replicas": 1}, ["FailIndex", "FailIndex", "Count"]),
    ],
)
def test_the_rules_of_a_policy(wish: str, fields: Any, actions: list[str]) -> None:
    """Which failures count, and which end the Job or its replica."""
    from torchx.specs.wishes.retries import RETRY, RetryRules

    app = AppDef("a", [role(**fields)], metadata={RETRY: wish})
    kept = job_retries.SYSTEM.keep(RetryRules.parse(wish).within((), "kubernetes"))
    found = job_retries.render(app.roles[0], kept, {"spec": {"restartPolicy": "Never"}})
    assert [rule["action"] for rule in found["podFailurePolicy"]["rules"]] == actions
    own = "backoffLimitPerIndex" in found
    assert own is bool(fields) and (found["maxFailedIndexes"] if own else 0) == (2 if "min_replicas" in fields else 0)
    assert job_retries.render(app.roles[0], job_retries.BY_TORCHX, {"spec": {"restartPolicy": "Never"}}) == {
        "backoffLimit": 2 if "min_replicas" in fields else 0
    }
    with pytest.raises(SpecError, match="restartPolicy"):
        job_retries.render(app.roles[0], kept, {"spec": {}})


@pytest.mark.parametrize(
    ("wish", "fields", "kind", "version", "by"),
    [
        (None, {}, "job", (1, 37), None),
        ("error:2", {}, "job", (1, 26), "cluster"),
        ("error:2", {}, "job", (1, 25), "torchx"),
        ("error:2", {"retry_policy": REPLICA}, "job", (1, 29), "cluster"),
        ("error:2", {"retry_policy": REPLICA}, "job", (1, 28), BackendError),
        ("error:20", {}, "job", (1, 37), "cluster"),
        ("error:21", {}, "job", (1, 37), "torchx"),
        ("oom:2:mem*1.5", {}, "job", (1, 37), "torchx"),
        ("node:2:avoid", {}, "job", (1, 37), "torchx"),
        ("error:2", {}, "jobset", (1, 37), NotSupportedError),
    ],
)
def test_who_retries(wish: str | None, fields: Any, kind: str, version: tuple[int, int], by: Any) -> None:
    """The cluster, if its rules can express the policy; else torchx."""
    from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler
    from torchx.specs.wishes.retries import RETRY

    app = AppDef("a", [role(**fields)], metadata={RETRY: wish} if wish else {})
    caps = KubernetesScheduler.capabilities
    if by in (BackendError, NotSupportedError):
        with pytest.raises(by):
            job_retries.policy(app, kind, caps, version)
        return
    found = job_retries.policy(app, kind, caps, version)
    assert (found is None, found is job_retries.BY_TORCHX) == (by is None, by == "torchx")


# -- the next attempt ----------------------------------------------------------------------------------------


def job(number: str = "1", **changed: Any) -> dict[str, Any]:
    labels = {
        names.LABEL_UNIQUE_NAME: "app",
        names.LABEL_ATTEMPT: number,
        "controller-uid": "x",
        "batch.kubernetes.io/job-name": "y",
    }
    marks = {
        names.ANNOTATION_STOPPED: "x",
        names.ANNOTATION_ATTEMPTS: "x",
        "kubectl.kubernetes.io/last": "x",
        "mine": "z",
    }
    prefix = "app" if number == "1" else f"app-a{number}"
    container = {
        "name": "main",
        "env": [{"name": "TORCHX_RANK0_HOST", "value": f"{prefix}-w-0.app"}, {"name": "A", "value": f"{prefix}-w"}],
        "resources": {"limits": {"memory": "2000M"}, "requests": {"memory": "976M"}},
    }
    pod = {
        "hostname": f"{prefix}-w-0",
        "initContainers": [{"name": "i", "resources": {"limits": {"memory": "1M"}}}],
        "containers": [container],
    }
    spec = {
        "parallelism": 0,
        "completions": 3,
        "suspend": True,
        "selector": {"x": "y"},
        "template": {"metadata": {"labels": {"job-name": "x", "l": "m"}}, "spec": pod},
    }
    return {
        "metadata": {
            "name": f"{prefix}-w",
            "namespace": "n",
            "labels": {**labels, **changed.pop("labels", {})},
            "annotations": marks,
            **changed,
        },
        "spec": spec,
    }


def attempt(memory: float = 1.0, *avoid: str, again: bool = True) -> Attempt:
    return Attempt(started=1.0, ended=2.0, hosts=["h"], kind="oom", again=again, memory=memory, avoid=list(avoid))


def test_a_job_for_the_next_attempt() -> None:
    """With new names and more memory, without the marks of the last one; nothing else changes."""
    last = job(ownerReferences=[{"uid": "u"}])
    before = json.dumps(last)
    made = our_retries.next_job(last, [attempt(1.5)])
    assert json.dumps(last) == before
    metadata, spec = made["metadata"], made["spec"]
    assert (made["kind"], made["apiVersion"], metadata["name"], metadata["namespace"]) == (
        "Job",
        "batch/v1",
        "app-a2-w",
        "n",
    )
    assert metadata["labels"] == {names.LABEL_UNIQUE_NAME: "app", names.LABEL_ATTEMPT: "2"}
    assert (metadata["annotations"], metadata["ownerReferences"]) == ({"mine": "z"}, [{"uid": "u"}])
    assert (spec["parallelism"], spec["completions"], "suspend" in spec, "selector" in spec) == (3, 3, False, False)
    assert spec["template"]["metadata"]["labels"] == {"l": "m", names.LABEL_ATTEMPT: "2"}
    pod = spec["template"]["spec"]
    assert pod["hostname"] == "app-a2-w-0" and "affinity" not in pod
    (main,) = pod["containers"]
    assert main["env"] == [{"name": "TORCHX_RANK0_HOST", "value": "app-a2-w-0.app"}, {"name": "A", "value": "app-w"}]
    assert main["resources"] == {"limits": {"memory": "3000M"}, "requests": {"memory": "1976M"}}
    assert pod["initContainers"][0]["resources"]["limits"]["memory"] == "1M"


def test_a_later_attempt() -> None:
    """Its memory is measured from the last one; a queue starts it; its first Job has the attempts so far."""
    before = [attempt(1.5), attempt(3.0)]
    made = our_retries.next_job(job("2", labels={names.LABEL_QUEUE: "q"}), before, note=True)
    assert (made["metadata"]["name"], made["metadata"]["labels"][names.LABEL_ATTEMPT], made["spec"]["suspend"]) == (
        "app-a3-w",
        "3",
        True,
    )
    assert made["spec"]["template"]["spec"]["hostname"] == "app-a3-w-0"
    assert made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "4000M"
    assert [a.memory for a in job_retries.recorded([{}, made])] == [1.5, 3.0]
    many = our_retries.next_job(job(), [attempt() for _ in range(101)], note=True)
    assert len(job_retries.recorded([many])) == 100
    assert job_retries.recorded([job()]) == job_retries.recorded([{}]) == []


@pytest.mark.parametrize(
    ("affinity", "before", "avoid", "terms"),
    [
        (None, [], [], None),
        (None, [], ["a"], [["a"]]),
        (None, [], ["a", "b"], [["a", "b"]]),
        ([["a"]], ["a"], ["b"], [["b"]]),
        ([["x"], []], [], ["a"], [["x", "a"], ["a"]]),
        ([["a", "x"]], ["a"], [], [["x"]]),
    ],
)
def test_nodes_to_avoid(affinity: Any, before: list[str], avoid: list[str], terms: Any) -> None:
    """Those of the last attempt replace those of the ones before; the user's own stay."""

    def field(host: str) -> dict[str, Any]:
        return {"key": "metadata.name", "operator": "NotIn", "values": [host]}

    last = job()
    where = "requiredDuringSchedulingIgnoredDuringExecution"
    if affinity is not None:
        given = [{"matchFields": [field(host) for host in hosts]} for hosts in affinity]
        last["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": {where: {"nodeSelectorTerms": given}}}
    made = our_retries.next_job(last, [attempt(1.0, *before), attempt(1.0, *avoid)])["spec"]["template"]["spec"]
    if terms is None:
        assert "affinity" not in made
    else:
        found = made["affinity"]["nodeAffinity"][where]["nodeSelectorTerms"]
        assert found == [{"matchFields": [field(host) for host in hosts]} for hosts in terms]


@pytest.mark.parametrize(
    ("asked", "grown"),
    [
        ({"limits": {"memory": "100M"}}, {"limits": {"memory": "150M"}}),
        ({"requests": {"memory": "100M"}}, {"requests": {"memory": "150M"}}),
        (
            {"limits": {"memory": "100M"}, "requests": {"memory": "1Gi"}},
            {"limits": {"memory": "150M"}, "requests": {"memory": "1Gi"}},
        ),
        ({"limits": {"memory": "1.5Gi"}}, {"limits": {"memory": "1.5Gi"}}),
        ({"limits": {"cpu": 1}}, {"limits": {"cpu": 1}}),
        ({"limits": None}, {"limits": None}),
        ({}, {}),
    ],
)
def test_more_memory(asked: dict[str, Any], grown: dict[str, Any]) -> None:
    """In the same unit."""
    our_retries._grow(asked, 1.5)
    assert asked == grown


@pytest.mark.parametrize(("there", "found"), [("2", True), ("1", False), ("3", False)])
def test_a_job_that_another_process_has_created(there: str, found: bool) -> None:
    """It is taken if it is the same attempt."""
    cluster = Cluster()
    made = our_retries.next_job(job(), [attempt()])
    other = json.loads(json.dumps(made))
    other["metadata"]["labels"][names.LABEL_ATTEMPT] = there
    other["metadata"]["annotations"] = {"mine": "other"}
    api = KubeApi(cluster)
    api.create(other)
    if found:
        assert our_retries._create(api, made)["metadata"]["uid"] == "uid-0"
    else:
        with pytest.raises(TorchXError, match="the name `app-a2-w` is already in use"):
            our_retries._create(api, made)
    cluster.faults.append(("POST", "jobs", refusal(403, "Forbidden", "no"), "before"))
    with pytest.raises(ApiError):
        our_retries._create(api, made)


# -- a time limit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 90])
def test_a_time_limit_is_that_of_each_pod(timeout: int | None) -> None:
    """The cluster ends a pod that runs longer."""
    from torchx.specs.wishes.timeouts import TIMEOUT

    app = AppDef("a", [role()], metadata={TIMEOUT: f"{timeout}s"} if timeout else {})
    cluster = Cluster()
    create_scheduler("me", client=cluster).submit(app, {"kind": "job"})
    spec = cluster.of("jobs")[0]["spec"]["template"]["spec"]
    assert spec.get("activeDeadlineSeconds") == timeout


@pytest.mark.parametrize(("length", "label"), [(62, 62), (63, 63), (64, 63)])
def test_the_length_of_a_label(length: int, label: int) -> None:
    """At most 63 characters."""
    assert len(names.label_value("a" * length)) == label


@pytest.mark.parametrize(
    ("cfg", "env", "needs", "made"),
    [
        ({"kind": "job"}, {}, "", ['--filename "$here/job.yaml"']),
        ({"kind": "jobset"}, {}, ", with JobSet", ['--filename "$here/job.yaml"']),
        ({"kind": "job", "local_queue": "q"}, {}, ", with Kueue", ['--filename "$here/job.yaml"']),
        ({"kind": "job"}, {"HF_TOKEN": "secret of mine"}, "", ["--filename -", '--filename "$here/job.yaml"']),
    ],
)
def test_an_export(cfg: dict[str, str], env: dict[str, str], needs: str, made: list[str]) -> None:
    """What it needs, what it creates and in which order, and how it is deleted; no value of a secret."""
    info = create_scheduler("me", client=Cluster()).submit_dryrun(
        AppDef("a", [role(env=env)]), {**cfg, "namespace": "n"}
    )
    found = export(info.request, {})
    created = [line.partition("kubectl create ")[2] for line in found.run.splitlines() if "kubectl create" in line]
    assert created == made
    assert found.needs == f"`kubectl`, and a cluster of Kubernetes 1.31 or newer that it reaches{needs}"
    assert [*found.files] == [*found.about] == ["job.yaml"] and "kind: " in found.files["job.yaml"]
    secret = f" and `kubectl delete --namespace n secret {info.request.app_id}`" if env else ""
    assert found.notes == [f"To run it again, first delete the objects: `kubectl delete --filename job.yaml`{secret}."]
    assert "secret of mine" not in f"{found.run}{found.files}" and [*found.secrets] == [*env]


@pytest.mark.parametrize(("size", "most", "fits"), [(3000, 10**6, True), (3001, 10**6, False), (10, 0, False)])
def test_the_size_of_inline_code(
    size: int, most: int, fits: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed, it is at most as large as a ConfigMap; what is much larger is not packed at all."""
    (tmp_path / "a").write_bytes(bytes(10))
    workspace = Workspace({str(tmp_path): ""})
    whole = len(shipped_code.pack(workspace).data)
    monkeypatch.setattr(shipped_code, "MAX_BYTES", whole + 3000 - size)
    monkeypatch.setattr(shipped_code, "_MAX_UNPACKED", most)
    if fits:
        assert len(shipped_code.pack(workspace).data) == whole
    else:
        with pytest.raises(shipped_code.TooLargeError, match="larger than the"):
            shipped_code.pack(workspace)
