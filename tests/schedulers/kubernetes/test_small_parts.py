"""Small parts of the backend that other tests only pass through: credentials, events, placement, names of old versions."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, refusal
from torchx.compat import kubernetes, kubernetes_mcad
from torchx.errors import BackendError, ConfigError, MissingDependencyError, NotSupportedError
from torchx.schedulers.kubernetes import names, simulate
from torchx.schedulers.kubernetes.api import credentials
from torchx.schedulers.kubernetes.client import KubeApi, group_of, kind_of, path_of
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, VOLCANO, role_label
from torchx.schedulers.kubernetes.options import KubernetesOpts
from torchx.schedulers.kubernetes.owners import JobObjects
from torchx.schedulers.kubernetes.placement import check, overlay
from torchx.schedulers.kubernetes.pods import events
from torchx.schedulers.kubernetes.sweeps import with_values
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.tasks import TaskList

# -- credentials ---------------------------------------------------------------------------------------------


def configuration(**changed: Any) -> Any:
    given = {
        **{"connection_pool_maxsize": 7, "verify_ssl": True, "ssl_ca_cert": None, "cert_file": None, "key_file": None},
        **{"socket_options": None, "proxy": "", "no_proxy": None, "proxy_headers": None, "host": "https://c:6443"},
    }
    return SimpleNamespace(**{**given, **changed})


def options(**changed: Any) -> dict[str, Any]:
    manager = credentials.Cluster(configuration(**changed)).pool_manager
    return {**manager.connection_pool_kw, "proxy": str(getattr(manager, "proxy", "") or "")}


def test_how_a_cluster_is_connected() -> None:
    """By what kubeconfig says; nothing that it does not say is set."""
    found = options()
    assert (found["maxsize"], found["cert_reqs"], "ssl_context" in found, "ca_certs" in found, found["proxy"]) == (
        7,
        "CERT_REQUIRED",
        False,
        False,
        "",
    )
    found = options(ssl_ca_cert="ca", cert_file="c", key_file="k", tls_server_name="s", socket_options=[(1, 2, 3)])
    assert [found[name] for name in ("ca_certs", "cert_file", "key_file", "server_hostname", "socket_options")] == [
        "ca",
        "c",
        "k",
        "s",
        [(1, 2, 3)],
    ]
    found = options(verify_ssl=False)
    assert (found["cert_reqs"], found["ssl_context"].verify_mode) == ("CERT_NONE", ssl.CERT_NONE)
    made = credentials.Cluster(configuration())
    assert made.rest_client is made and made.configuration.host == "https://c:6443"


@pytest.mark.parametrize(
    ("host", "no_proxy", "proxied"),
    [("https://c:6443", None, True), ("https://c:6443", "other", True), ("https://c:6443", "c", False)],
)
def test_a_proxy_of_kubeconfig(host: str, no_proxy: str | None, proxied: bool) -> None:
    """Unless the cluster is excepted."""
    found = options(proxy="http://p:3128", no_proxy=no_proxy, host=host, proxy_headers={"a": "b"})
    assert found["proxy"] == ("http://p:3128" if proxied else "")


def test_a_dead_peer_is_noticed() -> None:
    """Within a minute, and small messages are sent at once."""
    found = {(level, option): value for level, option, value in credentials.keep_alive()}
    assert found[socket.IPPROTO_TCP, socket.TCP_NODELAY] == found[socket.SOL_SOCKET, socket.SO_KEEPALIVE] == 1
    idle, every, count = (
        found[socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}")] for name in ("IDLE", "INTVL", "CNT")
    )
    assert idle + every * count == 50 and every * count >= 30


def test_errors_of_an_exec_plugin_are_collected(caplog: pytest.LogCaptureFixture) -> None:
    """They are not printed, and the log is as before afterwards."""
    root = logging.getLogger()
    before = (list(root.filters), list(root.handlers))
    with credentials._errors() as said:
        root.error("exec: %s\n", "no such file")
        assert len(root.handlers) == len(before[1]) + 1
    assert said == ["exec: no such file"] and "no such file" not in caplog.text
    assert (list(root.filters), list(root.handlers)) == before


@pytest.mark.parametrize(("error", "why"), [(ValueError("bad\nmore"), "bad"), (ValueError(), "ValueError")])
def test_no_cluster(error: Exception, why: str) -> None:
    """The first line of the reason, and what to do."""
    found = credentials._unconfigured(error)
    assert str(found) == f"no Kubernetes cluster is configured: {why}" and "KUBECONFIG" in str(found.hint)


class ConfigException(Exception):
    pass


class Reader:
    """The part of `kubernetes.config` that is used."""

    ConfigException = ConfigException

    def __init__(self, *, fails: Exception | None = None, in_pod: bool = True, logs: str = "") -> None:
        self.calls: list[Any] = []
        self._fails, self._in_pod, self._logs = fails, in_pod, logs
        self.kube_config = self

    def load_kube_config(self, **given: Any) -> None:
        self.calls.append((given["config_file"], given["context"]))
        if self._fails:
            raise self._fails
        if self._logs:
            logging.getLogger().error(self._logs)
        given["client_configuration"].verify_ssl = False

    def load_incluster_config(self, client_configuration: Any) -> None:
        self.calls.append("in the pod")
        if not self._in_pod:
            raise ConfigException("no token")

    def KubeConfigMerger(self, files: str) -> Any:
        return SimpleNamespace(config=files)

    def KubeConfigLoader(self, config_dict: Any, active_context: Any) -> Any:
        return SimpleNamespace(current_context={"context": {"namespace": "team"} if active_context != "bare" else None})


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    def use(**given: Any) -> Reader:
        made = Reader(**given)
        monkeypatch.setattr(credentials, "_reader", lambda: (configuration, made))
        return made

    (tmp_path / "config").write_text("")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(credentials, "_POD_NAMESPACE", str(tmp_path / "namespace"))
    return use


def test_the_context_of_kubeconfig(reader: Any, tmp_path: Any) -> None:
    """Its cluster, with our options, and its namespace."""
    made = reader()
    cluster, namespace = credentials.connect("ctx")
    assert (namespace, made.calls) == ("team", [(str(tmp_path / "config"), "ctx")])
    kw = cluster.pool_manager.connection_pool_kw
    assert (kw["maxsize"], kw["socket_options"]) == (300, credentials.keep_alive())
    assert credentials.connect("bare")[1] == ""


@pytest.mark.parametrize(
    ("files", "there"), [("config", True), ("gone", False), ("gone:config", True), ("gone:gone2", False)]
)
def test_the_files_of_kubeconfig(
    reader: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, files: str, there: bool
) -> None:
    """One that exists suffices."""
    made = reader()
    monkeypatch.setenv("KUBECONFIG", ":".join(f"{tmp_path}/{name}" for name in files.split(":")))
    if there:
        credentials.connect(None)
        assert len(made.calls) == 1
    else:
        with pytest.raises(BackendError, match="no Kubernetes cluster is configured: there is no `"):
            credentials.connect(None)
        assert made.calls == []


def test_a_plugin_that_fails(reader: Any) -> None:
    """It is the error, though the client would go on without credentials."""
    reader(logs="exec: no such file")
    with pytest.raises(BackendError, match="kubeconfig gives no credentials: exec: no such file"):
        credentials.connect(None)


@pytest.mark.parametrize(
    ("context", "in_pod", "token", "namespace"),
    [
        (None, True, True, "mine"),
        (None, True, True, ""),
        (None, False, True, None),
        (None, True, False, None),
        ("ctx", True, True, None),
    ],
)
def test_the_account_of_a_pod(
    reader: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    context: str | None,
    in_pod: bool,
    token: bool,
    namespace: str | None,
) -> None:
    """Where there is no kubeconfig, unless a context was asked for."""
    made = reader(fails=ValueError("no yaml"), in_pod=token)
    if in_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    if namespace:
        (tmp_path / "namespace").write_text(f"{namespace}\n")
    if namespace is None:
        said = "no token" if in_pod and context is None else "no yaml"
        with pytest.raises(BackendError, match=f"no Kubernetes cluster is configured: {said}"):
            credentials.connect(context)
    else:
        assert credentials.connect(context)[1] == namespace
    assert made.calls[1:] == (["in the pod"] if in_pod and context is None else [])


def test_the_client_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what to install, however it is looked for."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    credentials._reader.cache_clear()
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    for look in (credentials.official, credentials._reader):
        with pytest.raises(MissingDependencyError, match="`kubernetes`"):
            look()
    monkeypatch.delitem(sys.modules, "kubernetes")
    monkeypatch.setattr("threading.active_count", lambda: 1)
    with pytest.raises(MissingDependencyError, match="`kubernetes`"):
        credentials._reader()
    credentials._reader.cache_clear()


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "group", "key"),
    [("Job", "batch/v1", "Job"), ("Job", "batch.volcano.sh/v1alpha1", "VolcanoJob"), ("AppWrapper", "mcad.ibm.com/v1beta1", "AppWrapperV1Beta1"),
     ("AppWrapper", "workload.codeflare.dev/v1beta2", "AppWrapper"), ("Command", "mcad.ibm.com/v1beta1", "Command"), ("Pod", "v1", "Pod")],
)  # fmt: skip
def test_the_kind_of_an_object(kind: str, group: str, key: str) -> None:
    """Two groups have kinds of the same name."""
    assert kind_of({"kind": kind, "apiVersion": group}) == key


def test_paths() -> None:
    """Of one object, all of a namespace, and all of them."""
    assert path_of("Pod", "n", "a/b") == "/api/v1/namespaces/n/pods/a%2Fb"
    assert (path_of("Pod", None), path_of("Pod", "n")) == ("/api/v1/pods", "/api/v1/namespaces/n/pods")
    assert (group_of("VolcanoJob"), group_of("Secret")) == ("batch.volcano.sh", "")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("a" * 63, "a" * 63),
        ("a" * 64, "a" * 54 + "-ffa3b5cc"),
        ("a" * 53 + "-" + "b" * 20, None),
        ("-x", "x-"),
        ("", ""),
    ],
)
def test_the_label_of_a_role(name: str, label: str | None) -> None:
    """Its name, if that is one; else one of its own, of at most 63 characters."""
    found = role_label(name)
    assert len(found) <= 63 and (found == name or found[-9] == "-")
    if label is not None and len(name) != 64:
        assert found == label if label == name else found.startswith(label)


# -- events --------------------------------------------------------------------------------------------------


def event(reason: str, message: str, of: str, kind: str = "Warning") -> Any:
    return reason, message, {"kind": "Job", "metadata": {"name": of, "namespace": "n", "uid": of}}, kind


def owner(kind: str, name: str = "j", status: Any = None, **labels: str) -> dict[str, Any]:
    version = "batch.volcano.sh/v1alpha1" if kind == VOLCANO else "batch/v1"
    return {
        "apiVersion": version,
        "kind": "Job",
        "metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels},
        "spec": {},
        "status": status or {},
    }


def why(found: JobObjects, *given: Any, groups: tuple[str, ...] = (), away: Any = None) -> str:
    cluster = Cluster(groups=groups)
    for reason, message, of, kind in given:
        cluster.warn(of, reason, message, kind)
    if away is not None:
        cluster.away = away
    return missing(cluster, found)


def missing(cluster: Cluster, found: JobObjects) -> str:
    api = KubeApi(cluster)
    return events.why_pods_are_missing(api, "n", found, events.queued_as(api, "n", found))


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (JOB, [], ""),
        (JOB, [event("FailedCreate", " no quota\nmore", "j")], "its pods cannot be created: no quota"),
        (JOB, [event("FailedCreate", "no quota", "jx")], ""),
        (JOB, [event("Other", "no quota", "j")], ""),
        (JOBSET, [event("FailedCreate", "no quota", "j")], "its pods cannot be created: no quota"),
        (JOBSET, [event("FailedCreate", "no quota", "j-w-0")], "its pods cannot be created: no quota"),
        (KUBEFLOW, [event("FailedCreate", "no quota", "j-w-0")], "its pods cannot be created: no quota"),
        (PYTORCH, [event("FailedCreate", "no quota", "j-w-0")], ""),
        (JOBSET, [event("FailedCreate", "no quota", "other-w-0")], ""),
    ],
)
def test_why_there_are_no_pods(kind: str, given: list[Any], said: str) -> None:
    """The first line of the event of the owner, or of the Jobs that it has made."""
    assert why(JobObjects(kind, [owner(kind)]), *given) == said
    refused = why(JobObjects(kind, [owner(kind)]), *given, away=lambda *_: refusal(403, "Forbidden", "no"))
    assert refused == ""


GROUPS = ("scheduling.volcano.sh/v1beta1", "kueue.x-k8s.io/v1beta1")


def gang(**fields: str) -> dict[str, Any]:
    return {"type": "Unschedulable", "status": "True", "message": " 1/2 fit ", **fields}


@pytest.mark.parametrize(
    ("phase", "conditions", "queue", "there", "said"),
    [
        ("Pending", [gang()], "", False, "its pod group cannot be scheduled: 1/2 fit"),
        ("Running", [gang()], "", False, ""),
        ("Pending", [gang(status="False")], "", False, ""),
        ("Pending", [gang(type="Scheduled")], "", False, ""),
        ("Pending", [gang(message="")], "", False, ""),
        ("Pending", [gang(message=""), gang(message="x")], "", False, "its pod group cannot be scheduled: x"),
        ("Pending", None, "", False, ""),
        ("Pending", [], "team", False, "its queue `team` does not exist"),
        ("Pending", [], "team", True, ""),
        ("Pending", [gang()], "team", False, "its pod group cannot be scheduled: 1/2 fit"),
    ],
)
def test_why_a_gang_of_volcano_waits(phase: str, conditions: Any, queue: str, there: bool, said: str) -> None:
    """By the condition of its pod group, or since its queue is not there."""
    cluster = Cluster(groups=GROUPS)
    item = owner(VOLCANO, status={"state": {"phase": phase}})
    item["spec"] = {"queue": queue} if queue else None
    if conditions is not None:
        group = {"metadata": {"name": "j-j", "namespace": "n"}, "status": {"conditions": conditions or None}}
        cluster.objects["apis/scheduling.volcano.sh/v1beta1/podgroups", "n", "j-j"] = group
    if there:
        cluster.objects["apis/scheduling.volcano.sh/v1beta1/queues", None, "team"] = {"metadata": {"name": "team"}}
    assert missing(cluster, JobObjects(VOLCANO, [item])) == said
    assert missing(Cluster(), JobObjects(VOLCANO, [item])) == ""
    assert missing(cluster, JobObjects(JOB, [item])) == ""


def test_a_gang_without_a_condition_is_explained_by_an_event() -> None:
    """The newest one of its pod group, whatever the type of the event."""
    cluster = Cluster(groups=GROUPS)
    item = owner(VOLCANO, status={"state": {"phase": "Pending"}})
    of = {"kind": "PodGroup", "metadata": {"name": "j-j", "namespace": "n", "uid": "g"}}
    for message, at in (
        ("old", "2026-01-01T00:00:01Z"),
        ("queue resource quota insufficient\nmore", "2026-01-01T00:00:02Z"),
    ):
        cluster.warn(of, "Unschedulable", message, "Normal")
        cluster.of("events")[-1]["lastTimestamp"] = at
    cluster.warn(of, "Other", "no", "Normal")
    said = "its pod group cannot be scheduled: queue resource quota insufficient"
    assert missing(cluster, JobObjects(VOLCANO, [item])) == said


def quota(**fields: str) -> dict[str, Any]:
    return {"type": "QuotaReserved", "status": "False", "message": " full ", **fields}


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2", ""])
@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([quota()], "it waits in the queue `team`: full"),
        ([quota(status="True")], ""),
        ([quota(type="Admitted")], ""),
        ([quota(type="Admitted"), quota()], "it waits in the queue `team`: full"),
        (None, ""),
    ],
)
def test_why_a_job_waits_for_kueue(version: str, conditions: Any, said: str) -> None:
    """By the quota of its workload, of either version; a cluster without Kueue never starts it."""
    cluster = Cluster(groups=[f"kueue.x-k8s.io/{version}"] if version else [])
    labels = {"kueue.x-k8s.io/job-uid": "j"}
    work = {"metadata": {"name": "w", "namespace": "n", "labels": labels}, "status": {"conditions": conditions}}
    cluster.objects[f"apis/kueue.x-k8s.io/{version}/workloads", "n", "w"] = work
    item = owner(JOB, **{names.LABEL_QUEUE: "team"})
    found = missing(cluster, JobObjects(JOB, [owner(JOB, "other"), item]))
    assert found == (said if version else "it waits in the queue `team`, and this cluster has no Kueue")
    assert events.queue_of(item) == "team" and events.queue_of(owner(JOB)) == ""


AWAY = "its pod was deleted, and will be replaced"


@pytest.mark.parametrize(
    ("started", "reason", "name", "there", "said"),
    [
        (True, "Killing", "j-0-abc", [], AWAY),
        (True, "Killing", "j-0-abc", ["j-0-abc"], ""),
        (True, "Killing", "j-0-abc", ["j-0-xyz"], AWAY),
        (True, "Killing", "jx-0-abc", [], ""),
        (True, "Other", "j-0-abc", [], ""),
        (False, "Killing", "j-0-abc", [], ""),
        (True, "Preempted", "j-0-abc", [], "its pod was preempted by a pod of higher priority, and will be replaced"),
    ],
)
def test_a_pod_that_was_taken_away(started: bool, reason: str, name: str, there: list[str], said: str) -> None:
    """It is said until there is another one."""
    cluster = Cluster()
    cluster.warn({"kind": "Pod", "metadata": {"name": name, "namespace": "n", "uid": name}}, reason, "x", "Normal")
    found = JobObjects(
        JOB,
        [owner(JOB, status={"startTime": "x"} if started else None)],
        [{"metadata": {"name": one}} for one in there],
    )
    assert missing(cluster, found) == said


@pytest.mark.parametrize(
    ("reasons", "state"),
    [
        ([], None),
        (["Completed"], AppState.SUCCEEDED),
        (["BackoffLimitExceeded"], AppState.FAILED),
        (["Other"], None),
        (["Completed", "Other"], AppState.SUCCEEDED),
        (["Completed", "DeadlineExceeded"], AppState.FAILED),
        (["DeadlineExceeded", "Completed"], AppState.SUCCEEDED),
    ],
)
def test_how_a_deleted_job_ended(reasons: list[str], state: AppState | None) -> None:
    """By the last of its events that says so."""
    cluster = Cluster()
    for reason in reasons:
        cluster.warn({"kind": "Job", "metadata": {"name": "j", "namespace": "n", "uid": "u"}}, reason, "x", "Normal")
    assert events.how_it_ended(KubeApi(cluster), "n", "j") == state
    assert events.how_it_ended(KubeApi(cluster), "n", "k") is None
    cluster.away = lambda *_: refusal(403, "Forbidden", "no")
    assert events.how_it_ended(KubeApi(cluster), "n", "j") is None


@pytest.mark.parametrize(("reason", "said"), [("FailedMount", "no volume"), ("FailedCreate", ""), ("Other", "")])
def test_why_a_pod_does_not_start(reason: str, said: str) -> None:
    """By its own events."""
    cluster = Cluster()
    cluster.warn({"kind": "Pod", "metadata": {"name": "p", "namespace": "n", "uid": "u"}}, reason, "no volume\nmore")
    pods = [{"metadata": {"name": "p", "uid": uid}} for uid in ("u", "v")]
    assert [events.why_it_does_not_start(KubeApi(cluster), "n", pod) for pod in pods] == [said, ""]


# -- simulated faults ----------------------------------------------------------------------------------------


def running(name: str, k: int, phase: str = "Running") -> dict[str, Any]:
    labels = {names.LABEL_ROLE_INDEX: "0", names.LABEL_REPLICA_ID: str(k)}
    state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}}
    status = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}
    return {"metadata": {"name": name, "namespace": "n", "labels": labels}, "spec": {}, "status": status}


@pytest.mark.parametrize(("count", "which"), [(0, "0 pods"), (1, "pod p0"), (2, "2 pods")])
def test_a_time_limit_of_all_that_runs(count: int, which: str) -> None:
    """One pod is named."""
    cluster = Cluster()
    items = [running(f"p{k}", k) for k in range(count)] + [running("over", 7, "Succeeded")]
    for item in items:
        cluster.objects["api/v1/pods", "n", item["metadata"]["name"]] = item
    made = simulate.simulation(KubeApi(cluster), items, "timeout", ("w", 0), roles=["w"], backend="kubernetes")
    assert made.says == f"`activeDeadlineSeconds` of {which} becomes 1 s"
    made.make()
    assert [item["spec"] for item in items] == [{"activeDeadlineSeconds": 1}] * count + [{}]


@pytest.mark.parametrize(
    ("version", "policy"), [((1, 21), "policy/v1beta1"), ((1, 22), "policy/v1"), ((1, 23), "policy/v1")]
)
def test_an_eviction(version: tuple[int, int], policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the replica's pod, by the API of that version."""
    api = KubeApi(Cluster(version=version))
    posted: list[Any] = []
    monkeypatch.setattr(api, "post", lambda path, item: posted.append((path, item["apiVersion"], item["kind"])))
    made = simulate.simulation(
        api, [running("p0", 0), running("p1", 1)], "preempt", ("w", 1), roles=["v", "w"][1:], backend="k"
    )
    made.make()
    assert posted == [("/api/v1/namespaces/n/pods/p1/eviction", policy, "Eviction")]


