"""Registries for tests: Debian's ``docker-registry`` on a free loopback port, open, with passwords over TLS, or with tokens."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.backends.docker import engine

USER, PASSWORD = "me", "s3cret:with colon"
# bcrypt of PASSWORD, the only hash that the registry takes
_HTPASSWD = "me:$2b$05$abcdefghijklmnopqrstuuOb/B27OpVc3Bt3QXIepIr2DUn/DCZNi\n"


class Registry:
    """One registry process with its files in a folder of its own."""

    def __init__(self, folder: Path, *, tls: bool = False, passwords: bool = False, tokens: TokenServer | None = None):
        self.folder = folder
        self.port = 0
        self.tls = tls
        self.passwords = passwords
        self.tokens = tokens
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate to be trusted."""
        return self.folder / "tls.crt"

    def start(self) -> None:
        engine.install("docker-registry", "docker-registry")
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.yml"
        config.write_text(json.dumps(self._config()))  # JSON is YAML
        log = self.folder / "log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", str(config)], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        engine.until(self._listens, "the registry does not answer", log=log, process=self.process)

    def _listens(self) -> bool:
        """It has taken a port, and has written it down."""
        found = re.findall(r'"listening on 127\.0\.0\.1:(\d+)', (self.folder / "log").read_text(errors="replace"))
        self.port = int(found[-1]) if found else 0
        return self.port > 0 and engine._listens("127.0.0.1", self.port)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(120)
            self.process = None

    def tags(self, repository: str) -> list[str]:
        """What is visible in a repository of an open registry."""
        try:
            with urllib.request.urlopen(f"http://{self.host}/v2/{repository}/tags/list") as answer:
                return json.load(answer)["tags"] or []
        except urllib.error.HTTPError:
            return []

    def blob_bytes(self) -> int:
        """Bytes of all blobs."""
        return sum(f.stat().st_size for f in (self.folder / "data").rglob("blobs/sha256/*/*/data"))

    def forget(self, digest: str) -> None:
        """Loses a blob, as a clean-up would: its content and the links of all repositories."""
        algorithm, _, hexa = digest.partition(":")
        root = self.folder / "data/docker/registry/v2"
        for path in [root / "blobs" / algorithm / hexa[:2] / hexa, *root.rglob(f"_layers/{algorithm}/{hexa}")]:
            subprocess.run(["rm", "-rf", str(path)], check=True)

    def _config(self) -> dict[str, Any]:
        http: dict[str, Any] = {"addr": "127.0.0.1:0", "secret": "not-secret"}
        config: dict[str, Any] = {
            "version": "0.1",
            "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "data")}, "delete": {"enabled": True}},
            "http": http,
        }
        if self.tls:
            make_certificate(self.folder / "tls")
            http["tls"] = {"certificate": str(self.ca), "key": str(self.folder / "tls.key")}
        if self.passwords:
            (self.folder / "htpasswd").write_text(_HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(self.folder / "htpasswd")}}
        if self.tokens:
            config["auth"] = {
                "token": {
                    "realm": self.tokens.url,
                    "service": "test-registry",
                    "issuer": "test-issuer",
                    "rootcertbundle": str(self.tokens.folder / "issuer.crt"),
                }
            }
        return config


class TokenServer:
    """Gives tokens as https://distribution.github.io/distribution/spec/auth/token/ says, signed by ``openssl``.

    Attributes:
        asked: the scopes of each request, with the user's name or ``""``.
        grants: which actions a user is given: user -> actions.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, list[str]]] = []
        self.grants = {"": ["pull"], USER: ["pull", "push"]}
        self.refresh_tokens = {"refresh-me": USER}
        folder.mkdir(parents=True, exist_ok=True)
        make_certificate(folder / "issuer")
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(outer) -> type[http.server.BaseHTTPRequestHandler]:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
                user, ok = "", True
                if given := self.headers.get("Authorization", ""):
                    user, _, password = base64.b64decode(given.split()[1]).decode().partition(":")
                    ok = (user, password) == (USER, PASSWORD)
                self.answer(user, ok, query.get("scope", []), "token")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = urllib.parse.parse_qs(body)
                user = outer.refresh_tokens.get(form["refresh_token"][0], "")
                self.answer(user, bool(user), form["scope"][0].split(), "access_token")

            def answer(self, user: str, ok: bool, scopes: list[str], key: str) -> None:
                outer.asked.append((user, scopes))
                body = json.dumps({key: outer.token(user, scopes), "expires_in": 300} if ok else {"details": "no"})
                self.send_response(200 if ok else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: object) -> None: ...

        return Handler

    def token(self, user: str, scopes: list[str]) -> str:
        """A JSON web token for what the user may have of the scopes."""
        access = []
        for scope in scopes:
            kind, name, actions = scope.split(":")
            granted = [a for a in actions.split(",") if a in self.grants.get(user, [])]
            access.append({"type": kind, "name": name, "actions": granted})
        der = base64.b64encode(_der(self.folder / "issuer.crt")).decode()
        now = int(time.time())
        head = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
        claims = {
            "iss": "test-issuer",
            "sub": user,
            "aud": "test-registry",
            "iat": now,
            "nbf": now - 10,
            "exp": now + 300,
            "jti": os.urandom(8).hex(),
            "access": access,
        }
        signed = f"{_url64(json.dumps(head).encode())}.{_url64(json.dumps(claims).encode())}"
        key = str(self.folder / "issuer.key")
        signature = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", key], input=signed.encode(), capture_output=True, check=True
        ).stdout
        return f"{signed}.{_url64(signature)}"


@contextlib.contextmanager
def running(registry: Registry) -> Iterator[Registry]:
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


def make_certificate(path: Path) -> None:
    """A key and a certificate for 127.0.0.1 that signs itself: ``path.key`` and ``path.crt``."""
    engine.install("openssl", "openssl")
    if not path.with_suffix(".crt").exists():
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=torchx-test"]
        argv += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        argv += ["-keyout", str(path.with_suffix(".key")), "-out", str(path.with_suffix(".crt"))]
        subprocess.run(argv, check=True, capture_output=True)


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _der(path: Path) -> bytes:
    body = path.read_text().partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
    return base64.b64decode(body)


def _url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
