"""HTTP for registries, on urllib3: streams bodies, and retries temporary failures."""

from __future__ import annotations

import ipaddress
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from torchx.errors import BackendError, MissingDependencyError, TransientError, install_extra
from torchx.util.records import dataclass
from torchx.util.secrets import mask_text

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

T = TypeVar("T")

ATTEMPTS = 6
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 120.0  # we give up if a registry asks for a longer pause
_ANSWER_TIMEOUT_S = 300.0  # for one answer: some stores copy a large blob before they acknowledge it
_CONNECT_TIMEOUT_S = 20.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_LARGEST_ANSWER = 32 << 20  # read into memory; manifests are at most 4 MiB
_CHUNK = 1 << 20
_KEPT = 8  # open connections to one host
# https://docs.docker.com/engine/security/certificates/
_CERTS_D = ("/etc/docker/certs.d", "~/.config/docker/certs.d", "/etc/containers/certs.d")


class Again(Exception):
    """An attempt failed, but may succeed later.

    Args:
        reason: clause for the error message if no attempt succeeds.
        after_s: the pause that the server requested.
        give_up_soon: give up after three attempts.
    """

    def __init__(self, reason: str, after_s: float | None = None, *, give_up_soon: bool = False) -> None:
        super().__init__(reason)
        self.after_s = after_s
        self.give_up_soon = give_up_soon


@dataclass(frozen=True)
class Body:
    """A request body: its size in bytes, and a function that yields its chunks from the start."""

    size: int
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class Answer:
    """A whole answer. Header names are in lower case; ``url`` is the URL after redirects."""

    status: int
    headers: dict[str, str]
    body: bytes
    url: str