@pytest.mark.parametrize(("fault", "instead"), [("oom", "kill"), ("node", "preempt"), ("hang", "kill")])
def test_a_fault_that_cannot_be_simulated(fault: str, instead: str) -> None:
    """Another one is offered."""
    with pytest.raises(NotSupportedError) as e:
        simulate.simulation(KubeApi(Cluster()), [], fault, ("w", 0), roles=["w"], backend="k")
    assert instead in f"{e.value} {e.value.hint}"
    with pytest.raises(BackendError, match="replica w/3 is not running"):
        simulate.simulation(KubeApi(Cluster()), [running("p", 0)], "kill", ("w", 3), roles=["w"], backend="k")


# -- placement -----------------------------------------------------------------------------------------------

LABELS = {names.LABEL_UNIQUE_NAME: "app", names.LABEL_ROLE_INDEX: "1", "other": "x"}


@pytest.mark.parametrize(
    ("opts", "spec"),
    [
        ({}, None),
        ({"node_selector": {"a": "b"}}, {"nodeSelector": {"a": "b"}}),
        (
            {"spread": ["zone!", "rack"]},
            {"topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": how, "labelSelector": {"matchLabels": {k: LABELS[k] for k in list(LABELS)[:2]}}}
                for key, how in (("zone", "DoNotSchedule"), ("rack", "ScheduleAnyway"))
            ]},
        ),
        (
            {"pack": "rack!"},
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack", "labelSelector": {"matchLabels": {names.LABEL_UNIQUE_NAME: "app"}}}]}}},
        ),
        (
            {"pack": "rack"},
            {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {"matchLabels": {names.LABEL_UNIQUE_NAME: "app"}}}}]}}},
        ),
        (
            {"claims": {"gpu": "two"}},
            {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two"}], "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]},
        ),
    ],
)  # fmt: skip
def test_where_pods_are_placed(opts: dict[str, Any], spec: Any) -> None:
    """A key with ``!`` is a requirement, others are preferences."""
    assert overlay(KubernetesOpts(**opts), LABELS) == ({"spec": spec} if spec else {})


