"""`torchx doctor -s kubernetes` and `run --check` on a real API server: what is bad is what it, or its node, refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.jobs import SMALL, Jobs
from tests.backends.kubernetes.test_kubernetes_access import kubeconfig_of
from torchx.errors import BackendError
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.schedulers.kubernetes import doctor
from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler
from torchx.specs import AppDef, AppState, Resource, Role, VolumeMount

Found = dict[str, Finding]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no cluster that does not answer."""
    monkeypatch.setattr(doctor.HastyApi, "_timeout_s", 120.0)


def options(jobs: Jobs, **more: Any) -> dict[str, Any]:
    return {"namespace": jobs.namespace, "reserved_millicpu": 1000, **more}  # the node has few CPUs


def scheduler_of(jobs: Jobs) -> KubernetesScheduler:
    assert isinstance(jobs.scheduler, KubernetesScheduler)
    return jobs.scheduler


def system(jobs: Jobs, **cfg: Any) -> Found:
    checks = scheduler_of(jobs).diagnose(options(jobs, **cfg))
    return {f.what: f for check in checks for f in check.findings()}


def check(jobs: Jobs, role: Role | None = None, **cfg: Any) -> Found:
    cfg = options(jobs, **cfg)
    info = jobs.scheduler.submit_dryrun(AppDef("job", [role or jobs.role()]), cfg)
    return {f.what: f for check in scheduler_of(jobs).diagnose(cfg, info) for f in check.findings()}


def verdicts(found: Found) -> dict[str, str]:
    return {what: f.verdict for what, f in found.items()}


def bad(found: Found) -> list[str]:
    return [what for what, f in found.items() if f.verdict == BAD]


def test_a_cluster_and_jobs_with_which_nothing_is_wrong(jobs: Jobs) -> None:
    """All is good, nothing is made by it; the job then runs."""
    good = ["cluster", f"namespace `{jobs.namespace}`", "kind", "rights", "small job"]
    assert verdicts(system(jobs)) == dict.fromkeys(good, GOOD)
    expected = dict.fromkeys(["admission", "quota", "nodes", "image of role `main`"], GOOD)
    assert verdicts(check(jobs)) == expected
    shapes: list[tuple[Role, dict[str, Any]]] = [
        (jobs.role(num_replicas=4, max_retries=2), {}),
        (jobs.role(resource=Resource(1, 0, 64), env={"A": "${app_id}"}), {"kind": "job", "ttl_s": 60}),
        (jobs.role(overlay={"spec": {"nodeSelector": {"kubernetes.io/hostname": cluster.NODE}}}), {}),
        (jobs.role(), {"service_account": "default"}),
    ]
    for role, cfg in shapes:
        assert set(verdicts(check(jobs, role, **cfg)).values()) == {GOOD}, (role, cfg)
    assert cluster.call("GET", jobs.path("jobs", group="apis/batch/v1"))["items"] == []
    assert jobs.until(jobs.run()).state is AppState.SUCCEEDED


def test_a_namespace_that_does_not_exist(jobs: Jobs) -> None:
    """Of the cluster, and of a job there."""
    found = system(jobs, namespace="nobodys")["namespace `nobodys`"]
    assert (found.verdict, "`kubectl create namespace nobodys`" in found.fix) == (BAD, True)
    found = check(jobs, namespace="nobodys")["admission"]
    assert (found.verdict, found.said) == (BAD, "there is no namespace `nobodys`")


@pytest.mark.parametrize("kind", ["jobset", "volcano", "kubeflow"])
def test_kinds_that_the_cluster_may_not_have(jobs: Jobs, kind: str) -> None:
    """Bad exactly where the server does not take them."""
    there = system(jobs, kind=kind)["kind"].verdict == GOOD
    try:
        taken = check(jobs, kind=kind)["admission"].verdict == GOOD
    except BackendError:  # the dry run refuses it already
        taken = False
    assert there == taken


def test_what_pods_name(jobs: Jobs) -> None:
    """Bad while it is not there, good when it has been made."""
    role = jobs.role(mounts=[VolumeMount("models", "/m")])
    cfg: dict[str, Any] = {"service_account": "tarin", "secret_files": {"/etc/hf": "hf"}}
    names = {"claim `models`", "service account `tarin`", "secret `hf`"}
    found = check(jobs, role, **cfg)
    assert set(bad(found)) == names
    assert f"`kubectl create serviceaccount tarin -n {jobs.namespace}`" in found["service account `tarin`"].fix
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    cluster.call("POST", jobs.path("persistentvolumeclaims"), {"metadata": {"name": "models"}, "spec": claim})
    cluster.call("POST", jobs.path("serviceaccounts"), {"metadata": {"name": "tarin"}})
    cluster.call("POST", jobs.path("secrets"), {"metadata": {"name": "hf"}})
    found = check(jobs, role, **cfg)
    assert {found[name].verdict for name in names} == {GOOD}


def test_a_priority_class(jobs: Jobs) -> None:
    """Every cluster has two."""
    assert check(jobs, priority_class="hihg")["priority class `hihg`"].verdict == BAD
    high = "system-cluster-critical"
    assert check(jobs, priority_class=high)[f"priority class `{high}`"].verdict == GOOD


