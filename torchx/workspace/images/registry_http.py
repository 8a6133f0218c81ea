"""HTTP as registries need it: connections are kept, bodies are streamed, and what may pass is tried again."""

from __future__ import annotations

import functools
import os
import time

from torchx.errors import BackendError, TransientError
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client
    import ssl
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import TypeVar

    T = TypeVar("T")

ATTEMPTS = 6
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 120.0  # a registry that asks for more is not waited for
_PATIENCE_S = 300.0  # for one answer: some stores copy a large blob before they say that they have it
_CONNECT_PATIENCE_S = 20.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_LARGEST_ANSWER = 32 << 20  # of what is read into memory; manifests are at most 4 MiB
_CHUNK = 1 << 20
# https://docs.docker.com/engine/security/certificates/
_CERTS_D = ("/etc/docker/certs.d", "~/.config/docker/certs.d", "/etc/containers/certs.d")


class Again(Exception):
    """An attempt that failed and may succeed later.

    Args:
        reason: a part of a sentence, for the error when no attempt succeeds.
        after_s: how long the other side asked to wait.
    """

    def __init__(self, reason: str, after_s: float | None = None, *, hopeless_soon: bool = False) -> None:
        super().__init__(reason)
        self.after_s = after_s
        self.hopeless_soon = hopeless_soon


@dataclass(frozen=True)
class Body:
    """What is sent: its size in bytes, and a function that gives its chunks, from the start each time."""

    size: int
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class Answer:
    """A whole answer. Header names are in lower case; ``url`` is where it came from after redirects."""

    status: int
    headers: dict[str, str]
    body: bytes
    url: str


