"""Logs of a thousand replicas: against an API server that answers after 5 ms, by the official client and real sockets."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from torchx.runner import Runner
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, Resource, Role

pytest.importorskip("kubernetes")
LATENCY_S = 0.005
REPLICAS = 1000
DONE = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}


class Api(BaseHTTPRequestHandler):
    """One Job that has ended, its pods in pages, and their logs."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: Server

    def do_GET(self) -> None:
        time.sleep(LATENCY_S)
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.server.calls.append(parts.path)
        plural = parts.path.rpartition("/")[2]
        if plural == "log":
            self.answer(b"".join(b"2026-01-01T00:00:0%d.5Z line %d\n" % (i, i) for i in range(5)))
            return
        items = {"jobs": [self.server.job], "pods": self.server.pods}[plural]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 500))
        more = {"continue": str(start + limit)} if start + limit < len(items) else {}
        self.answer(json.dumps({"metadata": more, "items": items[start : start + limit]}).encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, app: AppDef) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.calls: list[str] = []
        info = create_scheduler("me").submit_dryrun(app, {"kind": "job"})
        self.job = info.request.resource["items"][1]
        self.job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        template = self.job["spec"]["template"]
        self.pods = []
        for k in range(REPLICAS):
            metadata = {
                **template["metadata"],
                "name": f"{self.job['metadata']['name']}-{k}-abcde",
                "namespace": "default",
                "uid": f"uid-{k}",
                "annotations": {"batch.kubernetes.io/job-completion-index": str(k)},
            }
            self.pods.append({"metadata": metadata, "spec": template["spec"], "status": DONE})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """It runs, and is what kubeconfig names."""
    trainer = Role("trainer", "img", entrypoint="t", num_replicas=REPLICAS, resource=Resource(1, 0, 64))
    with Server(AppDef("train", [trainer])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield server
        server.shutdown()


@pytest.mark.parametrize("follow", [False, True], ids=["afterwards", "live"])
def test_logs_of_a_thousand_replicas_are_read_in_seconds(
    server: Server, follow: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """In less than 30 s, with at most N + 4 calls where they have ended, and no connection is opened in vain."""
    from torchx.cli.cmd_log import show_logs

    scheduler = create_scheduler("me")
    name = server.job["metadata"]["labels"]["app.kubernetes.io/instance"]
    out = io.StringIO()
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING), Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        show_logs(out, f"kubernetes://me/default:{name}", runner, query=LogQuery(follow=follow))
    took = time.monotonic() - begun
    lines = out.getvalue().splitlines()
    assert sorted(lines) == sorted(f"trainer/{k} line {i}" for k in range(REPLICAS) for i in range(5))
    assert took < 30
    assert not [record for record in caplog.records if record.name.startswith("urllib3")]
    logs = [path for path in server.calls if path.endswith("/log")]
    assert len(logs) == REPLICAS
    if not follow:
        assert len(server.calls) <= REPLICAS + 4
    with capsys.disabled():
        print(f"\n{REPLICAS} replicas: {took:.1f} s, {len(server.calls)} calls")