@pytest.mark.parametrize(
    ("text", "toleration"),
    [
        ("*", {"operator": "Exists"}),
        ("*:NoExecute", {"operator": "Exists", "effect": "NoExecute"}),
        ("a", {"key": "a", "operator": "Exists"}),
        ("a=", {"key": "a", "operator": "Equal", "value": ""}),
        ("a=b:NoSchedule", {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}),
        ("*=b", None), ("", None), ("a:", None), ("a:Odd", None), ("a=b c", None), ("a b", None),
    ],
)  # fmt: skip
def test_tolerations(text: str, toleration: Any) -> None:
    """As `kubectl taint` writes them; anything else is an error."""
    opts = KubernetesOpts(tolerations=[text])
    if toleration is None:
        with pytest.raises(ConfigError, match="is not KEY"):
            check(opts)
    else:
        check(opts)
        assert overlay(opts, LABELS)["spec"]["tolerations"] == [toleration]


@pytest.mark.parametrize(("key", "how"), [("rack", "preferred"), ("rack!", "required")])
def test_a_topology_of_kueue(key: str, how: str) -> None:
    """It is an annotation."""
    assert overlay(KubernetesOpts(topology=key), LABELS) == {
        "metadata": {"annotations": {f"kueue.x-k8s.io/podset-{how}-topology": "rack"}}
    }


