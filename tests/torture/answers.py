"""Schedulers, engines and registries that answer garbage, late, cut, or with errors."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.torture.calls import Call, torchx

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
_COMMANDS = {
    "slurm": ("squeue", "sacct", "sbatch", "scancel", "scontrol", "sinfo", "srun", "sacctmgr"),
    "lsf": ("bjobs", "bsub", "bkill", "bhist", "bpeek", "bqueues", "bhosts", "bacct", "lsid"),
}
_FIXED = (
    "",
    "\n",
    "0\n",
    "{}",
    "[]",
    "null",
    '{"jobs": null}',
    '{"jobs": [{}]}',
    '{"jobs": [[]], "errors": [], "meta": 1}',
    "[" * 2000 + "]" * 2000,
    "123;cluster\n",
    "Submitted batch job x\n",
    "Job <99> is submitted to queue <q>.\n",
    "x" * 300_000,
    "|" * 5000 + "\n",
    "\x1b]52;c;aGk=\x07" * 10,
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
    "\udcff\udcfe",
)


def mutated(rng: random.Random, text: bytes) -> bytes:
    """A text with a few bytes changed, left out, put in or repeated, and perhaps cut."""
    data = bytearray(text[: rng.choice((0, 10, 200, 5000, 1 << 20))])
    for _ in range(rng.randrange(8)):
        if data:
            at = rng.randrange(len(data))
            how = rng.randrange(4)
            if how == 0:
                data[at] = rng.randrange(256)
            elif how == 1:
                del data[at : at + rng.randrange(40)]
            elif how == 2:
                data[at:at] = rng.randbytes(rng.randrange(9))
            else:
                data[at:at] = data[at : at + 60]
    return bytes(data)


def _garbage(rng: random.Random, recorded: list[bytes]) -> bytes:
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(_FIXED).encode("utf-8", "surrogateescape")
    if kind == 1 or not recorded:
        return rng.randbytes(rng.randrange(300))
    return mutated(rng, rng.choice(recorded))


def commands(rng: random.Random, place: Path) -> Iterator[str]:
    """Each verb on Slurm and LSF whose programs answer garbage: never a traceback, a hang or a bug."""
    recorded = {s: _recordings(s) for s in _COMMANDS}
    for number in range(1 << 30):
        scheduler = rng.choice(sorted(_COMMANDS))
        programs = place / f"{number}"
        programs.mkdir()
        for name in _COMMANDS[scheduler]:
            _write_program(programs, name, rng, recorded[scheduler])
        argv = _verb(rng, scheduler, rng.choice(("12", "12_3", "9" * 30, "app-1", "x")))
        env = {"PATH": f"{programs}:/usr/bin:/bin", "TORCHX_HOME": str(place / "home")}
        problem = torchx(argv, env, cwd=str(programs)).ended().problem()
        yield problem and f"`torchx {' '.join(argv)}` with {programs}: {problem}"


def _recordings(scheduler: str) -> list[bytes]:
    paths = sorted(p for p in glob.glob(f"{RECORDED}/{scheduler}/**", recursive=True) if os.path.isfile(p))
    return [Path(p).read_bytes() for p in paths]


def _write_program(programs: Path, name: str, rng: random.Random, recorded: list[bytes]) -> None:
    (programs / f"{name}.out").write_bytes(_garbage(rng, recorded))
    (programs / f"{name}.err").write_bytes(_garbage(rng, recorded) if rng.random() < 0.3 else b"")
    code = rng.choice((0, 0, 0, 1, 2, 127, 255))
    pause = "sleep 0.3; " if rng.random() < 0.05 else ""
    end = "kill -9 $$" if rng.random() < 0.05 else f"exit {code}"
    (programs / name).write_text(
        f"#!/bin/sh\n{pause}cat '{programs}/{name}.out'; cat '{programs}/{name}.err' >&2; {end}\n"
    )
    (programs / name).chmod(0o755)


def _verb(rng: random.Random, scheduler: str, app_id: str) -> list[str]:
    handle = f"{scheduler}://torchx/{app_id}"
    run = ["run", "-s", scheduler, "utils.sh", "--cpu", "1", "--memMB", "64", "--", "true"]
    return rng.choice(
        (
            ["status", handle],
            ["status", "--json", handle],
            ["list", "-s", scheduler],
            ["list", "--json"],
            ["log", handle],
            ["cancel", handle],
            ["delete", handle],
            ["describe", handle],
            run,
        )
    )


# -- over HTTP -------------------------------------------------------------------------------------

_STATUSES = (200, 200, 200, 201, 204, 301, 302, 307, 400, 401, 403, 404, 409, 410, 418, 429, 500, 502, 503, 504)
_BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"[null]",
    b"[{}]",
    b'{"items": null}',
    b'{"items": [{}], "metadata": null}',
    b'{"kind": "Status", "status": "Failure", "message": 7, "code": "x"}',
    b'{"kind": "PodList", "items": [{"metadata": {"name": null}, "status": []}]}',
    b'{"errors": [{"code": "DENIED"}]}',
    b'{"schemaVersion": 2, "manifests": [{}], "layers": {}, "config": 1}',
    b'{"jobSummaryList": [{}], "jobs": [{"status": 7}]}',
    b'{"token": 5}',
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b"<html>" + b"x" * 5000,
    b"\xff\xfe\x00",
    b"{" + b" " * 200_000,
)
_TARGETS = ("/", "//", "http://[::bad", "http://127.0.0.1:1/", "file:///etc/passwd", "?", "http://h:99999/", "\x7f")


def answer(rng: random.Random) -> bytes:
    """The bytes of an HTTP answer, or of something else."""
    if rng.random() < 0.08:
        return rng.choice((b"", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 999999 x\r\n\r\n", rng.randbytes(60), b"\r\n" * 500))
    status = rng.choice(_STATUSES)
    body = rng.choice(_BODIES) if rng.random() < 0.8 else rng.randbytes(rng.randrange(200))
    size = len(body) + rng.choice((0, 0, 0, 0, 50, -1))
    kind = rng.choice(("application/json", "application/json", "text/html", "application/vnd.oci.image.index.v1+json"))
    head = [f"HTTP/1.1 {status} Said", f"Content-Type: {kind}", f"Content-Length: {size}", "Connection: close"]
    if 300 <= status < 400 or rng.random() < 0.1:
        head.append(f"Location: {rng.choice(_TARGETS)}")
    if status in (429, 503) or rng.random() < 0.05:
        head.append(f"Retry-After: {rng.choice(('0', '1', '-5', 'x', 'Wed, 21 Oct 2099 07:28:00 GMT', '9' * 40))}")
    if status == 401:
        realm = rng.choice((*_TARGETS, "http://127.0.0.1:1/token"))
        head.append(
            rng.choice((f'WWW-Authenticate: Bearer realm="{realm}",service="s"', "WWW-Authenticate: Basic", "X: y"))
        )
    if rng.random() < 0.05:
        head[2] = "Transfer-Encoding: chunked"
    whole = "\r\n".join(head).encode() + b"\r\n\r\n" + body
    return whole[: rng.randrange(len(whole))] if rng.random() < 0.1 else whole


class Server:
    """A process that answers every connection on a port of its own; what it says depends on the seed alone."""

    def __init__(self, seed: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        sys.stdout.flush()
        self._pid = os.fork()
        if not self._pid:
            try:
                self._serve(listener, random.Random(seed))
            finally:
                os._exit(0)
        listener.close()

    def _serve(self, listener: socket.socket, rng: random.Random) -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(2)
                try:
                    connection.recv(1 << 16)
                    said = answer(rng)
                    if rng.random() < 0.05:
                        time.sleep(0.3)
                    for at in range(0, len(said), 1 << 14):
                        connection.sendall(said[at : at + (1 << 14)])
                except OSError:
                    pass

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def servers(rng: random.Random, place: Path) -> Iterator[str]:
    """Docker, a registry and, where their clients are installed, Kubernetes and AWS behind servers that answer anything."""
    kinds = ["local_docker", "registry"]
    kinds += ["kubernetes", "kubernetes_mcad"] if importlib.util.find_spec("kubernetes") else []
    kinds += ["aws_batch", "aws_sagemaker"] if importlib.util.find_spec("boto3") else []
    for number in range(1 << 30):
        seed = rng.randrange(1 << 30)
        server = Server(seed)
        kind = rng.choice(kinds)
        home = place / str(number)
        home.mkdir()
        try:
            if kind == "registry":
                what, call = "a registry", Call(partial(_ask_registry, server.port), {"TORCHX_HOME": str(home)})
            else:
                argv = _verb(rng, kind, rng.choice(("ns:app-1", "queue:app-1", "app-1")))
                what, call = f"`torchx {' '.join(argv)}`", torchx(argv, _surroundings(home, server.port), cwd=str(home))
            problem = call.ended().problem()
        finally:
            server.close()
        yield problem and f"{what} with the answers of seed {seed}: {problem}"


def _surroundings(home: Path, port: int) -> dict[str, str]:
    cluster = {"server": f"http://127.0.0.1:{port}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
    }
    (home / "kubeconfig").write_text(json.dumps(config))
    return {
        "TORCHX_HOME": str(home / "torchx"),
        "DOCKER_HOST": f"tcp://127.0.0.1:{port}",
        "KUBECONFIG": str(home / "kubeconfig"),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _ask_registry(port: int) -> int:
    from torchx.errors import TorchXError
    from torchx.workspace.images.names import ImageName
    from torchx.workspace.images.registry import Blob, Manifest, Registry

    image = ImageName(f"127.0.0.1:{port}", "me/x", "1")
    blob = Blob("sha256:" + "0" * 64, 3, lambda: iter((b"a", b"bc")))
    registry = Registry(image.registry, sleep=lambda seconds: None)
    for ask in (
        lambda: registry.manifest(image),
        lambda: registry.manifest_digest(image),
        lambda: registry.has_blob("me/x", blob.digest),
        lambda: registry.blob("me/x", blob.digest),
        lambda: registry.upload_blob("me/x", blob),
        lambda: registry.mount_blob("me/x", blob.digest, source="other"),
        lambda: registry.put_manifest(image, Manifest("application/json", blob.digest, b"{}")),
    ):
        with contextlib.suppress(TorchXError):
            ask()
    registry.close()
    return 0
