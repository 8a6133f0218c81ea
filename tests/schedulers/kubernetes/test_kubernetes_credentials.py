"""Which cluster and namespace kubeconfig names."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx.errors import BackendError
from torchx.schedulers.kubernetes.api.credentials import connect

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://cluster:6443"}}]
users: [{name: u, user: {token: abc}}]
contexts: [{name: good, context: {cluster: c, user: u, namespace: team}}]
"""


@pytest.mark.parametrize("current", ["", 'current-context: ""\n', "current-context: deleted\n"])
def test_a_context_needs_no_current_one(current: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Like `kubectl --context`. Without one, the current one is needed."""
    pytest.importorskip("kubernetes")
    file = tmp_path / "config"
    file.write_text(KUBECONFIG + current)
    monkeypatch.setenv("KUBECONFIG", str(file))
    cluster, namespace = connect("good")
    assert (cluster.configuration.host, namespace) == ("https://cluster:6443", "team")
    with pytest.raises(BackendError, match="no Kubernetes cluster is configured"):
        connect(None)
