"""Names of Services and of their pods, which the cluster of the tests lacks: a server of DNS like CoreDNS, from Endpoints.

https://github.com/kubernetes/dns/blob/master/docs/specification.md (headless Services)
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.backends.docker.engine import run
from tests.backends.kubernetes import cluster

_DOMAIN = ".svc.cluster.local"
_NO_ERROR, _NO_NAME = 0x8580, 0x8583
_A = b"\0\1\0\1"


@contextmanager
def served(namespace: str) -> Iterator[dict[str, Any]]:
    """Pods with this overlay find the names of the namespace meanwhile."""
    address = run("docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, 53))
        thread = threading.Thread(target=_serve, args=(server,), daemon=True)
        thread.start()
        config = {"nameservers": [address], "searches": [f"{namespace}{_DOMAIN}"]}
        try:
            yield {"spec": {"dnsPolicy": "None", "dnsConfig": config}}
        finally:
            server.sendto(b"", (address, 53))
            thread.join(10)


def _serve(server: socket.socket) -> None:
    while True:
        asked, client = server.recvfrom(512)
        if not asked:
            return
        server.sendto(_answer(asked), client)


def _answer(asked: bytes) -> bytes:
    labels, at = [], 12
    while size := asked[at]:
        labels.append(asked[at + 1 : at + 1 + size].decode())
        at += 1 + size
    found = _addresses(".".join(labels))
    wanted = found or [] if asked[at + 1 : at + 5] == _A else []
    code = _NO_NAME if found is None else _NO_ERROR
    head = asked[:2] + code.to_bytes(2, "big") + b"\0\1" + len(wanted).to_bytes(2, "big") + b"\0\0\0\0"
    each = [b"\xc0\x0c" + _A + (1).to_bytes(4, "big") + b"\0\4" + socket.inet_aton(ip) for ip in wanted]
    return head + asked[12 : at + 5] + b"".join(each)


def _addresses(name: str) -> list[str] | None:
    """Of the ready pods of a Service, or of one with this host name; None: there is no such name."""
    if not name.endswith(_DOMAIN):
        return None
    *host, service, namespace = name.removesuffix(_DOMAIN).split(".")
    found = cluster.call("GET", f"/api/v1/namespaces/{namespace}/endpoints/{service}") or {}
    there = [one for subset in found.get("subsets") or () for one in subset.get("addresses") or ()]
    return [one["ip"] for one in there if host in ([], [one.get("hostname")])] or None
