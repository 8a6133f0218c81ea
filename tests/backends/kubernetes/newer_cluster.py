"""An API server of Kubernetes 1.36's libraries for tests, without nodes: a test plays kubelet and controllers.

As a program, as root::

    python -m tests.backends.kubernetes.newer_cluster up       # builds what is missing (once, 15 minutes), starts what is down
    python -m tests.backends.kubernetes.newer_cluster down     # stops what `up` has started

Debian packages the libraries of the server (``k8s.io/apiserver``, ``apiextensions-apiserver``, ``api``), and neither
kube-apiserver nor the controllers of a version after 1.20; ``newer/main.go`` says what is made of them, and what is not.
The program is kept in ``~/.cache/torchx-ci/k8s-newer``. State lies below ``$TORCHX_BACKENDS``, in ``k8s-newer``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.backends.docker import engine
from tests.backends.docker.engine import PATH, Unavailable
from tests.backends.kubernetes import cluster

BIN = cluster.BIN.with_name("k8s-newer")
STATE = cluster.STATE.with_name("k8s-newer")
KUBECONFIG = STATE / "kubeconfig"
AUDIT = STATE / "audit.log"
PORT = 17443
SERVER = f"https://{cluster.HOST}:{PORT}"

_DAEMONS = ("newer-etcd", "newer")


def up() -> str:
    """A server that answers. Returns the path of a kubeconfig.

    Raises:
        Unavailable: it cannot be had on this machine; the text says why.
    """
    if os.geteuid():
        raise Unavailable("etcd is installed as root")
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _build()
        _start()
    return str(KUBECONFIG)


def down() -> None:
    """Stops what :func:`up` has started, and forgets what it kept."""
    for name in reversed(_DAEMONS):
        pidfile = STATE / f"{name}.pid"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            engine.end(int(pidfile.read_text()), signal.SIGTERM)
        pidfile.unlink(missing_ok=True)
        if name in cluster.started:
            cluster.started.pop(name).wait(120)
    shutil.rmtree(STATE, ignore_errors=True)


def is_built() -> bool:
    """Whether :func:`up` takes seconds, not minutes."""
    return os.access(BIN / "bin" / "newer", os.X_OK)


def _build() -> None:
    if not shutil.which("etcd", path=PATH):
        engine.install("etcd", "etcd-server")
    script = Path(__file__).with_name("build_newer.sh")
    done = subprocess.run(
        ["bash", str(script), str(BIN)], capture_output=True, text=True, check=False, env={**os.environ, "PATH": PATH}
    )
    if done.returncode:
        raise Unavailable(f"the newer API server could not be built: {done.stderr.strip()[-2000:]}")


def _start() -> None:
    client = f"http://{cluster.HOST}:13379"
    cluster.daemon(
        "newer-etcd",
        *("etcd", "--data-dir", f"{STATE}/etcd", "--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", f"http://{cluster.HOST}:13380", "--unsafe-no-fsync", "--log-level", "error"),
        state=STATE,
    )
    (STATE / "tokens.csv").write_text(f"{cluster.TOKEN},admin,admin,system:masters\n")
    (STATE / "audit.yaml").write_text(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n"
        "rules: [{level: Metadata, users: [admin]}, {level: None}]\n"
    )
    cluster.daemon(
        "newer",
        *(f"{BIN}/bin/newer", f"--etcd={client}", f"--port={PORT}", f"--certs={STATE}/certs"),
        *(f"--tokens={STATE}/tokens.csv", f"--audit-policy={STATE}/audit.yaml", f"--audit-log={AUDIT}"),
        state=STATE,
    )
    KUBECONFIG.write_text(json.dumps(cluster.config_of(cluster.TOKEN, server=SERVER)))
    cluster.until(lambda: cluster.is_ready(SERVER), "the API server is not ready", "newer", state=STATE)


if __name__ == "__main__":
    if sys.argv[1:] == ["up"]:
        print(up())
    elif sys.argv[1:] == ["down"]:
        down()
    else:
        sys.exit("usage: python -m tests.backends.kubernetes.newer_cluster up|down")
