"""A proxy on loopback between a client and a registry that does what networks and registries do on bad days."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Fault:
    """What happens to requests whose ``METHOD path`` matches.

    Attributes:
        request: regular expression.
        times: how often; then all is well.
        status: answered instead of the registry's answer, with ``headers`` and a body as registries have it.
        cut_after: the connection is cut when so many bytes of the request's body have gone through.
        delay_s: the answer is held back.
        swallow_answer: the registry does its work, and the connection is cut before its answer gets back.
    """

    request: str
    times: int = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}'
    cut_after: int = -1
    delay_s: float = 0.0
    swallow_answer: bool = False


class FaultyRegistry:
    """Forwards to ``host:port``, one connection a request. Plain HTTP only.

    Attributes:
        seen: ``METHOD path`` of each request.
    """

    def __init__(self, target: str, faults: list[Fault] | None = None) -> None:
        self.target = target
        self.faults = faults or []
        self.seen: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._clients: list[socket.socket] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> FaultyRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(150)
        for client in self._clients:
            with contextlib.suppress(OSError):  # most are closed
                client.shutdown(socket.SHUT_RDWR)
        for thread in [self._thread, *self._threads]:
            thread.join(150)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            self._clients.append(client)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(120)
        with client, contextlib.suppress(OSError):
            head = _head(client)
            if head is None or b"\r\n" not in head or not re.match(rb"[A-Z]+ /", head):
                return  # somebody tries TLS
            line = head.split(b"\r\n", 1)[0].decode()
            request = " ".join(line.split()[:2])
            with self._lock:
                self.seen.append(request)
                fault = next((f for f in self.faults if f.times and re.search(f.request, request)), None)
                if fault:
                    fault.times -= 1
            self._forward(client, head, fault)

    def _forward(self, client: socket.socket, head: bytes, fault: Fault | None) -> None:
        length = int((re.search(rb"(?i)\r\ncontent-length: *(\d+)", head) or [b"", b"0"])[1])
        if fault and fault.status:
            _drain(client, length)
            headers = "".join(f"{k}: {v}\r\n" for k, v in fault.headers.items())
            body = b"" if head.startswith(b"HEAD") else fault.body
            client.sendall(
                f"HTTP/1.1 {fault.status} x\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            return
        host, _, port = self.target.partition(":")
        # The registry builds upload addresses from the Host header: they lead through us again.
        forwarded = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head)[:-4] + b"\r\nConnection: close\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=120) as upstream:
            upstream.sendall(forwarded)
            allowed = fault.cut_after if fault and fault.cut_after >= 0 else length
            _copy(client, upstream, min(length, allowed))
            if allowed < length:
                _reset(client)
                return
            if fault and fault.delay_s:
                time.sleep(fault.delay_s)
            send: Callable[[bytes], None] = (lambda data: None) if fault and fault.swallow_answer else client.sendall
            while data := upstream.recv(1 << 16):
                send(data)
            if fault and fault.swallow_answer:
                _reset(client)


def _head(client: socket.socket) -> bytes | None:
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        if not byte or (len(head) == 0 and byte == b"\x16"):
            return None
        head += byte
    return bytes(head)


def _copy(source: socket.socket, target: socket.socket, length: int) -> None:
    while length:
        data = source.recv(min(length, 1 << 16))
        if not data:
            return
        length -= len(data)
        target.sendall(data)


def _drain(source: socket.socket, length: int) -> None:
    while length and (data := source.recv(min(length, 1 << 16))):
        length -= len(data)


def _reset(client: socket.socket) -> None:
    """Cut with a RST, as a firewall or a dying process does."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
