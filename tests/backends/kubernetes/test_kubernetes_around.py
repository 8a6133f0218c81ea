"""Set-up lines, checks of nodes, staged data and what is free, with real pods."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.operators import defined, definition
from torchx.cli.main import main
from torchx.errors import NotFoundError
from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role
from torchx.specs.wishes.checks import CHECK_NODES
from torchx.specs.wishes.setup import SETUP
from torchx.specs.wishes.stages import STAGE


def test_around_the_program(kubeconfig: str, namespace: str, image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the set-up, whatever it contains; two replicas whose nodes are fit; a failure of the set-up."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    role = Role("r", image, entrypoint="sh", args=["-c", 'echo "$A" $(cat /tmp/os); sleep 1'], num_replicas=2)
    role.resource = Resource(1, 0, 64)
    metadata = {SETUP: "export A='$(HOME) ${app_id} $$'", CHECK_NODES: "disk,gpus", STAGE: "/etc/hostname=/tmp/os"}
    with get_runner() as runner:
        cfg = {"namespace": namespace}
        handle = runner.run(AppDef("around", [role], metadata=metadata), "kubernetes", cfg)
        status = runner.wait(handle, 0.5, 120)
        assert status is not None and str(status.state) == "SUCCEEDED", status
        for k in (0, 1):
            (line,) = runner.log_lines(handle, "r", k)
            assert line.startswith("$(HOME) ${app_id} $$ ")
        with pytest.raises(NotFoundError):
            runner.copy(handle, "x", ".")
        role.num_replicas, metadata = 1, {SETUP: "module load nope"}
        status = runner.wait(runner.run(AppDef("around", [role], metadata=metadata), "kubernetes", cfg), 0.5, 120)
        assert status is not None and "set-up failed: module load nope (exit 127)" in status.format()
        (pool,) = runner.nodes("kubernetes", cfg, Resource(1, 0, 64))
        assert pool.nodes == pool.usable == 1 and pool.cpus >= pool.free_cpus > 0 and pool.fitting >= 0


def test_queues_of_kueue(
    kubeconfig: str, namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torchx nodes` shows the queue of the namespace, with its quota."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    group = "kueue.x-k8s.io/v1beta1"
    rows = [
        {"group": group[:14], "version": "v1beta1", "kind": kind, "plural": f"{kind.lower()}s", "required": []}
        for kind in ("LocalQueue", "ClusterQueue")
    ]
    kinds = [definition(row) for row in rows]
    kinds[1]["spec"]["scope"] = "Cluster"
    quota = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 16}]}
    used = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "3"}]}
    with defined(*kinds):
        spec = {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]}
        head: dict[str, Any] = {"apiVersion": group, "metadata": {"name": namespace}}
        cluster.call("POST", f"/apis/{group}/clusterqueues", {**head, "kind": "ClusterQueue", "spec": spec})
        path = f"/apis/{group}/clusterqueues/{namespace}/status"
        cluster.call("PATCH", path, {"status": {"flavorsReservation": [used]}}, "application/merge-patch+json")
        local = {**head, "kind": "LocalQueue", "spec": {"clusterQueue": namespace}}
        cluster.call("POST", f"/apis/{group}/namespaces/{namespace}/localqueues", local)
        main(["nodes", "-s", "kubernetes", "-cfg", f"namespace={namespace}", "--gpu", "h100:4"])
        (row,) = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith("queue")]
        assert row == [f"queue {namespace} (h100)", "quota", "16 h100", "?", "?", "13", "3", "-"]