def persist(what: str, attempt: Callable[[], T], *, sleep: Callable[[float], None] = time.sleep) -> T:
    """Call ``attempt``, again after growing pauses while it raises :class:`Again`; at last raises TransientError."""
    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except Again as again:
            pause = _FIRST_WAIT_S * 2 ** (number - 1) * random.uniform(0.75, 1.25)  # noqa: S311  # no secret: spreads clients
            if again.after_s is not None:
                pause = again.after_s + random.uniform(0, 0.1)  # noqa: S311  # as above
            enough = number == ATTEMPTS or pause > _LONGEST_WAIT_S or (again.give_up_soon and number >= 3)
            if enough:
                times = f" ({number} attempts)" if number > 1 else ""
                raise TransientError(f"{what}: {again}{times}", hint="try again later") from again
        sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def is_loopback(netloc: str) -> bool:
    """Return whether a host, with or without port, is this machine.

    >>> [is_loopback(h) for h in ("localhost:5000", "127.0.0.1", "[::1]:5000", "ghcr.io", "127.evil.io")]
    [True, True, True, False, False]
    """
    host = netloc[1:].partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Http:
    """Sends requests to any number of hosts. Thread-safe."""

    def __init__(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.sleep = sleep
        self._aborted = False
        self._pools: dict[tuple[str, str], PoolManager] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close idle connections; later requests open new ones."""
        with self._lock:
            for pool in self._pools.values():
                pool.clear()

    def abort(self) -> None:
        """End requests of other threads at the next chunk, and rejects new ones, permanently."""
        self._aborted = True
        self.close()

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | Body | None = None
    ) -> Answer:
        """Make one attempt. Follows redirects of GET and HEAD, without credentials after a change of host.

        Raises:
            Again: the connection failed, or the status is a temporary one.
            BackendError: the certificate is not trusted, or the answer is too large.
        """
        response, url = self.open(method, url, headers=headers, body=body)
        with response:
            taken = bytearray()
            for chunk in chunks(response):
                taken += chunk
                if len(taken) > _LARGEST_ANSWER:
                    raise BackendError(f"the answer of `{host_of(url)}` is larger than {_LARGEST_ANSWER >> 20} MiB")
            headers_there = {name.lower(): value for name, value in response.headers.items()}
            answer = Answer(response.status, headers_there, bytes(taken), url)
        if answer.status in _AGAIN:
            detail = explain(answer.body)
            raise Again(
                f"it answered {answer.status}" + (f", `{detail}`" if detail else ""),
                _retry_after(answer.headers.get("retry-after", "")),
            )
        return answer

    def open(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | Body | None = None
    ) -> tuple[BaseHTTPResponse, str]:
        """Like :meth:`request`, but returns the open response, of any size and status, and its URL."""
        sent = {"User-Agent": "torchx", **(headers or {})}
        for _ in range(_MAX_REDIRECTS):
            response = self._exchange(method, url, sent, body)
            target = response.headers.get("location", "")
            if response.status not in _REDIRECTS or method not in ("GET", "HEAD") or not target:
                return response, url
            response.close()
            before, url = url, absolute(url, target)
            if origin_of(before) != origin_of(url):
                sent = {k: v for k, v in sent.items() if k != "Authorization"}
        raise BackendError(f"`{host_of(url)}` redirects without end")

    def speaks_tls(self, netloc: str) -> bool:
        """Return whether the host uses TLS; registries on this machine may use plain HTTP."""
        parts = urlsplit(f"https://{netloc}")
        try:
            with socket.create_connection((parts.hostname, parts.port or 443), _CONNECT_TIMEOUT_S) as connection:
                _context(netloc).wrap_socket(connection, server_hostname=parts.hostname).close()
        except ssl.SSLCertVerificationError:
            return True
        except (ssl.SSLError, ConnectionResetError):
            return False
        except OSError as e:
            raise _trouble(e) from e
        return True

    def _exchange(self, method: str, url: str, headers: dict[str, str], body: bytes | Body | None) -> BaseHTTPResponse:
        scheme, netloc, path = _split(url)
        self._check()
        pool = self._pool(scheme, netloc)
        from urllib3.exceptions import HTTPError, SSLError

        sent: bytes | Iterator[bytes] | None
        if isinstance(body, Body):
            sent, headers = self._unless_aborted(body), {**headers, "Content-Length": str(body.size)}
        else:
            sent = body
        as_is: dict[str, Any] = dict.fromkeys(("preload_content", "decode_content", "redirect", "retries"), False)
        try:
            return pool.request(method, f"{scheme}://{netloc}{path}", body=sent, headers=headers, **as_is)
        except (HTTPError, OSError) as e:
            refused = e.args[0] if isinstance(e, SSLError) and e.args else None
            if not isinstance(refused, ssl.SSLCertVerificationError):
                raise _trouble(e) from e
            raise BackendError(
                f"the certificate of `{netloc}` is not trusted: {refused.verify_message}",
                hint=f"put its CA into /etc/docker/certs.d/{netloc}/ca.crt, or set `SSL_CERT_FILE`",
            ) from e

    def _check(self) -> None:
        if self._aborted:
            raise BackendError("cancelled, because another request failed")

    def _unless_aborted(self, body: Body) -> Iterator[bytes]:
        for chunk in body.chunks():
            self._check()
            yield chunk

    def _pool(self, scheme: str, netloc: str) -> PoolManager:
        with self._lock:
            if (scheme, netloc) not in self._pools:
                self._pools[scheme, netloc] = _new_pool(scheme, netloc)
            return self._pools[scheme, netloc]


def chunks(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the body; the connection is reused if all of it was read. Raises :class:`Again` if it breaks."""
    from urllib3.exceptions import HTTPError

    try:
        yield from response.stream(_CHUNK)
    except (HTTPError, OSError) as e:
        raise _trouble(e) from e


def _new_pool(scheme: str, netloc: str) -> PoolManager:
    """Create the connection pool of one host, through the proxy of the environment if it uses TLS."""
    try:
        import urllib3
    except ImportError:
        raise MissingDependencyError(
            "this needs the package `urllib3`, which is not installed", hint=install_extra("docker")
        ) from None
    options: dict[str, Any] = {
        "maxsize": _KEPT,
        "timeout": urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_ANSWER_TIMEOUT_S),
        "ssl_context": _context(netloc) if scheme == "https" else None,
    }
    proxy = getproxies().get(scheme, "") if scheme == "https" else ""
    if not proxy or is_loopback(netloc) or proxy_bypass(netloc):
        pool = urllib3.PoolManager(**options)
    else:
        parts = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
        via = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        pool = urllib3.ProxyManager(via, proxy_headers=urllib3.make_headers(proxy_basic_auth=login), **options)
    pool.pool_classes_by_scheme = {
        "http": _pool_class(urllib3.HTTPConnectionPool),
        "https": _pool_class(urllib3.HTTPSConnectionPool),
    }
    return pool


