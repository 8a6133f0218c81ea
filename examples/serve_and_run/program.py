"""Two model servers, a trainer that asks them, and a driver that ends the job: one program for the three roles.

``examples/components/serve_and_run.py`` makes a job of it. It needs only Python's standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen


def serve(port: int, model: Callable[[float], float]) -> None:
    """Answer ``GET /predict?x=3`` with ``{"y": ...}``, and ``GET /health``, until SIGTERM."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            found = {"y": model(float(parse_qs(url.query)["x"][0]))} if url.path == "/predict" else {"healthy": True}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *args: object) -> None:
            """Keep the log short."""

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"serving at port {port}", flush=True)
    HTTPServer(("", port), Handler).serve_forever()


def ask(host: str, x: float) -> float:
    """Return what the model at ``host`` (``name:port``) predicts for ``x``."""
    with urlopen(f"http://{host}/predict?x={x}", timeout=30) as answer:  # a server of this job
        return float(json.load(answer)["y"])


def train(port: int, hosts: list[str]) -> None:
    """Learn what the servers compute by least squares, and serve that."""
    points = [(x, ask(hosts[x % len(hosts)], x)) for x in range(20)]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    print(f"learned y = {slope:.2f} x + {mean_y - slope * mean_x:.2f} from {len(hosts)} servers", flush=True)
    serve(port, lambda x: slope * (x - mean_x) + mean_y)


def drive(trainer: str, hosts: list[str]) -> None:
    """Compare the trainer with each server; fail if they differ."""
    for host in hosts:
        error = abs(ask(trainer, 100.0) - ask(host, 100.0))
        print(f"error against {host}: {error:.4f}", flush=True)
        if error > 1e-6:
            raise SystemExit(f"the trainer differs from {host} by {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["server", "trainer", "driver"])
    parser.add_argument("--port", type=int, default=8000, help="where to serve")
    parser.add_argument("--trainer", default="", help="HOST:PORT of the trainer")
    parser.add_argument("--load", type=float, default=1.0, help="seconds that a server needs to load its model")
    args = parser.parse_args()
    hosts = os.environ["TORCHX_HOSTS_SERVER"].split(",")
    if args.part == "server":
        time.sleep(args.load)
        serve(args.port, lambda x: 2 * x + 1)
    elif args.part == "trainer":
        train(args.port, hosts)
    else:
        drive(args.trainer, hosts)


if __name__ == "__main__":
    main()
