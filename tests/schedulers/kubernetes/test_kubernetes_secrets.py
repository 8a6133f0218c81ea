"""Secrets on Kubernetes: their values are only in a Secret that the job owns."""

from __future__ import annotations

import json

import pytest

from torchx.schedulers.kubernetes_mcad_scheduler import create_scheduler as create_mcad
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, Resource, Role, Secret, macros

from .fake_cluster import Cluster

JOBSETS = "jobset.x-k8s.io/v1alpha2"
VOLCANO = "batch.volcano.sh/v1alpha1"
WRAPPERS = "workload.codeflare.dev/v1beta2"
CANARY = "canary-51c0"

KINDS = pytest.mark.parametrize(
    ("create", "cfg", "groups", "owner"),
    [
        (create_scheduler, {"kind": "job"}, [], "services"),
        (create_scheduler, {"kind": "job", "ttl_s": 60}, [], "services"),
        (create_scheduler, {"kind": "auto", "ttl_s": 60}, [JOBSETS], "jobsets"),
        (create_scheduler, {"kind": "volcano"}, [VOLCANO], "jobs"),
        (create_mcad, {}, [WRAPPERS], "appwrappers"),
    ],
    ids=["job", "job with TTL", "jobset", "volcano", "appwrapper"],
)


def app() -> AppDef:
    """Two roles with different values of the same variable."""
    common = {"BY_REFERENCE": Secret("env:MY_CANARY"), "THERE": Secret("k8s:hf/token")}
    return AppDef(
        "train",
        [
            Role("a", "img", entrypoint="e", resource=Resource(1, 0, 64), num_replicas=2, env={
                **common, "API_KEY": f"{CANARY}-a", "OTHER_KEY": f"[SECRET]{'x/y'}", "PLAIN": "seen"}),
            Role("b", "img", entrypoint="e", resource=Resource(1, 0, 64), env={
                "API_KEY": f"{CANARY}-b-$(HOME)", "RUN_TOKEN": f"of-{macros.replica_id}"}),
        ],
    )  # fmt: skip


def variables(cluster: Cluster) -> dict[str, list[object]]:
    """Name of a variable -> its source in the containers of the cluster's objects."""
    found: dict[str, list[object]] = {}

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for variable in value["env"] if isinstance(value.get("env"), list) else ():
                found.setdefault(variable["name"], []).append(variable.get("valueFrom", variable.get("value")))
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    for plural in ("jobs", "jobsets", "appwrappers"):
        walk(cluster.of(plural))
    return found


@KINDS
def test_values_are_in_a_secret_alone(monkeypatch, create, cfg, groups, owner):
    """The owner of the job owns it, and the pods refer to it; no other object has a value."""
    monkeypatch.setenv("MY_CANARY", f"{CANARY}-c")
    cluster = Cluster(groups=groups)
    scheduler = create("me", client=cluster)
    _, _, name = scheduler.submit(app(), cfg).rpartition(":")
    (secret,) = cluster.of("secrets")
    assert secret["metadata"]["name"] == name
    assert secret["stringData"] == {
        "0.API_KEY": f"{CANARY}-a",
        "0.BY_REFERENCE": f"{CANARY}-c",
        "1.API_KEY": f"{CANARY}-b-$(HOME)",
    }
    (first,) = cluster.of(owner)[:1]
    assert [r["uid"] for r in secret["metadata"]["ownerReferences"]] == [first["metadata"]["uid"]]
    assert all(r["kind"] != "Secret" for r in first["metadata"].get("ownerReferences", ()))  # neither would ever go
    rest = [item for plural in ("services", "jobs", "jobsets", "appwrappers") for item in cluster.of(plural)]
    assert rest
    assert CANARY not in json.dumps(rest)
    found = variables(cluster)
    assert {"secretKeyRef": {"name": name, "key": "0.API_KEY"}} in found["API_KEY"]
    assert {"secretKeyRef": {"name": name, "key": "1.API_KEY"}} in found["API_KEY"]
    assert {"secretKeyRef": {"name": "hf", "key": "token"}} in found["THERE"]
    assert {"secretKeyRef": {"name": "x", "key": "y"}} in found["OTHER_KEY"]
    assert "seen" in found["PLAIN"]
    assert all(isinstance(value, str) for value in found["RUN_TOKEN"])  # each replica has its own


@KINDS
def test_a_dry_run_looks_nothing_up(create, cfg, groups, owner):
    """It shows the names, and needs no values."""
    info = create("me").submit_dryrun(app(), cfg)
    assert "owned by the job: BY_REFERENCE, API_KEY\n" in str(info)
    assert CANARY not in f"{info}{info.request!r}"


def test_a_job_without_secrets_has_none():
    """It needs no right to create one."""
    cluster = Cluster()
    role = Role("a", "img", entrypoint="e", resource=Resource(1, 0, 64), env={"A": "b", "T": Secret("k8s:hf/token")})
    create_scheduler("me", client=cluster).submit(AppDef("train", [role]), {"kind": "job"})
    assert cluster.of("secrets") == []


def test_words_of_language_models_need_no_secret():
    """A job whose variables only look like credentials has no Secret, which it might not be allowed to create."""
    env = {"MASK_TOKEN": "[MASK]", "EOS_TOKEN": "</s>", "USE_AUTH": "yes", "N_PASS": "3", "MY_TOKEN": "abc"}
    app = AppDef("a", [Role("r", "img", entrypoint="e", env=env, resource=Resource(1, 0, 64))])
    job = create_scheduler("s").submit_dryrun(app, {}).request
    assert job.secret is None and "</s>" in str(job)
    assert "abc" in str(job.resource) and "value: abc" not in str(job), "what is ambiguous is masked where it is shown"
