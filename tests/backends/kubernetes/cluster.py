"""A Kubernetes cluster of one node for tests: API server, controllers, scheduler, kubelet on the Docker engine.

As a program, as root::

    python -m tests.backends.kubernetes.cluster up       # builds what is missing (once, 4 minutes), starts what is down
    python -m tests.backends.kubernetes.cluster down     # stops what `up` has started

The programs are those of Debian's package of Kubernetes 1.20, kept in ``~/.cache/torchx-ci/k8s``. State lies below
``$TORCHX_BACKENDS`` (default ``/var/tmp/torchx-backends``), in ``k8s``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.backends.docker import engine
from tests.backends.docker.engine import PATH, Unavailable, run

BIN = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchx-ci" / "k8s"
STATE = engine.BACKENDS / "k8s"
KUBECONFIG = STATE / "kubeconfig"
AUDIT = STATE / "audit.log"
HOST, PORT = "127.0.0.1", 16443
SERVER = f"https://{HOST}:{PORT}"
TOKEN = "torchx-tests"
"""Of a user who may do all. `limited` is the token of one who may do nothing."""
NODE = "node1"
PAUSE = "torchx-test/pause:1"

started: dict[str, subprocess.Popen[bytes]] = {}
"""The daemons that this process has started."""

_DAEMONS = ("etcd", "apiserver", "controllers", "scheduler", "kubelet")
_PATIENCE_S = 120.0


def ours() -> bool:
    """Whether this process has started any of it."""
    return not started.keys().isdisjoint(_DAEMONS)


def up() -> str:
    """A cluster whose node is ready. Returns the path of a kubeconfig.

    Raises:
        Unavailable: it cannot be had on this machine; the text says why.
    """
    if os.geteuid():
        raise Unavailable("a kubelet needs root")
    engine.up()
    engine.image()
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        build()
        _control_plane()
        _node()
    return str(KUBECONFIG)


def down() -> None:
    """Stops the daemons that :func:`up` started, and the containers of pods."""
    for name in reversed(_DAEMONS):
        pidfile = STATE / f"{name}.pid"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            engine.end(int(pidfile.read_text()), signal.SIGTERM)
        pidfile.unlink(missing_ok=True)
        if name in started:
            started.pop(name).wait(120)
    for container in run("docker", "ps", "-aq", "--filter", "name=k8s_", check=False).split():
        run("docker", "rm", "-f", "-v", container, check=False)
    for mount in reversed(Path("/proc/mounts").read_text().splitlines()):
        if (at := mount.split()[1]).startswith(f"{STATE}/"):
            run("umount", "-l", at, check=False)


def build() -> None:
    """The programs are there."""
    if not shutil.which("etcd", path=PATH):
        engine.install("etcd", "etcd-server")
    script = Path(__file__).with_name("build.sh")
    done = subprocess.run(
        ["bash", str(script), str(BIN)], capture_output=True, text=True, check=False, env={**os.environ, "PATH": PATH}
    )
    if done.returncode:
        raise Unavailable(f"Kubernetes could not be built: {done.stderr.strip()[-2000:]}")


# -- control plane --------------------------------------------------------------------------------


def _control_plane() -> None:
    client = f"http://{HOST}:12379"
    daemon(
        "etcd",
        *("etcd", "--data-dir", f"{STATE}/etcd", "--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", f"http://{HOST}:12380", "--unsafe-no-fsync", "--log-level", "error"),
    )
    key = STATE / "service-accounts.key"
    if not key.exists():
        engine.install("openssl", "openssl")
        run("openssl", "genrsa", "-out", str(key), "2048")
    if not (STATE / "clients.crt").exists():
        subject = ("-subj", "/CN=torchx-tests", "-days", "3650", "-nodes")
        pair = ("-keyout", f"{STATE}/clients.key", "-out", f"{STATE}/clients.crt")
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", *subject, *pair)
    (STATE / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\nlimited,limited,limited\n")
    (STATE / "audit.yaml").write_text(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n"
        "rules: [{level: Metadata, users: [admin]}, {level: None}]\n"
    )
    daemon(
        "apiserver",
        *(f"{BIN}/bin/kube-apiserver", f"--etcd-servers={client}", f"--bind-address={HOST}"),
        *(f"--advertise-address={HOST}", f"--secure-port={PORT}", "--insecure-port=0", f"--cert-dir={STATE}/certs"),
        f"--client-ca-file={STATE}/clients.crt",
        *(f"--token-auth-file={STATE}/tokens.csv", "--authorization-mode=RBAC", "--allow-privileged=true"),
        *("--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/24"),
        *("--service-account-issuer=https://localhost", f"--service-account-signing-key-file={key}"),
        *(f"--service-account-key-file={key}", "--endpoint-reconciler-type=none"),
        *("--feature-gates=IPv6DualStack=false,TTLAfterFinished=true", "--kubelet-preferred-address-types=InternalIP"),
        *(f"--audit-policy-file={STATE}/audit.yaml", f"--audit-log-path={AUDIT}"),
    )
    KUBECONFIG.write_text(json.dumps(config_of(TOKEN)))
    until(is_ready, "the API server is not ready", "apiserver")
    for name, options in {
        "controllers": (
            "kube-controller-manager",
            "--controllers=*,-serviceaccount-token",
            "--allocate-node-cidrs=false",
            "--feature-gates=TTLAfterFinished=true",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ),
        "scheduler": ("kube-scheduler",),
    }.items():
        program, *rest = options
        daemon(
            name,
            *(f"{BIN}/bin/{program}", f"--kubeconfig={KUBECONFIG}", "--leader-elect=false", f"--bind-address={HOST}"),
            *("--port=0", "--secure-port=0", *rest),
        )


def sign(request: bytes) -> bytes:
    """A client's certificate, of the authority that the API server trusts for this."""
    command = ("openssl", "x509", "-req", "-CA", f"{STATE}/clients.crt", "-CAkey", f"{STATE}/clients.key")
    options = ("-set_serial", str(time.time_ns()), "-days", "2")
    return subprocess.run([*command, *options], input=request, capture_output=True, check=True).stdout