@pytest.mark.parametrize(
    ("opts", "said"),
    [
        ({"node_selector": {"a b": "c"}}, "node_selector `a b`"), ({"node_selector": {"a": "b c"}}, "`a=b c`"), ({"spread": ["a", "b c!"]}, "spread `b c!`"),
        ({"pack": "a b"}, "pack `a b`"), ({"topology": "a b"}, "topology `a b`"), ({"claims": {"A": "b"}}, "claims `A=b`"), ({"claims": {"a": "B"}}, "claims `a=B`"),
    ],
)  # fmt: skip
def test_what_no_server_accepts(opts: dict[str, Any], said: str) -> None:
    """It is named before anything is sent."""
    with pytest.raises(ConfigError) as e:
        check(KubernetesOpts(**opts))
    assert said in str(e.value)
    check(KubernetesOpts(node_selector={"a.b/c": ""}, spread=["a!"], pack="b", topology="c!", claims={"a": "b"}))


# -- a sweep -------------------------------------------------------------------------------------------------


def test_the_objects_of_a_sweep() -> None:
    """The values come after the first object, which owns them; nothing is there twice."""
    main = {"name": "main", "command": ["x"], "env": [], "volumeMounts": []}
    job = {
        "kind": "Job",
        "metadata": {"name": "j", "annotations": {}},
        "spec": {"backoffLimit": 3, "template": {"spec": {"containers": [{"name": "side"}, main], "volumes": []}}},
    }
    first = {
        "kind": "Service",
        "metadata": {"name": "j", "namespace": "n", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    }
    made = with_values([first, job, {"kind": "Secret"}], TaskList(names=["v"], points=[("1",), ("2",)]))
    assert [item["kind"] for item in made] == ["Service", "ConfigMap", "Job", "Secret"]
    assert made[1]["metadata"] == {"name": "j-values", "namespace": "n", "labels": {"a": "b"}, "annotations": {}}


# -- names of earlier versions -------------------------------------------------------------------------------


class Client:
    """The official client: newer models convert themselves."""

    class New:
        @staticmethod
        def from_dict(item: Any) -> Any:
            return ("new", item)

    class Old:
        pass

    class ApiClient:
        @staticmethod
        def deserialize(answer: Any, kind: str) -> Any:
            return ("old", answer.data, kind)

    V1Pod = V1Service = New


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "official", lambda: Client)


