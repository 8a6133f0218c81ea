"""Processes inside pods."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.backends.docker import engine
from tests.backends.inside import ECHO_SERVER, InsideContract, Place, read_until
from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.jobs import SMALL, Gate, Jobs
from tests.backends.shell import Shell
from tests.backends.ssh.sshd import Link
from torchx.errors import BackendError, NotFoundError
from torchx.runner.inside.forward import Forwarding, OwnForwarding
from torchx.schedulers.kit.inside import Tty
from torchx.schedulers.kubernetes.api.channels import Channels
from torchx.schedulers.kubernetes.api.rights import role_manifest
from torchx.schedulers.kubernetes.api.spdy import Spdy
from torchx.schedulers.kubernetes.inside import PodProcess
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, Role


@pytest.fixture
def place(jobs: Jobs, gate: Gate, tmp_path: Path, eventually: Callable[..., object]) -> Place:
    env = {"GREETING": "hello, 世界", "MARK_FILE": "mark"}
    app_id = jobs.run("cd /; : >mark; : >/gate/up; exec sleep 1000", env=env, mounts=[gate.mount])
    jobs.until(app_id, lambda job: job.state is AppState.RUNNING)
    eventually((tmp_path / "gate/up").exists)

    def end() -> None:
        jobs.scheduler.cancel(app_id)
        jobs.until(app_id)

    return Place(jobs.scheduler, app_id, "main", end)


class TestInsideKubernetes(InsideContract):
    """The contract."""


@pytest.mark.parametrize(("tty", "kind"), [(None, Spdy), (Tty(), Channels)], ids=["plain", "tty"])
def test_by_what_it_is_entered(place: Place, tty: Tty | None, kind: type) -> None:
    """This server has no websocket that can end stdin alone, which a terminal does not need; later ones are for
    `tests/schedulers/kubernetes/test_channels.py`."""
    api = place.scheduler._api_of(place.app_id)
    api.websockets = True
    pod = place.scheduler._running(place.app_id, place.role, 0)
    with PodProcess(api, pod, ["sh", "-c", "seq 100000; exit 7"], tty) as process:
        assert type(process._link) is kind
        process.close_stdin()
        read = b"".join(data for _, data in iter(process.read, None))
        assert read.split() == [b"%d" % i for i in range(1, 100_001)]
        assert process.wait() == 7
    assert api.websockets is (kind is Channels)


def test_a_session(torchx: object, image: str, jobs: Jobs, shell: Shell, eventually: Callable[..., object]) -> None:
    """A shell in a pod that ends with it."""
    shell.env.update({name: value for name, value in os.environ.items() if name.startswith(("KUBE", "TORCHX_"))})
    words = ["-s", "kubernetes", "--workspace=", "utils.session", "--image", image, "--memMB", "64"]
    handle = shell.session(*words)
    eventually(lambda: "CANCELLED" in shell.torchx("status", handle, check=False))
    eventually(lambda: not jobs.pods(handle.rpartition("/")[2]))
    assert "CANCELLED" in shell.torchx("status", handle, check=False)


@pytest.fixture(scope="session")
def bare_image(kubeconfig: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One program that serves files by HTTP: no shell, no Python."""
    engine.install("busybox", "busybox-static")
    folder = tmp_path_factory.mktemp("bare")
    shutil.copy(str(shutil.which("busybox", path=engine.PATH)), folder / "httpd")
    (folder / "page").write_text("hello, 世界")
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY httpd /httpd\nCOPY page /page\n")
    subprocess.run(["docker", "build", "-q", "-t", "torchx-test/bare:1", folder], check=True, capture_output=True)
    return "torchx-test/bare:1"