def authority() -> str:
    """Of the API server's own certificate, which vouches for itself."""
    return (STATE / "certs" / "apiserver.crt").read_text()


def config_of(token: str, namespace: str = "default", server: str = SERVER) -> dict[str, object]:
    """A kubeconfig."""
    cluster = {"server": server, "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "me", "namespace": namespace}}],
        "current-context": "tests",
    }


def limited_kubeconfig(namespace: str = "default") -> str:
    """A kubeconfig of a user who may do nothing, unless a role of the namespace lets them."""
    path = STATE / f"kubeconfig-limited-{namespace}"
    path.write_text(json.dumps(config_of("limited", namespace)))
    return str(path)


# -- node -----------------------------------------------------------------------------------------


def _node() -> None:
    for program, package in (
        ("conntrack", "conntrack"),
        ("socat", "socat"),
        ("ethtool", "ethtool"),
        ("ebtables", "ebtables"),
    ):
        engine.install(program, package)
    if not run("docker", "images", "-q", PAUSE):
        dockerfile = f'FROM {engine.IMAGE}\nENTRYPOINT ["sleep", "infinity"]\n'
        subprocess.run(
            ["docker", "build", "-q", "-t", PAUSE, "-"], input=dockerfile, text=True, check=True, capture_output=True
        )
    # A kubelet refuses a loopback address for its node: it has that of the engine's bridge.
    address = run("docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": 10250,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "syncFrequency": "2s",
        "volumeStatsAggPeriod": "3s",
        "nodeStatusUpdateFrequency": "2s",
        "resolvConf": "/etc/resolv.conf",
    }
    (STATE / "kubelet.yaml").write_text(json.dumps(kubelet))
    daemon(
        "kubelet",
        *(f"{BIN}/bin/kubelet", f"--kubeconfig={KUBECONFIG}", f"--config={STATE}/kubelet.yaml"),
        *(f"--root-dir={STATE}/kubelet", f"--cert-dir={STATE}/kubelet-certs", "--container-runtime=docker"),
        *(f"--pod-infra-container-image={PAUSE}", f"--hostname-override={NODE}", f"--node-ip={address}"),
        *("--network-plugin=", "--register-node=true"),
    )
    until(_node_ready, "the node is not ready", "kubelet")


def _node_ready() -> bool:
    node = call("GET", f"/api/v1/nodes/{NODE}") or {}
    conditions = node.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


# -- parts ----------------------------------------------------------------------------------------


def call(method: str, path: str, body: object = None, content_type: str = "application/json") -> dict | None:
    """What a user who may do all is told; None: there is no such thing. A server that is busy or silent is asked again."""
    deadline = time.monotonic() + _PATIENCE_S
    lost = False
    while True:
        status, text = ask(method, path, body, content_type)
        if 200 <= status < 300:
            return json.loads(text)
        if status == 404:
            return None
        if status == 409 and lost and method == "POST" and isinstance(body, dict):  # the answer was lost, not the call
            return call("GET", f"{path}/{body['metadata']['name']}")
        lost = lost or not status
        passing = status in (0, 429, 500, 502, 503, 504)
        assert passing and time.monotonic() < deadline, f"{method} {path}: {status} {text[:500]}"
        time.sleep(0.2)


def ask(
    method: str, path: str, body: object = None, content_type: str = "application/json", *, server: str = ""
) -> tuple[int, str]:
    """One call by a user who may do all: HTTP status, 0 where there was no answer, and what it said."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": content_type}
    request = urllib.request.Request(f"{server or SERVER}{path}", data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, context=_trusting(), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as e:
        return 0, str(e)


def is_ready(server: str = "") -> bool:
    """Whether an API server says so of itself."""
    return ask("GET", "/readyz", server=server)[0] == 200


@functools.cache
def _trusting() -> ssl.SSLContext:
    # The default context reads all authorities of the machine, 70 ms of CPU time.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def daemon(name: str, *argv: str, state: Path = STATE) -> None:
    """A program that runs on its own, unless it does already; its log and the id of its process lie in ``state``."""
    pidfile = state / f"{name}.pid"
    with contextlib.suppress(FileNotFoundError, ValueError):
        pid = int(pidfile.read_text())
        if Path(f"/proc/{pid}/cmdline").exists() and argv[0].encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TORCHX", "TMPDIR"))}
    with (state / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**kept, "PATH": PATH}
        )
    pidfile.write_text(str(process.pid))
    started[name] = process


def until(condition: object, else_: str, name: str, timeout_s: float = 240, *, state: Path = STATE) -> None:
    """Waits for a daemon.

    Raises:
        Unavailable: the time is over; the text has the end of the daemon's log.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]  # a function without arguments
        if time.monotonic() > deadline:
            tail = "\n".join((state / f"{name}.log").read_text(errors="replace").splitlines()[-20:])
            raise Unavailable(f"{else_}; it said:\n{tail}")
        time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1:] == ["up"]:
        print(up())
    elif sys.argv[1:] == ["down"]:
        down()
    else:
        sys.exit("usage: python -m tests.backends.kubernetes.cluster up|down")