@pytest.mark.usefixtures("client")
def test_models_of_any_version() -> None:
    """By themselves, or by the client."""
    assert kubernetes.to_model({"a": 1}, "New") == ("new", {"a": 1})
    assert kubernetes.to_model({"a": 1}, "Old") == ("old", '{"a": 1}', "Old")


ROLE = Role("trainer", "img", entrypoint="x", num_replicas=2, port_map={"a": 1234}, resource=Resource(1, 0, 64))


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("network", [None, "net"])
def test_a_pod_of_mcad(network: str | None) -> None:
    """Named like its replica, in the domain of its job."""
    _, pod = kubernetes_mcad.role_to_pod("p-0", "app", "n", ROLE, "sa", "secret", "cosched", "high", network)
    assert (pod["metadata"]["name"], pod["metadata"]["namespace"]) == ("p-0", "n")
    spec = pod["spec"]
    assert (spec["hostname"], spec["subdomain"], spec["containers"][0]["name"], len(spec["containers"])) == (
        "p-0",
        "app",
        "p-0",
        1,
    )
    assert (spec["schedulerName"], spec["priorityClassName"], spec["serviceAccountName"]) == ("cosched", "high", "sa")
    assert spec["imagePullSecrets"] == [{"name": "secret"}]
    assert pod["metadata"]["annotations"].get("k8s.v1.cni.cncf.io/networks") == network
    _, pod = kubernetes.role_to_pod("q-0", ROLE, "sa", 7, 8, 1)
    assert (pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]) == ("q-0", "q-0")
    _, service = kubernetes_mcad.mcad_svc(AppDef("a", [ROLE]), "svc", "n", "80")
    assert (service["metadata"]["name"], service["spec"]["ports"]) == ("svc", [{"name": "port", "port": 80}])


