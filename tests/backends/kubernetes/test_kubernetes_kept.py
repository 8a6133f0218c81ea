"""`[logs] keep = end` with pods that are gone afterwards: only pods, as after the loss of a node, or the whole job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends import kept
from tests.backends.kubernetes import cluster
from tests.backends.shell import Shell


@pytest.mark.parametrize("what", ["pods", "job"])
def test_logs_outlive_pods(
    kubeconfig: str, namespace: str, image: str, shell: Shell, tmp_path: Path, what: str
) -> None:
    def lose(handle: str) -> None:
        path = (
            f"/api/v1/namespaces/{namespace}/pods" if what == "pods" else f"/apis/batch/v1/namespaces/{namespace}/jobs"
        )
        cluster.call("DELETE", f"{path}?propagationPolicy=Background&gracePeriodSeconds=0")
        while cluster.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
            pass

    env = {**shell.env, "KUBECONFIG": kubeconfig, "TORCHX_KUBERNETES_NAMESPACE": namespace}
    env["TORCHX_KUBERNETES_RESERVED_MILLICPU"] = "1000"
    kept.outlive(Shell(tmp_path, env), tmp_path, ["-s", "kubernetes", "--image", image], lose)
