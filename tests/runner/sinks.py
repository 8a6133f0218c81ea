"""Servers on the loopback interface that record what they receive: one for webhooks, one for mail."""

from __future__ import annotations

import base64
import contextlib
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Sink:
    """Records requests; answers with the given status codes first, then with success.

    A webhook also names ``location`` in its answers, if there is one, and accepts GET, as a web page does.
    """

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.answers: list[int] = []
        self.location = ""
        self.port = 0


@contextlib.contextmanager
def http_sink() -> Iterator[Sink]:
    sink = Sink()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code = sink.answers.pop(0) if sink.answers else 200
            if code == 200:
                sink.got.append(document)
            self.send_response(code)
            if sink.location:
                self.send_header("Location", sink.location)
            self.end_headers()

        def do_GET(self) -> None:
            sink.got.append("GET")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with _served(ThreadingHTTPServer(("127.0.0.1", 0), Handler), sink):
        yield sink


@contextlib.contextmanager
def smtp_sink(*, tls: ssl.SSLContext | None = None) -> Iterator[Sink]:
    """Speaks as much of SMTP as a client needs (RFC 5321).

    Args:
        tls: of a server that has STARTTLS (RFC 3207), and takes mail only after a login as `me`, `hunter2` (RFC 4954).
    """
    sink = Sink()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, code: int, text: str = "ok") -> None:
            self.wfile.write(f"{code} {text}\r\n".encode())

        def finish(self) -> None:
            super().finish()
            self.request.close()  # the server closes the one that it has made itself

        def handle(self) -> None:
            self.say(220)
            secure = known = False
            while line := self.rfile.readline():
                word = line[:4].upper().strip()
                if tls is not None and word == b"EHLO":
                    self.wfile.write(b"250-sink\r\n")
                    self.say(250, "AUTH PLAIN" if secure else "STARTTLS")
                    continue
                if tls is not None and word == b"STAR":
                    self.say(220)
                    try:
                        self.request = tls.wrap_socket(self.request, server_side=True)
                    except ssl.SSLError:
                        return  # it does not trust us
                    self.rfile, self.wfile = self.request.makefile("rb"), self.request.makefile("wb", 0)
                    secure = True
                    continue
                if word == b"AUTH":
                    known = secure and base64.b64decode(line.split()[2]) == b"\0me\0hunter2"
                    self.say(235 if known else 535, "no")
                    continue
                if tls is not None and word == b"MAIL" and not known:
                    self.say(530, "who are you")
                    continue
                if word == b"QUIT":
                    self.say(221)
                    return
                if word == b"MAIL" and sink.answers and (code := sink.answers.pop(0)) != 250:
                    self.say(code, "not now")
                elif word == b"DATA":
                    self.say(354)
                    body = b""
                    while (more := self.rfile.readline()) != b".\r\n":
                        body += more
                    sink.got.append(body.decode())
                    self.say(250)
                else:
                    self.say(250)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with _served(Server(("127.0.0.1", 0), Handler), sink):
        yield sink


@contextlib.contextmanager
def _served(server: Any, sink: Sink) -> Iterator[None]:
    sink.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
