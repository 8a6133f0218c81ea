"""The watcher of examples/kubernetes_watcher, in a pod, with the rights that its manifest gives it: nobody else looks."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.jobs import Jobs
from tests.backends.shell import ROOT
from torchx.specs import AppDef, AppState, Resource
from torchx.specs.wishes.retries import RETRY

GROUPS = {
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Deployment": ("apis/apps/v1", "deployments"),
}


def _apply(jobs: Jobs, folder: Path) -> None:
    """The manifest, as it is but for what this cluster lacks: tokens in pods, an image with torchx, and services."""
    for item in yaml.safe_load_all((ROOT / "examples" / "kubernetes_watcher" / "watcher.yaml").read_text()):
        if item["kind"] == "Deployment":
            token = {"spec": {"audiences": ["https://localhost"], "expirationSeconds": 3600}}
            made = cluster.call("POST", jobs.path("serviceaccounts", "torchx-watcher/token"), token)
            config = cluster.config_of(made["status"]["token"], jobs.namespace)
            (folder / "kubeconfig").write_text(json.dumps(config))
            _adapt(item["spec"]["template"]["spec"], jobs.image, folder)
        group, plural = GROUPS[item["kind"]]
        item["metadata"]["namespace"] = jobs.namespace
        for subject in item.get("subjects", ()):
            subject["namespace"] = jobs.namespace
        cluster.call("POST", jobs.path(plural, group=group), item)


def _adapt(spec: dict[str, Any], image: str, folder: Path) -> None:
    (container,) = spec["containers"]
    container["image"] = image
    folders = [str(ROOT), sysconfig.get_path("purelib"), str(folder)]
    container["env"] += [
        {"name": "PYTHONPATH", "value": ":".join(folders[:2])},
        {"name": "KUBECONFIG", "value": f"{folder}/kubeconfig"},
    ]
    container["volumeMounts"] = [{"name": f"v{k}", "mountPath": at, "readOnly": True} for k, at in enumerate(folders)]
    spec["volumes"] = [{"name": f"v{k}", "hostPath": {"path": at}} for k, at in enumerate(folders)]
    spec["hostNetwork"] = True
    spec["securityContext"] = {}  # the folders above are those of whoever runs the tests


def test_attempts_at_night(jobs: Jobs, eventually: Callable[..., object], tmp_path: Path) -> None:
    """Memory runs out in one, and a bug in a replica ends another: each gets the attempts that it asks for, no more."""
    _apply(jobs, tmp_path)
    script = "python3 -c 'x = bytearray(150 << 20); print(len(x))'"
    grows = jobs.run(
        AppDef("grows", [jobs.role(script, resource=Resource(1, 0, 100))], metadata={RETRY: "oom:2:mem*2"})
    )
    script = "[ $TORCHX_REPLICA_ID = 0 ] && exit 3; sleep 3600"
    fails = jobs.run(AppDef("fails", [jobs.role(script, num_replicas=2)], metadata={RETRY: "error:1, oom:1"}))

    def ends() -> dict[str, str]:
        """The Jobs that have ended, by the conditions of the cluster's own controller."""
        items = cluster.call("GET", jobs.path("jobs", group="apis/batch/v1"))["items"]
        return {
            item["metadata"]["name"]: condition["type"]
            for item in items
            for condition in item["status"].get("conditions", ())
        }

    wanted = {"grows": ["Complete", "Failed"], "fails": ["Failed", "Failed"]}

    def seen() -> dict[str, list[str]]:
        return {kind: sorted(how for name, how in ends().items() if name.startswith(kind)) for kind in wanted}

    eventually(lambda: seen() == wanted, timeout_s=240)
    survived, failed = jobs.until(grows), jobs.until(fails)
    assert survived.state is AppState.SUCCEEDED
    assert [(a.kind, a.again, a.memory) for a in survived.attempts] == [("oom", True, 2.0)]
    assert failed.state is AppState.FAILED
    assert [(a.kind, a.again) for a in failed.attempts] == [("error", True), ("error", False)]
    assert seen() == wanted