def test_ports_of_an_image_without_python(jobs: Jobs, bare_image: str) -> None:
    """By the command, until the replica has ended, which is exit code 3 and a sentence; so is another try."""
    words = ["-f", "-p", "127.0.0.1:8080", "-h", "/"]
    role = Role("web", bare_image, entrypoint="/httpd", args=words, resource=SMALL)
    app_id = jobs.run(AppDef("job", [role]))
    jobs.until(app_id, lambda job: job.state is AppState.RUNNING)
    with Place(jobs.scheduler, app_id, "web", lambda: None).forward((8080, 0), (8081, 0)) as made:
        assert isinstance(made, OwnForwarding)
        heard: list[str] = []
        made.on_refusal(heard.append)
        page, nobody = (f"http://127.0.0.1:{port}/page" for port in made.local_ports)
        for _ in range(3):
            with urllib.request.urlopen(page) as answer:
                assert answer.read().decode() == "hello, 世界"
        with pytest.raises(OSError, match=r"reset|closed|refused"):
            urllib.request.urlopen(nobody)
        assert heard == ["port 8081: Connection refused"]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(made.run)
            jobs.scheduler.cancel(app_id)
            jobs.until(app_id)
            with pytest.raises(OSError, match=r"reset|closed|refused"):
                urllib.request.urlopen(page)
            with pytest.raises(NotFoundError, match=r"replica web/0 of .* is not running: it is CANCELLED") as ended:
                running.result(60)
        assert ended.value.exit_code == 3


def echo(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(text)
        return connection.recv(1 << 16)


def test_ports_without_the_right_to_them(place: Place, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the Role as it is printed they are forwarded by the cluster, with that of before by the relay."""
    with place.open("python3", "-c", ECHO_SERVER) as server:
        port = int(read_until(server, rb"\d+\n"))
        role = yaml.safe_load(role_manifest("job", jobs.namespace, queued=False))
        jobs.grant(role)
        monkeypatch.setenv("KUBECONFIG", cluster.limited_kubeconfig(jobs.namespace))
        for kind in (OwnForwarding, Forwarding):
            scheduler = create_scheduler("limited")
            with place._replace(scheduler=scheduler).forward((port, 0)) as made, ThreadPoolExecutor(1) as pool:
                assert type(made) is kind
                running = pool.submit(made.run)
                assert echo(made.local_ports[0], b"hello") == b"hello"
                made.close()
                with pytest.raises(BackendError, match="has ended"):
                    running.result(60)
            scheduler.close()
            kept = [rule for rule in role["rules"] if rule["resources"] != ["pods/portforward"]]
            group = "apis/rbac.authorization.k8s.io/v1"
            path = jobs.path("roles", role["metadata"]["name"], group)
            cluster.call("PATCH", path, {"rules": kept}, "application/merge-patch+json")


@pytest.fixture
def link(kubeconfig: str) -> Iterator[Link]:
    """To the API server."""
    made = Link(cluster.PORT)
    yield made
    made.close()


def test_connections_whose_link_is_cut(
    place: Place, link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end, and the next one passes; where there is no link any more, forwarding ends with a sentence."""
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(cluster.config_of(cluster.TOKEN, server=f"https://127.0.0.1:{link.port}")))
    monkeypatch.setenv("KUBECONFIG", str(config))
    with place.open("python3", "-c", ECHO_SERVER) as server:
        port = int(read_until(server, rb"\d+\n"))
        far = place._replace(scheduler=create_scheduler("far"))
        with far.forward((port, 0)) as made, ThreadPoolExecutor(1) as pool:
            running = pool.submit(made.run)
            with socket.create_connection(("127.0.0.1", made.local_ports[0])) as connection:
                connection.sendall(b"hello")
                assert connection.recv(5) == b"hello"
                link.cut()
                assert connection.recv(1) == b""
            assert echo(made.local_ports[0], b"again") == b"again"
            link.close()
            with contextlib.suppress(ConnectionResetError):
                assert echo(made.local_ports[0], b"lost") == b""
            with pytest.raises(BackendError, match="does not answer"):
                running.result(60)
        far.scheduler.close()
