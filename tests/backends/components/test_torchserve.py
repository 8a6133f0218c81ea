"""`serve.torchserve` with a real TorchServe: a model is registered by a job, and answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests import ports
from tests.backends import venvs
from torchx.runner import Runner, get_runner
from torchx.specs import AppState, AppStatus

pytestmark = pytest.mark.timeout(1800)  # packages are installed

HANDLER = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Doubles(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        numbers = [float((row.get("body") or row.get("data")).decode()) for row in data]
        return (torch.tensor(numbers) * 2).tolist()
"""
CONFIG = """
inference_address=http://127.0.0.1:{0}
management_address=http://127.0.0.1:{1}
metrics_address=http://127.0.0.1:{2}
grpc_inference_address=127.0.0.1
grpc_management_address=127.0.0.1
grpc_inference_port={3}
grpc_management_port={4}
default_workers_per_model=1
default_response_timeout=600
default_startup_timeout=600
"""


@dataclass
class Server:
    folder: Path
    inference: str
    management: str

    def ping(self) -> str:
        try:
            return self.ask(f"{self.inference}/ping", "inference")
        except (OSError, ValueError):  # the file with the keys is not there yet, or not whole
            return ""

    def key(self, of: str) -> str:
        return str(json.loads((self.folder / "key_file.json").read_text())[of]["key"])

    def ask(self, url: str, key: str, *, data: bytes | None = None) -> str:
        headers = {"Authorization": f"Bearer {self.key(key)}", "Content-Type": "application/octet-stream"}
        request = Request(url, data=data, headers=headers)
        try:
            with build_opener(ProxyHandler({})).open(request, timeout=600) as answer:
                return str(answer.read().decode())
        except HTTPError as e:
            with e:
                return str(e.read().decode())
        except (OSError, HTTPException):
            return ""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """TorchServe as it comes: it asks for tokens."""
    pytest.importorskip("torch")
    venv, folder = venvs.torchserve(), tmp_path_factory.mktemp("torchserve")
    numbers = ports.several(5)
    (folder / "config.properties").write_text(CONFIG.format(*numbers))
    (folder / "store").mkdir()
    (folder / "handler.py").write_text(HANDLER)
    env = {
        **os.environ,
        "PATH": f"{venv}/bin:{os.environ['PATH']}",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "no_proxy": "*",
        "OMP_NUM_THREADS": "1",
    }
    archive = [
        f"{venv}/bin/torch-model-archiver",
        "--model-name",
        "doubles",
        "--version",
        "1.0",
        "--handler",
        "handler.py",
    ]
    subprocess.run(archive, cwd=folder, env=env, check=True, capture_output=True)
    argv = [
        f"{venv}/bin/torchserve",
        "--start",
        "--foreground",
        "--ncs",
        "--enable-model-api",
        "--model-store",
        "store",
    ]
    argv += ["--ts-config", "config.properties"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    found = Server(folder, f"http://127.0.0.1:{numbers[0]}", f"http://127.0.0.1:{numbers[1]}")
    try:
        deadline = time.monotonic() + 500
        while "Healthy" not in found.ping():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield found
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def register(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[AppStatus, str]]]:
    """Runs the component; its last status and what it wrote."""
    monkeypatch.chdir(server.folder)
    monkeypatch.setenv("no_proxy", "*")

    def run(runner: Runner, *words: str) -> tuple[AppStatus, str]:
        words = ("--model_path", "doubles.mar", "--management_api", server.management, *words)
        handle = runner.run_component("serve.torchserve", list(words), "local_cwd")
        status = runner.wait(handle, wait_interval=0.2, timeout=600)
        assert status is not None
        return status, "".join(runner.log_lines(handle, "torchserve"))

    with get_runner("components") as runner:
        yield lambda *words: run(runner, *words)


def test_without_a_token(register: Callable[..., tuple[AppStatus, str]]) -> None:
    """TorchServe refuses, and the status of the job says what it asks for."""
    status, _ = register()
    assert status.state == AppState.FAILED
    assert "InvalidKeyException" in str(status)
    assert "--token_file" in str(status)


def test_a_model_answers(register: Callable[..., tuple[AppStatus, str]], server: Server) -> None:
    """The archive is fetched from the job, its worker is up when the job ends, and the model answers; once more is refused."""
    told = ["--token_file", "key_file.json", "--params", "model_name=twice,initial_workers=1,synchronous=true"]
    status, log = register(*told)
    assert status.state == AppState.SUCCEEDED, log
    assert 'Model \\"twice\\" Version: 1.0 registered with 1 initial workers' in log
    assert json.loads(server.ask(f"{server.inference}/predictions/twice", "inference", data=b"21")) == 42
    status, _ = register(*told)
    assert status.state == AppState.FAILED
    assert "already exists" in str(status)
    assert "unregister" in str(status)


def test_a_dryrun(register: Callable[..., tuple[AppStatus, str]], server: Server) -> None:
    """Nothing is asked for."""
    status, log = register("--dryrun", "true", "--params", "model_name=never")
    assert status.state == AppState.SUCCEEDED
    assert log.startswith(f"POST {server.management}/models?url=")
    assert "never" not in server.ask(f"{server.management}/models", "management")