def persist(what: str, attempt: Callable[[], T], *, sleep: Callable[[float], None] = time.sleep) -> T:
    """The result of ``attempt``, which is called again, after growing pauses, while it raises :class:`Again`.

    Raises:
        TransientError: it never succeeded, or the other side asked for too long a pause.
    """
    import random

    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except Again as again:
            pause = _FIRST_WAIT_S * 2 ** (number - 1) * random.uniform(0.75, 1.25)  # noqa: S311  # no secret: spreads clients
            if again.after_s is not None:
                pause = again.after_s + random.uniform(0, 0.1)  # noqa: S311  # as above
            enough = number == ATTEMPTS or pause > _LONGEST_WAIT_S or (again.hopeless_soon and number >= 3)
            if enough:
                times = f" ({number} attempts)" if number > 1 else ""
                raise TransientError(f"{what}: {again}{times}", hint="try again later") from again
        sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def is_loopback(netloc: str) -> bool:
    """Whether a host, with or without port, is this machine.

    >>> [is_loopback(h) for h in ("localhost:5000", "127.0.0.1", "[::1]:5000", "ghcr.io", "127.evil.io")]
    [True, True, True, False, False]
    """
    host = netloc[1:].partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]
    if host == "localhost" or host.endswith(".localhost"):
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Http:
    """Requests to any number of hosts; may be used by several threads at once."""

    def __init__(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.sleep = sleep
        self._aborted = False
        self._idle: dict[tuple[str, str], _Idle] = {}
        self._contexts: dict[str, ssl.SSLContext] = {}

    def close(self) -> None:
        """Closes idle connections, and those in use when they become idle. More requests open new ones."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            connections.close()

    def abort(self) -> None:
        """For good: requests of other threads end at the next chunk, and no new one is begun."""
        self._aborted = True
        self.close()

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | Body | None = None
    ) -> Answer:
        """One attempt. Redirects of GET and HEAD are followed, without credentials once they lead to another host.

        Raises:
            Again: the connection failed, or the answer says to come back.
            BackendError: the certificate is not trusted, or the answer is too large.
        """
        with self.open(method, url, headers=headers, body=body) as stream:
            taken = bytearray()
            for chunk in stream.chunks():
                taken += chunk
                if len(taken) > _LARGEST_ANSWER:
                    raise BackendError(f"the answer of `{host_of(url)}` is larger than {_LARGEST_ANSWER >> 20} MiB")
            answer = Answer(stream.status, stream.headers, bytes(taken), stream.url)
        if answer.status in _AGAIN:
            detail = explain(answer.body)
            raise Again(
                f"it answered {answer.status}" + (f", `{detail}`" if detail else ""),
                _retry_after(answer.headers.get("retry-after", "")),
            )
        return answer

    def open(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | Body | None = None
    ) -> Stream:
        """Like :meth:`request`, for an answer of any size and with any status."""
        sent = {"User-Agent": "torchx", **(headers or {})}
        for _ in range(_MOST_REDIRECTS):
            stream = self._exchange(method, url, sent, body)
            target = stream.headers.get("location", "")
            if stream.status not in _REDIRECTS or method not in ("GET", "HEAD") or not target:
                return stream
            stream.close()
            before, url = url, absolute(url, target)
            if origin_of(before) != origin_of(url):
                sent = {k: v for k, v in sent.items() if k != "Authorization"}
        raise BackendError(f"`{host_of(url)}` redirects without end")

    def speaks_tls(self, netloc: str) -> bool:
        """Whether the host answers TLS; for this machine's registries, which may speak plain HTTP."""
        import ssl

        connection = self._connect("https", netloc)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError:
            return True
        except (ssl.SSLError, ConnectionResetError):
            return False
        except OSError as e:
            raise _trouble(e) from e
        finally:
            connection.close()
        return True

    def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | Body | None) -> Stream:
        import http.client
        import ssl

        if isinstance(body, Body):
            body = Body(body.size, functools.partial(self._unless_aborted, body.chunks))
        scheme, netloc, path = _split(url)
        self._check()
        idle = self._idle.setdefault((scheme, netloc), _Idle())
        while True:
            kept = idle.take()
            connection, reused = kept or self._connect(scheme, netloc), kept is not None
            try:
                response = _send(connection, method, path, headers, body)
            except ssl.SSLCertVerificationError as e:
                connection.close()
                raise BackendError(
                    f"the certificate of `{netloc}` is not trusted: {e.verify_message}",
                    hint=f"put its CA into /etc/docker/certs.d/{netloc}/ca.crt, or set `SSL_CERT_FILE`",
                ) from e
            except (OSError, http.client.HTTPException) as e:
                connection.close()
                if reused and isinstance(e, ConnectionError):
                    continue  # it was closed while nobody used it: says nothing about the registry
                raise _trouble(e) from e
            except BaseException:
                connection.close()  # half a request was sent
                raise
            if self._aborted:
                idle.close()
            return Stream(response, connection, idle, url)

    def _check(self) -> None:
        if self._aborted:
            raise BackendError("given up, because something else failed")

    def _unless_aborted(self, chunks: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        for chunk in chunks():
            self._check()
            yield chunk

    def _connect(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        import http.client
        from urllib.parse import urlsplit

        proxy = "" if is_loopback(netloc) else _proxy(scheme, netloc)
        via = urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc.rpartition("@")[2] if proxy else ""
        if scheme == "https":
            secure = http.client.HTTPSConnection(via or netloc, timeout=_PATIENCE_S, context=self._context(netloc))
            if via:
                secure.set_tunnel(netloc, headers=_proxy_login(proxy))
            return secure
        return http.client.HTTPConnection(netloc, timeout=_PATIENCE_S)

    def _context(self, netloc: str) -> ssl.SSLContext:
        """Trusts what the system does (``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` included) and the files for this host."""
        import ssl

        if netloc not in self._contexts:
            context = ssl.create_default_context()
            for bundle in (os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE")):
                if bundle and os.path.isfile(bundle):
                    context.load_verify_locations(bundle)
            for folder in (os.path.join(os.path.expanduser(d), netloc) for d in _CERTS_D):
                for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
                    path = os.path.join(folder, name)
                    if name.endswith(".crt"):
                        context.load_verify_locations(path)
                    elif name.endswith(".cert"):
                        context.load_cert_chain(path, path.removesuffix(".cert") + ".key")
            self._contexts[netloc] = context
        return self._contexts[netloc]


class _Idle:
    """Open connections to one host that nobody uses."""

    def __init__(self) -> None:
        import threading

        self._lock = threading.Lock()
        self._closed = False
        self._connections: list[http.client.HTTPConnection] = []

    def take(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._connections.pop() if self._connections else None

    def put(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._connections.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for connection in self._connections:
            connection.close()


class Stream:
    """An answer whose body is still to be read."""

    def __init__(
        self,
        response: http.client.HTTPResponse,
        connection: http.client.HTTPConnection,
        idle: _Idle,
        url: str,
    ) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.url = url
        self._response, self._connection, self._idle = response, connection, idle

    def chunks(self) -> Iterator[bytes]:
        """The body.

        Raises:
            Again: the connection failed before the body's end.
        """
        import http.client

        try:
            while chunk := self._response.read(_CHUNK):
                yield chunk
        except (OSError, http.client.HTTPException) as e:
            raise _trouble(e) from e
        if self._response.length:
            raise Again("it cut the connection")

    def close(self) -> None:
        """Gives the connection back if the whole body was read, else closes it."""
        whole = self._response.isclosed()
        if whole and not self._response.will_close:
            self._idle.put(self._connection)
        else:
            self._connection.close()
        self._response.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def explain(body: bytes) -> str:
    """The reason in a registry's error document, on one line and with secrets masked.

    >>> explain(b'{"errors": [{"code": "DENIED", "message": "no push"}]}')
    'no push (DENIED)'
    """
    import json

    from torchx.util.secrets import mask_text

    text = body.decode("utf-8", "replace").strip()
    try:
        first = json.loads(text)["errors"][0]
        code, message = str(first.get("code") or ""), str(first.get("message") or "")
        text = f"{message} ({code})" if code and message else message or code
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        text = "" if text.startswith("<") else text
    return mask_text(" ".join(text.split())[:300])


def absolute(url: str, target: str) -> str:
    """A ``Location`` as a whole URL; it never leads the same host from TLS back to plain HTTP.

    >>> absolute("https://r.io/v2/a", "http://r.io/v2/b"), absolute("http://r/v2/a", "/v2/b")
    ('https://r.io/v2/b', 'http://r/v2/b')
    """
    from urllib.parse import urljoin

    try:
        found = urljoin(url, target)
    except ValueError:
        found = target  # refused when it is used
    if url.startswith("https:") and found.startswith("http:") and host_of(url) == host_of(found):
        return "https:" + found.removeprefix("http:")
    return found


def host_of(url: str) -> str:
    """Host and port of a URL."""
    return _split(url)[1]


def origin_of(url: str) -> tuple[str, str]:
    """Scheme and host of a URL, by which it is decided who gets a login.

    >>> origin_of("HTTPS://me:pw@R.io/v2/")
    ('https', 'r.io')
    """
    return _split(url)[:2]


def _split(url: str) -> tuple[str, str, str]:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2].lower() if parts.port is None or parts.port > 0 else ""
    except ValueError:  # a host or port that is none
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host:
        raise BackendError(f"the registry redirects to `{url[:200]}`, which is not a valid URL of http or https")
    query = f"?{parts.query}" if parts.query else ""
    return parts.scheme, host, (parts.path or "/") + query


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | Body | None,
) -> http.client.HTTPResponse:
    if connection.sock is None:
        connection.timeout = _CONNECT_PATIENCE_S
        connection.connect()
        if connection.sock is not None:  # it is one now
            connection.sock.settimeout(_PATIENCE_S)
    try:
        if isinstance(body, Body):
            connection.request(method, path, body.chunks(), {**headers, "Content-Length": str(body.size)})
        else:
            connection.request(method, path, body, dict(headers))
    except (BrokenPipeError, ConnectionResetError):
        # The other side may have refused before it read everything, and said why.
        response = connection.getresponse()
        response.will_close = True
        return response
    return connection.getresponse()


def _trouble(error: Exception) -> Again:
    import socket

    if isinstance(error, socket.gaierror):
        return Again("its name cannot be resolved", hopeless_soon=True)
    if isinstance(error, ConnectionRefusedError):
        return Again("nothing listens there", hopeless_soon=True)
    if isinstance(error, TimeoutError):
        return Again("it does not answer in time", hopeless_soon=True)
    return Again(f"it cut the connection ({str(error) or type(error).__name__})")


def _retry_after(value: str) -> float | None:
    """Seconds that a ``Retry-After`` header asks to wait, given as such or as a date."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _proxy(scheme: str, netloc: str) -> str:
    """The proxy of the environment for a host, or nothing; plain HTTP to a distant host is never asked for."""
    from urllib.request import getproxies, proxy_bypass

    return "" if scheme != "https" or proxy_bypass(netloc) else getproxies().get(scheme, "")


def _proxy_login(proxy: str) -> dict[str, str]:
    import base64
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    if not parts.username:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
