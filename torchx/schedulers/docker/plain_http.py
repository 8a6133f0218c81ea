"""A minimal HTTP client for a Docker engine, with the standard library alone: one connection per call.

It does not use ``http.client``, whose responses cannot be read again after a timeout, as the event stream requires.

It speaks HTTP/1.0: a response ends with its connection. Paths have no API version, so that the engine uses its own; all
versions have the calls used here. https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from torchx.errors import ParseError
from torchx.util.foreign import loads

DEFAULT_HOST = "unix:///var/run/docker.sock"
ENVIRONMENT = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
"""Variables with the engine's address; for ssh also ``HOME``, ``USER`` and ``SSH_AUTH_SOCK``."""

_CONNECT_S = 60.0
_ANSWER_S = 60.0
_UPLOAD_S = 600.0  # an engine on a busy disk may accept no data for a while
_AT_ONCE = 200
_AT_ONCE_SSH = 8
_MAX_HEAD = 1 << 16


class RefusedError(Exception):
    """The engine answered with an HTTP error ``status``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class EngineHttp:
    """A client of one engine.

    Calls other than :meth:`post` raise OSError if the engine does not answer, and RefusedError if it answers with an
    error.

    Args:
        environ: ``DOCKER_HOST`` (``unix://``, ``tcp://``, ``ssh://``), ``DOCKER_TLS_VERIFY``, ``DOCKER_CERT_PATH``, as
            for the ``docker`` command.

    Raises:
        ValueError: the scheme of ``DOCKER_HOST`` is not supported, or its port is invalid.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.host = environ.get("DOCKER_HOST") or DEFAULT_HOST
        self.scheme, _, self.where = self.host.partition("://")
        if self.scheme not in ("unix", "http+unix", "tcp", "http", "https", "ssh"):
            raise ValueError(self.host)
        self._socket = f"/{self.where.lstrip('/')}" if self.scheme in ("unix", "http+unix") else ""
        self._verify = environ.get("DOCKER_TLS_VERIFY", "") != ""
        self._certificates = environ.get("DOCKER_CERT_PATH", "")
        self._tls = self.scheme != "http" and (self.scheme == "https" or self._verify or bool(self._certificates))
        self._address = ("", 0)
        if self.scheme in ("tcp", "http", "https"):
            parts = urlsplit(self.host)
            self._address = (parts.hostname or "127.0.0.1", parts.port or (2376 if self._tls else 2375))

    def is_here(self) -> bool:
        """Whether the engine is on this machine."""
        return bool(self._socket) or self._address[0] in ("127.0.0.1", "localhost", "::1")

    def is_gone(self) -> bool:
        """Whether no engine can ever answer here again, because the folder of its socket was removed."""
        return bool(self._socket) and not os.path.isdir(os.path.dirname(self._socket))

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON response to a GET request: a list of containers, or an object;
        ParseError if it is anything else.
        """
        found = self.call("GET", path, params)
        if not isinstance(found, list if path == "/containers/json" else dict):
            raise ParseError(f"the engine answered `GET {path}` with an unexpected {type(found).__name__}")
        return found

    def call(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """Return the JSON response to a request; None if it is empty. ``body`` is sent as JSON unless it is None."""
        found = self.read(path, params, method=method, body=body)
        try:
            return loads(found) if found.strip() else None
        except ValueError as e:
            raise ConnectionError(f"the engine cut off its answer: {e}") from e

    def read(
        self, path: str, params: Mapping[str, Any] | None = None, *, method: str = "GET", body: Any = None
    ) -> bytes:
        """Return the raw response to a request; see :meth:`call`."""
        with self._request(method, target(path, params), _ANSWER_S, body) as answer:
            status, begun = _head(answer)
            found = b"".join([begun, *iter(lambda: answer.recv(1 << 16), b"")])
        if status >= 400:
            raise RefusedError(status, found[:500].decode("utf-8", "replace"))
        return found

    def post(self, targets: Iterable[str], *, timeout_s: float = _ANSWER_S) -> list[int]:
        """Send POST requests (:func:`target`) at the same time; the status of each response, 0 if there was none."""
        todo = list(targets)
        at_once = _AT_ONCE_SSH if self.scheme == "ssh" else _AT_ONCE
        found = []
        for begin in range(0, len(todo), at_once):
            sent = [self._post(one, timeout_s) for one in todo[begin : begin + at_once]]
            found += [_status(connection) for connection in sent]
        return found

    def events(self, filters: Mapping[str, list[str]], since: float) -> Events:
        """Follows the engine's events, from a Unix time of its clock on, as far as it has kept them."""
        params = {"since": f"{since:.9f}", "filters": json.dumps(filters)}
        return Events(*self._stream(self._request("GET", target("/events", params), _CONNECT_S)))

    def upgrade(self, path: str, body: Mapping[str, Any]) -> tuple[socket.socket, bytes]:
        """Open a bidirectional stream. Returns the connection, without a timeout, and the data received so far."""
        head = ("Connection: Upgrade", "Upgrade: tcp")
        return self._stream(self._request("POST", path, _CONNECT_S, body, head))

    def download(self, path: str, params: Mapping[str, Any]) -> tuple[socket.socket, bytes]:
        """Request a response of any length; return the same as :meth:`upgrade`."""
        return self._stream(self._request("GET", target(path, params), _CONNECT_S))

    def upload(self, path: str, params: Mapping[str, Any]) -> Upload:
        """Start a PUT request with a tar stream of any length as its body."""
        head = ("Content-Type: application/x-tar", "Transfer-Encoding: chunked")
        return Upload(self._request("PUT", target(path, params), _UPLOAD_S, None, head))

    def _post(self, one: str, timeout_s: float) -> socket.socket | None:
        try:
            return self._request("POST", one, timeout_s)
        except OSError:
            return None

    def _request(
        self, method: str, one: str, timeout_s: float, body: Any = None, more: Sequence[str] = ()
    ) -> socket.socket:
        text = "" if body is None else json.dumps(body)
        head = [f"{method} {one} HTTP/{'1.1' if more else '1.0'}", "Host: docker", *more]
        head += ["Content-Type: application/json"] if text else []
        head += [f"Content-Length: {len(text)}"] if method == "POST" else []
        with _closed_by_errors(self._connect()) as connection:
            connection.sendall("\r\n".join([*head, "", text]).encode())
            connection.settimeout(timeout_s)
        return connection

    def _stream(self, connection: socket.socket) -> tuple[socket.socket, bytes]:
        with _closed_by_errors(connection):
            begun = _accepted(connection)
            connection.settimeout(None)
        return connection, begun

    def _connect(self) -> socket.socket:
        if self.scheme == "ssh":
            return _through_ssh(self.host)
        if self._socket:
            with _closed_by_errors(socket.socket(socket.AF_UNIX)) as connection:
                connection.settimeout(_CONNECT_S)
                connection.connect(self._socket)
            return connection
        connection = socket.create_connection(self._address, _CONNECT_S)
        return self._encrypted(connection, self._address[0]) if self._tls else connection

    def _encrypted(self, connection: socket.socket, name: str) -> socket.socket:
        """https://docs.docker.com/engine/security/protect-access/"""
        import ssl

        folder = self._certificates or os.path.expanduser("~/.docker")
        with _closed_by_errors(connection):
            context = ssl.create_default_context(cafile=f"{folder}/ca.pem" if self._verify else None)
            if not self._verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
            return context.wrap_socket(connection, server_hostname=name)


class Upload:
    """A request whose body is being sent; the caller closes it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.close = connection.close

    def write(self, data: bytes) -> None:
        """Send a chunk of the body; an empty chunk ends it. Raises OSError if the engine has closed the connection."""
        self._connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def answer(self) -> None:
        """Wait for the response; raise OSError if there is none, and RefusedError if it is an error."""
        _accepted(self._connection)


class Events:
    """A stream of the engine's events."""

    def __init__(self, answer: socket.socket, begun: bytes) -> None:
        self._answer = answer
        self._partial = begun
        self.close = answer.close

    def wait(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the next events; none after ``timeout_s``. Raises OSError if the engine has closed the stream."""
        if b"\n" not in self._partial:
            self._answer.settimeout(max(timeout_s, 0.001))
            try:
                data = self._answer.recv(1 << 16)
            except TimeoutError:
                return []
            if not data:
                raise ConnectionError("the engine closed its stream of events")
            self._partial += data
        *lines, self._partial = self._partial.split(b"\n")
        return [event for line in lines if line.strip() and isinstance(event := loads(line), dict)]


def target(path: str, params: Mapping[str, Any] | None = None) -> str:
    """Path and query of a request.

    >>> target("/containers/json", {"all": 1, "filters": '{"a":["b c"]}'})
    '/containers/json?all=1&filters=%7B%22a%22%3A%5B%22b%20c%22%5D%7D'
    """
    query = urlencode(params or {}, quote_via=quote)
    return f"{path}?{query}" if query else path


def _head(answer: socket.socket) -> tuple[int, bytes]:
    """Read the status of a response, and the part of its body that came with it."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = answer.recv(1 << 16)
        if not more or len(data) > _MAX_HEAD:
            raise ConnectionError("the engine closed the connection")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ConnectionError("the answer is not that of a Docker engine")
    return int(words[1]), body


def _accepted(answer: socket.socket) -> bytes:
    """Return the part of a response's body that came with its head. Raises RefusedError if the response is an error."""
    status, body = _head(answer)
    if status >= 400:
        raise RefusedError(status, body.decode("utf-8", "replace"))
    return body


@contextmanager
def _closed_by_errors(connection: socket.socket) -> Iterator[socket.socket]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


def _status(answer: socket.socket | None) -> int:
    if answer is None:
        return 0
    with answer:
        try:
            return _head(answer)[0]
        except OSError:
            return 0


def _through_ssh(host: str) -> socket.socket:
    """Connect as the ``docker`` command does: https://docs.docker.com/engine/security/protect-access/"""
    import subprocess

    ours, theirs = socket.socketpair()
    argv = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "--", host, "docker", "system", "dial-stdio"]
    with theirs, _closed_by_errors(ours):
        # ssh ends with the connection, and is reaped when the next one is opened.
        fd = theirs.fileno()
        subprocess.Popen(argv, stdin=fd, stdout=fd, stderr=subprocess.DEVNULL, start_new_session=True)
    return ours