def _pool_class(pool: Any) -> Any:
    """Return a pool class that uses the connect timeout only to connect: a busy registry may be slow to receive."""

    class Connection(pool.ConnectionCls):  # type: ignore[misc]  # a class that is chosen at run time
        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(_ANSWER_TIMEOUT_S)

    return type("Pool", (pool,), {"ConnectionCls": Connection})


def _context(netloc: str) -> ssl.SSLContext:
    """Trusts the system's CAs (or ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``) and the certificate files for this host."""
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
    return context


def explain(body: bytes) -> str:
    """Return the reason in a registry's error document, on one line and with secrets masked.

    >>> explain(b'{"errors": [{"code": "DENIED", "message": "no push"}]}')
    'no push (DENIED)'
    """
    text = body.decode("utf-8", "replace").strip()
    try:
        first = json.loads(text)["errors"][0]
        code, message = str(first.get("code") or ""), str(first.get("message") or "")
        text = f"{message} ({code})" if code and message else message or code
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        text = "" if text.startswith("<") else text
    return mask_text(" ".join(text.split())[:300])


def absolute(url: str, target: str) -> str:
    """Return a ``Location`` as a whole URL; never downgrades the same host from TLS to plain HTTP.

    >>> absolute("https://r.io/v2/a", "http://r.io/v2/b"), absolute("http://r/v2/a", "/v2/b")
    ('https://r.io/v2/b', 'http://r/v2/b')
    """
    try:
        found = urljoin(url, target)
    except ValueError:
        found = target  # rejected when it is used
    if url.startswith("https:") and found.startswith("http:") and host_of(url) == host_of(found):
        return "https:" + found.removeprefix("http:")
    return found


def host_of(url: str) -> str:
    """Return host and port of a URL."""
    return _split(url)[1]


def origin_of(url: str) -> tuple[str, str]:
    """Return scheme and host of a URL, which determine whether it gets a login.

    >>> origin_of("HTTPS://me:pw@R.io/v2/")
    ('https', 'r.io')
    """
    return _split(url)[:2]


def _split(url: str) -> tuple[str, str, str]:
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2].lower() if parts.port is None or parts.port > 0 else ""
    except ValueError:  # an invalid host or port
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host:
        raise BackendError(f"the registry redirects to `{url[:200]}`, which is not a valid URL of http or https")
    query = f"?{parts.query}" if parts.query else ""
    return parts.scheme, host, (parts.path or "/") + query


def _trouble(error: BaseException) -> Again:
    """Translate an error of a connection; urllib3 may have the system's own error as a cause."""
    from urllib3.exceptions import TimeoutError as Timeout

    root = error
    while not isinstance(root, OSError) and root.__cause__ is not None:
        root = root.__cause__
    if isinstance(root, socket.gaierror):
        return Again("its name cannot be resolved", give_up_soon=True)
    if isinstance(root, ConnectionRefusedError):
        return Again("nothing listens there", give_up_soon=True)
    if isinstance(root, TimeoutError) or isinstance(error, Timeout):
        return Again("it does not answer in time", give_up_soon=True)
    return Again(f"it cut the connection ({str(root) or type(root).__name__})")


def _retry_after(value: str) -> float | None:
    """Return the seconds to wait according to a ``Retry-After`` header, which has seconds or a date."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
