"""Files of jobs that have ended, on their claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.jobs import Jobs
from torchx.errors import NotFoundError
from torchx.runner import get_runner
from torchx.schedulers.kit.inside.run import run
from torchx.schedulers.kubernetes import claims
from torchx.schedulers.kubernetes.api.rights import role_manifest
from torchx.specs import AppState, VolumeMount


@pytest.fixture
def claim(namespace: str, tmp_path: Path) -> Iterator[str]:
    """A claim in the namespace, bound to a volume that is a folder of this machine."""
    name = f"data-{namespace}"
    storage = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    volume = {
        "metadata": {"name": name},
        "spec": {**storage, "capacity": {"storage": "1Mi"}, "hostPath": {"path": str(tmp_path), "type": "Directory"}},
    }
    cluster.call("POST", "/api/v1/persistentvolumes", volume)
    wanted = {**storage, "volumeName": name, "resources": {"requests": {"storage": "1Mi"}}}
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    cluster.call("POST", path, {"metadata": {"name": "data"}, "spec": wanted})
    yield "data"
    cluster.call("DELETE", f"/api/v1/persistentvolumes/{name}")


def test_files_on_the_claim_of_a_job_that_has_ended(jobs: Jobs, claim: str, tmp_path: Path) -> None:
    """With the rights that are printed; what is not on the claim is refused; no pod is left behind."""
    mounts = [VolumeMount(claim, "/data")]
    script = "mkdir -p /data/runs/a; echo 1 >/data/runs/a/x; echo 2 >/data/y; echo 3 >/tmp/z"
    app_id = jobs.run(script, mounts=mounts)
    assert jobs.until(app_id).state is AppState.SUCCEEDED
    jobs.grant(yaml.safe_load(role_manifest("job", jobs.namespace, queued=False)))
    before = {pod["metadata"]["name"] for pod in cluster.call("GET", jobs.path("pods"))["items"]}
    with pytest.MonkeyPatch.context() as patch, get_runner() as runner:
        patch.setenv("KUBECONFIG", cluster.limited_kubeconfig(jobs.namespace))
        handle = f"kubernetes://torchx/{app_id}"
        (tmp_path / "out").mkdir()
        assert runner.copy(handle, "runs", f"{tmp_path}/out", "main").files == 1
        assert (tmp_path / "out/runs/a/x").read_text() == "1\n"
        runner.copy(handle, "/data/y", f"{tmp_path}/out/mine", "main")
        assert (tmp_path / "out/mine").read_text() == "2\n"
        for missing in ("nope", "/tmp/z", "/etc/passwd", "../etc/passwd"):
            with pytest.raises(NotFoundError, match=f"no `{missing}` where its files are: claim `data`:/data"):
                runner.copy(handle, missing, str(tmp_path), "main")
    there = cluster.call("GET", jobs.path("pods"))["items"]
    assert {pod["metadata"]["name"] for pod in there if "deletionTimestamp" not in pod["metadata"]} == before


def test_a_pod_for_claims_outlives_nobody(
    jobs: Jobs, claim: str, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., object]
) -> None:
    """If torchx is killed the cluster ends it, and deletes it with the job; it cannot write."""
    monkeypatch.setattr(claims, "_LIFE_S", 15)
    app_id = jobs.run("echo 1 >/data/y", mounts=[VolumeMount(claim, "/data")])
    assert jobs.until(app_id).state is AppState.SUCCEEDED
    backend: Any = jobs.scheduler
    (place,) = backend.kept(app_id, "main", 0, "")
    assert place.start is not None
    with place.start(["sh", "-c", "echo 2 >y"]) as process:
        assert run(process).exit_code != 0

    def helpers() -> list[str]:
        found = cluster.call("GET", jobs.path("pods"))["items"]
        return [pod["status"]["phase"] for pod in found if pod["metadata"]["name"].startswith("torchx-cp-")]

    assert helpers() == ["Running"]
    eventually(lambda: helpers() in (["Failed"], ["Succeeded"]))
    jobs.scheduler.delete(app_id)
    eventually(lambda: helpers() == [])