@pytest.mark.parametrize(
    "resource", [Resource(5000, 0, 64), Resource(1, 0, 10**9), Resource(1, 8, 64)], ids=["cpu", "memory", "gpu"]
)
def test_jobs_that_no_node_has_room_for(jobs: Jobs, resource: Resource) -> None:
    """Nobody adds nodes here, so that it is certain; the fix shows what they have."""
    found = check(jobs, jobs.role(resource=resource))["nodes"]
    assert (found.verdict, "kubectl get nodes" in found.fix) == (BAD, True), found


def test_a_label_that_no_node_has(jobs: Jobs) -> None:
    """Nor any that is going to be."""
    assert check(jobs, node_selector={"gpu": "a100"})["nodes"].verdict == BAD


def test_a_quota(jobs: Jobs, eventually: Callable[..., object]) -> None:
    """More than it will ever allow is bad."""
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}}
    cluster.call("POST", jobs.path("resourcequotas"), quota)
    counted = jobs.path("resourcequotas", "small")
    eventually(lambda: cluster.call("GET", counted).get("status", {}).get("used"), timeout_s=120)
    found = check(jobs, jobs.role(num_replicas=2))["quota"]
    assert (found.verdict, "2 of `pods` are needed, `small` allows 1" in found.said) == (BAD, True)
    assert check(jobs)["quota"].verdict == GOOD


def test_what_the_server_refuses(jobs: Jobs) -> None:
    """In its words, and as the submission ends."""
    role = jobs.role(overlay={"spec": {"restartPolicy": "Sometimes"}})
    found = check(jobs, role)["admission"]
    assert (found.verdict, "restartPolicy" in found.said) == (BAD, True)
    with pytest.raises(BackendError, match="restartPolicy"):
        jobs.run(role)


def test_an_image_whose_registry_is_silent(jobs: Jobs) -> None:
    """It is on no node, and nobody can be asked what machines it is for: that cannot be told."""
    role = Role("main", "127.0.0.1:9/me/train:1", entrypoint="true", resource=SMALL)
    assert check(jobs, role)["image of role `main`"].verdict == UNKNOWN


def test_rights(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., object]) -> None:
    """None: bad. Those that `--rbac` prints: good, and what needs more cannot be told. One of them missing: it is named."""
    role = yaml.safe_load(scheduler_of(jobs).rights({"namespace": jobs.namespace}))
    monkeypatch.setenv("KUBECONFIG", cluster.limited_kubeconfig(jobs.namespace))
    jobs.use("kubernetes")
    found = system(jobs)["rights"]
    assert (found.verdict, "torchx runopts kubernetes --rbac" in found.fix) == (BAD, True)
    assert check(jobs)["admission"].verdict == BAD

    jobs.grant(role)
    eventually(lambda: system(jobs)["rights"].verdict == GOOD, timeout_s=240, every_s=1)
    assert bad(system(jobs)) == []
    limited = check(jobs, jobs.role(mounts=[VolumeMount("models", "/m")]))
    seen = verdicts(limited)
    assert {seen[what] for what in ("claim `models`", "quota", "nodes")} == {UNKNOWN}
    assert (seen["admission"], bad(limited)) == (GOOD, [])

    for verb, resource, verdict in (("list", "events", UNKNOWN), ("delete", "jobs", BAD)):
        rules = [
            {**rule, "verbs": [v for v in rule["verbs"] if (v, resource) != (verb, rule["resources"][0])]}
            for rule in role["rules"]
        ]
        rules = [rule for rule in rules if rule["verbs"]]
        path = jobs.path("roles", role["metadata"]["name"], group="apis/rbac.authorization.k8s.io/v1")
        cluster.call("PUT", path, {**role, "rules": rules})
        eventually(lambda verdict=verdict: system(jobs)["rights"].verdict == verdict, timeout_s=240, every_s=1)
        assert f"you may not {verb} " in system(jobs)["rights"].said


def test_who_one_is(jobs: Jobs, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is refused is bad; a server that does not answer cannot be told of, and neither can anything there."""
    user, dead = {"token": "somebody-else"}, "https://127.0.0.1:9"
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(tmp_path / "a", user))
    jobs.use("kubernetes")
    assert system(jobs)["cluster"].verdict == BAD
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(tmp_path / "b", user, server=dead))
    jobs.use("kubernetes")
    assert set(verdicts(system(jobs)).values()) == {UNKNOWN}
    assert bad(check(jobs)) == []


def test_from_a_shell(torchx: Any, image: str) -> None:
    """`--deep` runs a job, reads its log and deletes it; `run --check` submits nothing."""
    done = torchx("doctor", "-s", "kubernetes", "--deep", "--image", image, "--timeout", "10m", code=None)
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith("  ")]
    assert ["good", "probe", "job"] in [[*words[:2], words[2].split()[0]] for words in lines], done.stdout
    done = torchx("run", "--check", "utils.echo", "--image", image, code=None)
    assert not [line for line in done.stdout.splitlines() if line.startswith("  bad")], done.stdout