def test_parts_of_an_appwrapper() -> None:
    """As they were in the first version."""
    app = AppDef("a", [Role("first", "i", entrypoint="x"), ROLE])
    group = kubernetes_mcad.create_pod_group(app, ROLE, 1, "n", "app-1")
    assert (group["replicas"], group["generictemplate"]["kind"], group["generictemplate"]["metadata"]["name"]) == (
        1,
        "PodGroup",
        "app-1-trainer",
    )
    labels = kubernetes_mcad.pod_labels(app, 1, ROLE, 3, "cosched", "app-1")
    assert (labels[names.LABEL_REPLICA_ID], labels["pod-group.scheduling.sigs.k8s.io"]) == ("3", "app-1-trainer")
    assert "pod-group.scheduling.sigs.k8s.io" not in kubernetes_mcad.pod_labels(app, 1, ROLE, 3, None, "app-1")
    assert kubernetes.pod_labels(app, 1, ROLE, 3, "app-1")[names.LABEL_REPLICA_ID] == "3"
    spec: dict[str, Any] = {}
    kubernetes_mcad.enable_retry(spec, 3, 2)
    assert spec == {"schedulingSpec": {"minAvailable": 2, "requeuing": {"maxNumRequeuings": 3}}}
    assert (
        kubernetes_mcad.get_port_for_service(app) == "1234"
        and kubernetes_mcad.get_port_for_service(AppDef("a", app.roles[:1])) == "29500"
    )
    assert (kubernetes_mcad.cleanup_str("A b"), kubernetes.prefix_container_name("c", "r", 1)) == ("a-b", "r/1/c")
    assert kubernetes_mcad.get_tasks_status_description(
        {"running": 2, "Succeeded": "1", "failed": None, "Other": 3}
    ) == {
        "running": 2,
        "Succeeded": 1,
    }
    assert (
        kubernetes_mcad.get_appwrapper_status({"status": {"state": "Running"}, "apiVersion": names.V1BETA1})
        is AppState.RUNNING
    )


