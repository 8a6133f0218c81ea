"""A real cluster of one node for the tests here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.docker import engine
from tests.backends.docker.engine import IMAGE, Unavailable
from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.jobs import Gate, Jobs, audited
from tests.backends.shell import Shell
from torchx.schedulers.kubernetes.client import KubeApi


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[str]:
    """The cluster is up, and the engine under it; they are stopped again if they were not."""
    engine_started = False
    try:
        engine_started = engine.up()
        yield cluster.up()
    except Unavailable as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(e))
    finally:
        if cluster.ours():
            cluster.down()
        if engine_started:
            engine.down()


@pytest.fixture
def image() -> str:
    """With bash and Python."""
    return IMAGE


@pytest.fixture
def namespace(kubeconfig: str) -> Iterator[str]:
    """A fresh namespace that is removed, with all that is in it, after the test."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    cluster.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def jobs(kubeconfig: str, namespace: str, image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs without the command line, in the test's namespace."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    made = Jobs(namespace, image)
    yield made
    made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Lets scripts in pods wait for the test, and it for them."""
    return Gate(tmp_path / "gate")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., object]) -> Callable[..., list[str]]:
    """Waits for the end of a job, for far longer than a test may take. Returns what that cost in calls."""
    listening = threading.Event()
    honest = KubeApi.stream

    def stream(*args: Any, **kwargs: Any) -> Any:
        try:
            return honest(*args, **kwargs)
        finally:
            listening.set()

    monkeypatch.setattr(KubeApi, "stream", stream)

    def wait(jobs: Jobs, app_id: str, end: Callable[[], object] = lambda: None) -> list[str]:
        thread = threading.Thread(target=jobs.scheduler.wait_for_end, args=(app_id, 3600), daemon=True)
        with audited(jobs.namespace) as audit:
            thread.start()
            assert listening.wait(240)
            end()
            thread.join(240)
            assert not thread.is_alive()
            eventually(lambda: "watch" in audit.verbs())
        return audit.verbs()

    return wait


@pytest.fixture
def torchx(shell: Shell, kubeconfig: str, namespace: str, monkeypatch: pytest.MonkeyPatch):
    """Runs the command; `torchx run` goes to the test's namespace."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    monkeypatch.setenv("TORCHX_KUBERNETES_NAMESPACE", namespace)
    # The node has few CPUs: nothing is reserved, so that no test waits for the pods of the one before.
    monkeypatch.setenv("TORCHX_KUBERNETES_RESERVED_MILLICPU", "1000")
    program = shutil.which("torchx", path=os.path.dirname(sys.executable)) or "torchx"

    def run(*argv: str, code: int | None = 0, timeout_s: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        if argv[0] == "run":
            argv = ("run", "-s", "kubernetes", "--workspace=", *argv[1:])
        given = {**os.environ, **env}
        done = subprocess.run(
            [program, *argv], capture_output=True, text=True, timeout=timeout_s, env=given, check=False
        )
        assert code in (None, done.returncode), f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
