"""Jobs that torchx did not make, on a real cluster: as `kubectl apply` leaves them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.backends.kubernetes import cluster
from torchx.errors import NotSupportedError
from torchx.runner import Runner
from torchx.runner.foreign.explain import Explained
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppState, is_terminal

PATIENCE_S = 180.0


@pytest.fixture
def runner(kubeconfig: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """A Runner that knows the cluster alone."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    with Runner("test", {"kubernetes": create_scheduler}) as made:
        yield made


def job(name: str, command: str, image: str, **spec: Any) -> dict[str, Any]:
    """The manifest of a Job, as people write one."""
    container = {"name": "train", "image": image, "command": ["sh", "-c", command], "imagePullPolicy": "IfNotPresent"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template, **spec}}


def once(runner: Runner, reference: str, wanted: Callable[[Explained], object]) -> Explained:
    """What is said of a job, once it is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while not wanted(found := runner.why(reference)):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    return found


def test_a_job_that_fails_twice(runner: Runner, namespace: str, image: str) -> None:
    """The cause is what its last pod wrote; the pod before it was another attempt of the same replica, with its log."""
    command = "exec >&2; echo begun; echo 'ValueError: no such frob'; exit 3"  # of two streams the order is not kept
    cluster.call("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", job("train", command, image, backoffLimit=1))
    reference = f"k8s://{namespace}/job/train"
    found = once(runner, reference, lambda found: is_terminal(found.status.state))
    assert found.handle == f"kubernetes://foreign/{namespace}:job:train"
    assert found.status.state is AppState.FAILED
    assert "exit code 3: ValueError: no such frob" in found.status.msg
    assert sorted(found.lines) == [*2 * ["ValueError: no such frob\n"], *2 * ["begun\n"]], "of both attempts"


def test_what_a_pod_waits_for(runner: Runner, namespace: str, image: str) -> None:
    """An image that is not there, in the words that are used for jobs of ours; adopted, it is removed by force alone."""
    manifest = job("train", "true", "localhost:1/nowhere:none")
    cluster.call("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", manifest)
    reference = f"k8s://{namespace}/job/train"
    found = once(runner, reference, lambda found: "image" in found.status.msg)
    assert found.status.state is AppState.PENDING
    handle = runner.adopt(reference, name="bert")
    assert runner.status("@bert").state is AppState.PENDING
    with pytest.raises(NotSupportedError):
        runner.cancel("@bert")
    runner.cancel(handle, force=True)
    deadline = time.monotonic() + PATIENCE_S
    while not (status := runner.status("@bert")).gone:
        assert time.monotonic() < deadline, status
        time.sleep(0.5)
