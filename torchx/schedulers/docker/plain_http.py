"""HTTP to a Docker engine with the standard library alone, for a process that stays: one connection a call.

``http.client`` would save twenty lines, but no answer of it can be read on after a time limit, and events are.

HTTP/1.0, which engines speak too: an answer ends where its connection does. Paths have no version of the API, the
engine's own is meant; what is used here is in all of them. https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

DEFAULT_HOST = "unix:///var/run/docker.sock"
ENVIRONMENT = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
"""What says where the engine is; for ssh also ``HOME``, ``USER`` and ``SSH_AUTH_SOCK``."""

_CONNECT_S = 60.0
_ANSWER_S = 60.0
_UPLOAD_S = 600.0  # an engine on a busy disk takes nothing for a while
_AT_ONCE = 200
_AT_ONCE_SSH = 8
_MOST_HEAD = 1 << 16


class RefusedError(Exception):
    """The engine has answered with an error.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"HTTP {status}: {said}")
        self.status = status


class EngineHttp:
    """The way to an engine.

    Args:
        environ: as the engine's own client reads it: ``DOCKER_HOST`` (``unix://``, ``tcp://``, ``ssh://``),
            ``DOCKER_TLS_VERIFY``, ``DOCKER_CERT_PATH``.

    Raises:
        ValueError: there is no such way.
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

    def is_gone(self) -> bool:
        """Whether it is certain that no engine will ever answer here again: the folder of its socket was removed."""
        return bool(self._socket) and not os.path.isdir(os.path.dirname(self._socket))

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """What the engine answers; raises as :meth:`call` does."""
        return self.call("GET", path, params)

    def call(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """What the engine answers to a call; None where that is nothing.

        Args:
            body: sent as JSON, unless it is None.

        Raises:
            OSError: it does not answer.
            RefusedError: it answers with an error.
        """
        found = self.read(path, params, method=method, body=body)
        return json.loads(found) if found.strip() else None

    def read(
        self, path: str, params: Mapping[str, Any] | None = None, *, method: str = "GET", body: Any = None
    ) -> bytes:
        """What the engine answers, as it is; arguments and errors as of :meth:`call`."""
        with self._asked(method, target(path, params), _ANSWER_S, body) as answer:
            status, found = _head(answer)
            while data := answer.recv(1 << 16):
                found += data
        if status >= 400:
            raise RefusedError(status, found[:500].decode("utf-8", "replace"))
        return found

    def post(self, targets: Iterable[str], *, timeout_s: float = _ANSWER_S) -> list[int]:
        """Ask for all of these at the same time; returns the status of each answer, 0 where none came.

        Args:
            targets: path and query, see :func:`target`.
            timeout_s: for each answer.
        """
        todo = list(targets)
        at_once = _AT_ONCE_SSH if self.scheme == "ssh" else _AT_ONCE
        found = []
        for begin in range(0, len(todo), at_once):
            asked = [self._post(one, timeout_s) for one in todo[begin : begin + at_once]]
            found += [_status(answer) for answer in asked]
        return found

    def events(self, filters: Mapping[str, list[str]], since: float) -> Events:
        """What happens from now on, and has happened, as far as the engine remembers.

        Args:
            since: Unix time, of the engine's clock.

        Raises:
            OSError: the engine does not answer.
            RefusedError: it answers with an error.
        """
        params = {"since": f"{since:.9f}", "filters": json.dumps(filters)}
        return Events(*self._stream(self._asked("GET", target("/events", params), _CONNECT_S)))

    def upgrade(self, path: str, body: Mapping[str, Any]) -> tuple[socket.socket, bytes]:
        """Ask for a stream both ways. Returns the connection, which knows no time limit, and what came along.

        Raises:
            OSError: the engine does not answer.
            RefusedError: it answers with an error.
        """
        head = ("Connection: Upgrade", "Upgrade: tcp")
        return self._stream(self._asked("POST", path, _CONNECT_S, body, head))

    def download(self, path: str, params: Mapping[str, Any]) -> tuple[socket.socket, bytes]:
        """Ask for an answer of any length; returns and raises as :meth:`upgrade` does."""
        return self._stream(self._asked("GET", target(path, params), _CONNECT_S))

    def upload(self, path: str, params: Mapping[str, Any]) -> Upload:
        """Send a body of any length."""
        head = ("Content-Type: application/x-tar", "Transfer-Encoding: chunked")
        return Upload(self._asked("PUT", target(path, params), _UPLOAD_S, None, head))

    # -- connections -----------------------------------------------------------------------------

    def _post(self, one: str, timeout_s: float) -> socket.socket | None:
        try:
            return self._asked("POST", one, timeout_s)
        except OSError:
            return None

    def _asked(
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
        host, _, port = self.where.partition("/")[0].rpartition(":")
        name = host.strip("[]") or "127.0.0.1"
        connection = socket.create_connection((name, int(port or (2376 if self._tls else 2375))), _CONNECT_S)
        return self._encrypted(connection, name) if self._tls else connection

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
    """A body that is being sent; close it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.close = connection.close

    def write(self, data: bytes) -> None:
        """Send some of it; the end, if it is empty.

        Raises:
            OSError: the engine takes no more.
        """
        self._connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def answer(self) -> None:
        """Wait until the engine has taken all of it.

        Raises:
            OSError: it does not answer.
            RefusedError: it does not take it.
        """
        _accepted(self._connection)


class Events:
    """A stream of the engine's events."""

    def __init__(self, answer: socket.socket, begun: bytes) -> None:
        self._answer = answer
        self._partial = begun

    def wait(self, timeout_s: float) -> list[dict[str, Any]]:
        """The next events; none when the time is over.

        Raises:
            OSError: the engine has ended the stream.
        """
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
        return [event for line in lines if line.strip() and isinstance(event := json.loads(line), dict)]

    def close(self) -> None:
        """Let go of the connection."""
        self._answer.close()


def target(path: str, params: Mapping[str, Any] | None = None) -> str:
    """Path and query of a call.

    >>> target("/containers/json", {"all": 1, "filters": '{"a":["b c"]}'})
    '/containers/json?all=1&filters=%7B%22a%22%3A%5B%22b%20c%22%5D%7D'
    """
    query = urlencode(params or {}, quote_via=quote)
    return f"{path}?{query}" if query else path


def _head(answer: socket.socket) -> tuple[int, bytes]:
    """The status of an answer, and what of its body came along."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = answer.recv(1 << 16)
        if not more or len(data) > _MOST_HEAD:
            raise ConnectionError("the engine closed the connection")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ConnectionError("it does not answer as a Docker engine does")
    return int(words[1]), body


def _accepted(answer: socket.socket) -> bytes:
    """What came along of the body of an answer, unless that is an error."""
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
    """As the engine's own client does it: https://docs.docker.com/engine/security/protect-access/"""
    import subprocess

    ours, theirs = socket.socketpair()
    argv = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "--", host, "docker", "system", "dial-stdio"]
    with theirs, _closed_by_errors(ours):
        # The helper ends with the connection; it is reaped with the next one.
        fd = theirs.fileno()
        subprocess.Popen(argv, stdin=fd, stdout=fd, stderr=subprocess.DEVNULL, start_new_session=True)
    return ours
