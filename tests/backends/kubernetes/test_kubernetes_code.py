"""Code without a registry, in real pods: as a ConfigMap, and by an object store that the pods fetch it from."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import venvs
from tests.backends.docker.engine import run as engine_run
from tests.backends.kubernetes import cluster


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, in which the test stands."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print('fetched', open('data').read(3))\n")
    (folder / "data").write_text("one")
    monkeypatch.chdir(folder)
    return folder


def program(namespace: str, *options: str, python: str, image: str) -> str:
    """What a job of one replica wrote that ran the workspace's program."""
    cfg = ",".join([f"namespace={namespace}", "reserved_millicpu=1000", *options])
    words = ["run", "-s", "kubernetes", "-cfg", cfg, "--workspace=.", "--wait", "utils.sh", "--image", image]
    done = subprocess.run(
        [python, "-m", "torchx", *words, "python3", "train.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = [python, "-m", "torchx", "log", "--no-prefix", done.stdout.strip()]
    return subprocess.run(log, capture_output=True, text=True, timeout=60, check=True).stdout


def config_maps(namespace: str) -> list[str]:
    """Those of code."""
    found = cluster.call("GET", f"/api/v1/namespaces/{namespace}/configmaps")["items"]
    return [name for item in found if "-code-" in (name := item["metadata"]["name"])]


@pytest.fixture
def python(kubeconfig: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that has an S3 client."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    return f"{venvs.mlflow_and_s3()}/bin/python"


@pytest.fixture
def bucket(python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server that this machine and its pods reach at one address."""
    bridge = (
        "{{with index .IPAM.Config 0}}{{.Subnet}} {{.Gateway}}{{end}}"  # an engine without containers says no gateway
    )
    subnet, *gateway = engine_run("docker", "network", "inspect", "bridge", "-f", bridge).split()
    host = gateway[0] if gateway else str(next(ipaddress.ip_network(subnet).hosts()))
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    address = f"http://{host}:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "no_proxy": "*",
    }.items():
        monkeypatch.setenv(name, value)
    start = f"import sys; from moto.server import main; sys.exit(main(['-H', {host!r}, '-p', '{port}']))"
    with subprocess.Popen([python, "-c", start], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _until_it_answers(f"{address}/moto-api/data.json", server)
            make = "import boto3; boto3.client('s3').create_bucket(Bucket='code')"
            subprocess.run([python, "-c", make], check=True, timeout=120)
            yield "s3://code/jobs"
        finally:
            server.terminate()


def _until_it_answers(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.timeout(1800)  # most of it is for the packages, which are installed once on a machine
def test_pods_run_code_that_they_fetch_from_a_bucket(bucket, code, namespace, image, python):
    """What is changed is there the next time. The credentials are not: what the cluster has is an address for one archive."""
    options = ("code=bucket", f"bucket={bucket}")
    assert program(namespace, *options, python=python, image=image) == "fetched one\n"
    (code / "data").write_text("two")
    assert program(namespace, *options, python=python, image=image) == "fetched two\n"
    secrets = cluster.call("GET", f"/api/v1/namespaces/{namespace}/secrets")["items"]
    own = [item for item in secrets if "start.sh" in (item.get("data") or {})]
    assert len(own) == 2 and all(set(item["data"]) == {"url", "start.sh"} for item in own)
    assert not config_maps(namespace)


@pytest.mark.timeout(1800)
def test_a_changed_file_is_in_a_pod_within_seconds(bucket, code, namespace, image, python, capsys):
    """By way of the bucket, of a program that runs already."""
    (code / "train.py").write_text("import time; print(open('data').read(), time.time())\n")
    argv = [python, "-c", _TWICE, namespace, bucket, image]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    took = [float(word) for word in done.stdout.split()]
    assert len(took) == 3
    with capsys.disabled():
        print(f"\nfrom a changed file to a started program, by a bucket: {took} s")


_TWICE = """
import sys, time
from torchx.runner import get_runner
from torchx.components.utils import sh
namespace, bucket, image = sys.argv[1:]
cfg = {"namespace": namespace, "reserved_millicpu": 1000, "code": "bucket", "bucket": bucket}
with get_runner() as runner:
    for word in ("one", "two", "three"):
        with open("data", "w") as file:
            file.write(word)
        begun = time.time()
        handle = runner.run(sh("python3", "train.py", image=image), "kubernetes", cfg, workspace="file://.")
        runner.wait(handle, wait_interval=0.2)
        (line,) = runner.log_lines(handle, "sh")
        said, at = line.split()
        assert said == word, line
        print(round(float(at) - begun, 2))
"""


def test_pods_run_code_of_a_config_map(code, namespace, image, python):
    """Which goes along with its job."""
    assert program(namespace, "code=inline", python=python, image=image) == "fetched one\n"
    assert len(config_maps(namespace)) == 1