def generic(role: str, command: Any = None, kind: str = "Pod", env: Any = None) -> dict[str, Any]:
    container = {"image": "img", "command": command, "env": env}
    return {
        "generictemplate": {
            "kind": kind,
            "metadata": {"labels": {names.LABEL_ROLE_NAME: role}},
            "spec": {"containers": [container]},
        }
    }


def test_roles_of_an_appwrapper() -> None:
    """From its pods, counted; other parts are left out."""
    env = [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {}}]
    found = kubernetes_mcad.get_role_information(
        [generic("a", ["x", "y"], env=env), generic("a", ["z"]), generic("b"), generic("c", kind="Service"), {}]
    )
    assert {name: (r.num_replicas, r.entrypoint, r.args, r.env, r.image) for name, r in found.items()} == {
        "a": (2, "x", ["y"], {"A": "b"}, "img"),
        "b": (1, "", [], {}, "img"),
    }


def test_a_job_of_volcano_by_the_old_name() -> None:
    """With the same parameters."""
    made = kubernetes.app_to_resource(AppDef("a", [ROLE]), "queue", "sa", "high", 10, 20)
    assert (made["kind"], made["spec"]["queue"], made["spec"]["priorityClassName"]) == ("Job", "queue", "high")
    old = kubernetes_mcad.app_to_resource(AppDef("a", [ROLE]), "n", "sa", "secret", "cosched", "high", "net", None)
    assert (old["kind"], old["metadata"]["namespace"]) == ("AppWrapper", "n")
