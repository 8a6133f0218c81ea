"""`kubernetes` and `kubernetes_mcad`: the output of dry runs, also checked with the schemas of several versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from torchx.schedulers.kubernetes.names import ANNOTATION_APP
from torchx.schedulers.kubernetes.overlays import set_overlay
from torchx.schedulers.kubernetes_mcad_scheduler import create_scheduler as create_mcad
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount
from torchx.version import __version__

yaml = pytest.importorskip("yaml")
GOLDEN = Path(__file__).parents[2] / "golden" / "kubernetes"
VERSIONS = ("1.25", "1.30", "1.37")


def app() -> AppDef:
    """Two roles that use all features."""
    trainer = Role(
        "trainer",
        "ghcr.io/me/train:1",
        entrypoint="torchrun",
        args=["--rdzv_endpoint", "$TORCHX_RANK0_HOST:29500", "--node_rank", "${replica_id}", "t.py", "$(HOME)"],
        env={"HF_TOKEN": "[SECRET]hf/token", "LEVEL": "[CONFIG_MAP]site/level", "IP": "[FIELD_PATH]status.podIP", "A": "b c"},
        num_replicas=4,
        min_replicas=2,
        max_retries=3,
        retry_policy=RetryPolicy.REPLICA,
        port_map={"c10d": 29500},
        resource=Resource(8, 2, 65536, capabilities={"node.kubernetes.io/instance-type": "p4d.24xlarge"}, devices={"vpc.amazonaws.com/efa": 4}),
        mounts=[BindMount("/data", "/mnt", True), VolumeMount("models", "/models"), DeviceMount("/dev/fuse", "/dev/fuse")],
    )  # fmt: skip
    set_overlay(trainer, "kubernetes", "pod", {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}})
    reader = Role("Data Reader", "ghcr.io/me/read:1", entrypoint="read", max_retries=1, resource=Resource(1, 0, 2048))
    return AppDef("Train GPT", [trainer, reader], metadata={"team": "x"})


JOBS: dict[str, tuple[Any, Any]] = {
    "job": (create_scheduler, {"kind": "job", "ttl_s": 60, "secret_files": {"/etc/hf": "hf"}}),
    "job-kueue": (create_scheduler, {"kind": "job", "local_queue": "team", "image_secret": "ghcr"}),
    "jobset": (create_scheduler, {"kind": "jobset", "service_account": "trainer", "priority_class": "high"}),
    "volcano": (create_scheduler, {"queue": "gpu", "priority_class": "high", "namespace": "team"}),
    "appwrapper-v1beta2": (create_mcad, {"coscheduler_name": "cosched", "network": "roce", "image_secret": "ghcr"}),
    "appwrapper-v1beta1": (create_mcad, {"appwrapper_version": "v1beta1", "priority": 5}),
}


@pytest.mark.parametrize("name", JOBS)
def test_what_a_dry_run_prints(name: str) -> None:
    """It is the golden file in tests/golden/kubernetes; `UPDATE_GOLDEN=1` rewrites these."""
    create, cfg = JOBS[name]
    info = create("me").submit_dryrun(app(), cfg)
    text = str(info).replace(info.request.app_id, "APP-ID").replace(f"version: '{__version__}'", "version: VERSION")
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", JOBS)
def test_the_schemas_of_kubernetes_agree(name: str, version: str) -> None:
    """Built-in objects, also those within custom objects, are valid in the cluster's version."""
    validate = pytest.importorskip("kubernetes_validate")
    create, cfg = JOBS[name]
    scheduler = create("me")
    info = scheduler.submit_dryrun(app(), cfg)
    if create is create_scheduler:
        job, numbers = info.request, tuple(int(part) for part in version.split("."))
        resource = scheduler._render(job.kind, app(), job.app_id, job.opts, numbers)
    else:
        resource = info.request.resource
    parts = built_in(resource)
    assert parts
    for part in parts:
        validate.validate(part, version, strict=True)


def built_in(item):
    """The built-in objects within an object."""
    kind, spec = item["kind"], item.get("spec", {})
    if kind == "List":
        return [part for inner in item["items"] for part in built_in(inner)]
    if kind == "JobSet":
        return [{"apiVersion": "batch/v1", "kind": "Job", **job["template"]} for job in spec["replicatedJobs"]]
    if kind == "AppWrapper":
        parts = spec.get("components") or spec["resources"]["GenericItems"]
        inner = [part.get("template") or part["generictemplate"] for part in parts]
        return [part for part in inner if part["kind"] != "PodGroup"]
    if "volcano" in item["apiVersion"]:
        return [{"apiVersion": "v1", "kind": "Pod", **task["template"]} for task in spec["tasks"]]
    return [item]


@pytest.mark.parametrize("name", JOBS)
def test_the_definition_lies_on_one_object(name: str) -> None:
    """The size of the request does not depend on the replicas. With a TTL, each role has the definition."""
    one_per_role = JOBS[name][1].get("kind") == "job" and "ttl_s" in JOBS[name][1]
    assert (GOLDEN / f"{name}.yaml").read_text().count(ANNOTATION_APP) == (len(app().roles) if one_per_role else 1)
