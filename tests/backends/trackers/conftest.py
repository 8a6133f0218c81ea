"""Real servers on loopback: MLflow with a SQLite store, and an S3 server; and a shell that has the clients."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from tests import ports
from tests.backends import venvs
from tests.backends.docker import engine
from tests.backends.shell import Shell

# Nobody is told that we test, no job is run by the server, and no proxy stands between us and ourselves.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "no_proxy": "*",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
}
AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def venv() -> Path:
    """MLflow, moto, s3fs, and beside them the torchx and PyTorch of this interpreter."""
    pytest.importorskip("torch")
    return venvs.mlflow_and_s3()


@pytest.fixture(scope="session")
def mlflow_server(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server with a SQLite store."""
    yield from mlflow_at("127.0.0.1", venv, tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="session")
def docker_image() -> Iterator[str]:
    """The test image on the engine of this machine, which is started (and stopped again) if none answers."""
    try:
        started = engine.up()
        tag = engine.image()
    except engine.Unavailable as e:
        pytest.skip(f"no Docker engine can be had: {e}")
    yield tag
    if started:
        engine.down()


@pytest.fixture(scope="session")
def bridged_server(docker_image: str, venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server that containers reach, too: on this machine's end of the engine's bridge."""
    shown = engine.run("docker", "network", "inspect", "bridge", "-f", "{{json (index .IPAM.Config 0)}}")
    network = json.loads(shown)
    # An engine that has just made its first bridge names no gateway: it is the first address.
    address = network.get("Gateway") or str(next(ipaddress.ip_network(network["Subnet"]).hosts()))
    yield from mlflow_at(address, venv, tmp_path_factory.mktemp("mlflow"))


def mlflow_at(address: str, venv: Path, folder: Path) -> Iterator[str]:
    port = ports.free(address)
    argv = [str(venv / "bin/python"), "-m", "mlflow", "server", "--host", address, "--port", str(port)]
    argv += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    argv += ["--artifacts-destination", f"{folder}/artifacts"]
    yield from served(argv, folder, f"http://{address}:{port}", "/health")


@pytest.fixture(scope="session")
def s3_server(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server."""
    folder = tmp_path_factory.mktemp("s3")
    port = ports.free()
    argv = [str(venv / "bin/python"), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    yield from served(argv, folder, f"http://127.0.0.1:{port}", "/moto-api/")


def served(argv: list[str], folder: Path, url: str, page: str) -> Iterator[str]:
    """The address of a server that lives until the tests are over; what it prints is in its folder."""
    env = {**os.environ, **QUIET, "HOME": str(folder), "TMPDIR": str(folder)}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(argv, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 900
        while not answers(url + page):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def answers(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=60) as page:
            return bool(page.status == 200)
    except (OSError, HTTPException):
        return False


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections; it is taken, so that nobody comes to listen there."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        yield s.getsockname()[1]


class SilentServer:
    """Takes connections and never answers; the file ``met`` is there once there has been one."""

    def __init__(self, listener: socket.socket, met: Path) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.met = met
        self._listener = listener
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def connections(self) -> int:
        """How many there have been."""
        return len(self._taken)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection in self._taken:
            connection.close()

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # by `close`
            while True:
                self._taken.append(self._listener.accept()[0])
                self.met.touch()


@pytest.fixture
def silent_server(tmp_path: Path) -> Iterator[SilentServer]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as s:
        server = SilentServer(s, tmp_path / "met")
        yield server
        server.close()


@pytest.fixture
def project(venv: Path, tmp_path: Path) -> Shell:
    """A shell in a project of its own, where `torchx` and `python` are those of the virtual environment."""
    folder = tmp_path / "project"
    (tmp_path / "tmp").mkdir()
    folder.mkdir()
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    return Shell(folder, {**os.environ, **QUIET, "PATH": path, "TMPDIR": str(tmp_path / "tmp")})


@pytest.fixture
def python(project: Shell) -> Callable[..., str]:
    """Runs a program in the virtual environment, and gives what it prints."""

    def run(program: str, *args: str, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["python", "-c", program, *args],
            cwd=project.cwd,
            env={**project.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
