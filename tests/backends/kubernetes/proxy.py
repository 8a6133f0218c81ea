"""A way to the API server that breaks where a test wants it to: before or after the server has acted."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.backends.kubernetes import cluster


class Way:
    """Requests go through it to the server, and are counted.

    Attributes:
        calls: method and path of each that arrived.
        cut_at: number of the call (from 1) at which the connection is cut; 0: never.
        after: it is cut after the server has answered, and before we are told.
        for_good: every later call is cut too, before it reaches the server.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.cut_at = 0
        self.after = False
        self.for_good = False
        self.lock = threading.Lock()

    def plan(self, cut_at: int, *, after: bool, for_good: bool = False) -> None:
        """Count anew, and cut there."""
        self.calls.clear()
        self.cut_at, self.after, self.for_good = cut_at, after, for_good


@contextlib.contextmanager
def way(folder: Path) -> Iterator[tuple[Way, str]]:
    """A way, and the kubeconfig that leads over it."""
    plan = Way()
    connections: set[socket.socket] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            connections.add(self.request)
            super().setup()

        def finish(self) -> None:
            super().finish()
            connections.discard(self.request)

        def handle_one(self) -> None:
            with plan.lock:
                plan.calls.append(f"{self.command} {self.path}")
                number = len(plan.calls)
            cut = number == plan.cut_at
            if (cut and not plan.after) or (plan.for_good and plan.cut_at and number > plan.cut_at):
                self.close_connection = True
                self.connection.close()
                return
            status, headers, body = _forward(self)
            if cut:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(status)
            self.send_header("Content-Type", headers.get("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_one

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # `server_close` waits for them
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    config = json.loads(Path(cluster.KUBECONFIG).read_text())
    config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{server.server_port}"}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield plan, str(path)
    finally:
        server.shutdown()
        thread.join()
        for connection in connections.copy():
            with contextlib.suppress(OSError):  # it has just been closed
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()


def _forward(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
    length = int(request.headers.get("Content-Length") or 0)
    body = request.rfile.read(length) if length else None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {k: v for k, v in request.headers.items() if k.lower() in ("authorization", "content-type", "user-agent")}
    onward = urllib.request.Request(f"{cluster.SERVER}{request.path}", body, headers, method=request.command)
    try:
        with urllib.request.urlopen(onward, context=context, timeout=120) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, dict(e.headers), e.read()
