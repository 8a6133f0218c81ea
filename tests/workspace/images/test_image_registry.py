"""The registry client without a registry: requests, retries and error messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import pytest

from torchx.errors import BackendError, NotFoundError, ParseError, TransientError
from torchx.workspace.images import registry_http
from torchx.workspace.images.names import ImageName
from torchx.workspace.images.registry import Blob, Manifest, Registry, _digest_of
from torchx.workspace.images.registry_auth import Credentials
from torchx.workspace.images.registry_http import Again, Answer, Body, absolute, explain, host_of, is_loopback, persist

IMAGE = ImageName("r.io", "me/x", "1")
ERROR = b'{"errors": [{"code": "DENIED", "message": "not yours"}]}'


class Scripted:
    """Answers with a function; records requests and pauses."""

    def __init__(self, answer: Callable[[str, str, Mapping[str, str]], Answer | Exception]) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.waited: list[float] = []
        self.bodies: list[bytes] = []

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | Body | None = None
    ) -> Answer:
        self.asked.append(f"{method} {url.removeprefix('https://r.io/v2/')}")
        self.bodies.append(b"".join(body.chunks()) if isinstance(body, Body) else body or b"")
        answer = self.answer(method, url, headers or {})
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None: ...


def client(
    answer: Callable[[str, str, Mapping[str, str]], Answer | Exception], credentials: Credentials | None = None
) -> tuple[Registry, Scripted]:
    registry = Registry("r.io", credentials=credentials or Credentials())
    http = Scripted(answer)
    registry._http = http  # type: ignore[assignment]  # it has the same calls
    return registry, http


def reply(status: int, body: bytes = b"", **headers: str) -> Answer:
    return Answer(status, {k.replace("_", "-"): v for k, v in headers.items()}, body, "https://r.io/v2/asked")


def one_after_the_other(*answers: Answer | Exception) -> Callable[[str, str, Mapping[str, str]], Answer | Exception]:
    left = iter(answers)
    return lambda *_: next(left)


def test_manifest() -> None:
    """The digest is computed from the bytes; an answer with another digest than requested is an error."""
    registry, http = client(lambda *_: reply(200, b"{}", content_type="application/x; charset=utf-8"))
    assert registry.manifest(IMAGE) == Manifest("application/x", _digest_of(b"{}"), b"{}")
    assert http.asked == ["GET me/x/manifests/1"]
    with pytest.raises(BackendError, match="returned something other than"):
        registry.manifest(ImageName("r.io", "me/x", digest="sha256:" + "0" * 64))


def test_missing() -> None:
    """A missing image is an error that names it; a missing tag or blob is a normal answer."""
    registry, _ = client(lambda *_: reply(404))
    with pytest.raises(NotFoundError, match=r"registry `r\.io` has no image `r\.io/me/x:1`"):
        registry.manifest(IMAGE)
    assert registry.manifest_digest(IMAGE) == ""
    assert not registry.has_blob("me/x", "sha256:1")


def test_digest_without_the_header() -> None:
    """If the registry does not return the digest, the manifest is read."""
    registry, http = client(lambda method, *_: reply(200, b"" if method == "HEAD" else b"{}"))
    assert registry.manifest_digest(IMAGE) == _digest_of(b"{}")
    assert [a.split()[0] for a in http.asked] == ["HEAD", "GET"]


def test_upload() -> None:
    """The upload goes to the returned location, relative or absolute, with the digest at the end of the query."""
    blob = Blob("sha256:ab", 3, lambda: iter((b"a", b"bc")))
    for location, target in [
        ("/v2/u/1", "u/1?digest=sha256%3Aab"),
        ("https://s3.io/k?x=1", "https://s3.io/k?x=1&digest=sha256%3Aab"),
    ]:
        registry, http = client(one_after_the_other(reply(202, location=location), reply(201)))
        registry.upload_blob("me/x", blob)
        assert http.asked == ["POST me/x/blobs/uploads/", f"PUT {target}"]
        assert http.bodies[1] == b"abc"


def test_login_does_not_travel() -> None:
    """An upload to another host, and a token service over plain HTTP, do not get the password."""
    seen: list[tuple[str, Mapping[str, str]]] = []

    def answer(method: str, url: str, headers: Mapping[str, str]) -> Answer:
        seen.append((url, headers))
        if "r.io" in url and "Authorization" not in headers:
            return reply(401, www_authenticate='Basic realm="x"')
        return reply(202, location="https://s3.io/key") if method == "POST" else reply(201)

    registry, _ = client(answer, Credentials("me", "1"))
    registry.upload_blob("me/x", Blob("sha256:ab", 0, lambda: iter(())))
    assert [("Authorization" in headers) for url, headers in seen] == [False, True, False]
    registry, http = client(
        lambda *_: reply(401, www_authenticate='Bearer realm="http://evil.io/t"'), Credentials("me", "1")
    )
    with pytest.raises(BackendError, match="where others can read it"):
        registry.has_blob("me/x", "sha256:1")
    assert len(http.asked) == 1


def test_token_is_used_until_it_is_refused() -> None:
    """Each scope has one token; an expired one is replaced once, and then a refusal is final."""
    valid = ["t1"]
    given: list[str] = []

    def answer(method: str, url: str, headers: Mapping[str, str]) -> Answer:
        if url.startswith("https://auth.io"):
            given.append(url)
            valid[0] = f"t{len(given)}"
            return reply(200, json.dumps({"access_token": valid[0]}).encode())
        if headers.get("Authorization") == f"Bearer {valid[0]}" and given:
            return reply(200)
        return reply(401, www_authenticate='Bearer realm="https://auth.io/token",service="s"')

    registry, http = client(answer)
    assert registry.has_blob("me/x", "sha256:1") and registry.has_blob("me/x", "sha256:2")
    assert len(given) == 1 and len(http.asked) == 4
    valid[0] = "expired on the other side"
    assert registry.has_blob("me/x", "sha256:3")
    assert len(given) == 2
    assert "scope=repository%3Ame%2Fx%3Apull%2Cpush" in given[0]


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b"null"])
def test_token_that_is_none(body: bytes) -> None:
    """An unexpected answer of a token service is an error that names the service."""
    answers = one_after_the_other(reply(401, www_authenticate='Bearer realm="https://auth.io/t"'), reply(200, body))
    with pytest.raises(ParseError, match=r"`auth\.io` returned no token for registry `r\.io`"):
        client(answers)[0].has_blob("me/x", "sha256:1")


def test_refused() -> None:
    """A missing permission is an error with registry, repository and hint, without pause or retry."""
    registry, http = client(lambda *_: reply(403, ERROR), Credentials("me", "1"))
    with pytest.raises(BackendError) as caught:
        registry.put_manifest(IMAGE, Manifest("x", "sha256:1", b""))
    assert str(caught.value) == "registry `r.io` refuses to push `r.io/me/x:1` (403): not yours (DENIED)"
    assert caught.value.hint == "`me` may not do this; log in as somebody who may: `docker login r.io`"
    assert (len(http.asked), http.waited) == (1, [])


def test_lost_answer_of_an_upload() -> None:
    """A blob that may have arrived is looked up before it is sent again."""
    answers = one_after_the_other(reply(202, location="/v2/u"), Again("it cut the connection"), reply(200))
    registry, http = client(answers)
    registry.upload_blob("me/x", Blob("sha256:ab", 0, lambda: iter(())))
    assert [a.split()[0] for a in http.asked] == ["POST", "PUT", "HEAD"]


def test_upload_in_vain() -> None:
    """After the last attempt one sentence has registry, repository, reason and number of attempts."""
    registry, _ = client(lambda method, *_: reply(404) if method == "HEAD" else Again("it answered 500"))
    with pytest.raises(TransientError) as e:
        registry.upload_blob("me/x", Blob("sha256:ab", 0, lambda: iter(())))
    assert str(e.value) == "registry `r.io` did not accept a layer of `me/x`: it answered 500 (6 attempts)"


def test_waiting_grows() -> None:
    """Pauses double, with jitter; a pause that the server requests takes precedence."""
    waited: list[float] = []
    troubles = iter([Again("x"), Again("x"), Again("x"), Again("x", 7.0)])

    def attempt() -> str:
        for trouble in troubles:
            raise trouble
        return "done"

    assert persist("x", attempt, sleep=waited.append) == "done"
    assert all(0.75 * 0.5 * 2**n <= pause <= 1.25 * 0.5 * 2**n for n, pause in enumerate(waited[:3]))
    assert 7.0 <= waited[3] <= 7.1


@pytest.mark.parametrize(
    ("again", "attempts"),
    [(Again("x", 3600.0), 1), (Again("x", give_up_soon=True), 3), (Again("x"), 6)],
    ids=["an hour", "nobody there", "any"],
)
def test_giving_up(again: Again, attempts: int) -> None:
    """The client does not wait for an hour, nor long for a registry that does not exist."""
    tried = []

    def attempt() -> None:
        tried.append(1)
        raise again

    with pytest.raises(TransientError):
        persist("x", attempt, sleep=lambda _: None)
    assert len(tried) == attempts


def test_retry_after() -> None:
    """Retry-After may be seconds or a date; anything else is ignored."""
    assert registry_http._retry_after("12") == 12
    assert registry_http._retry_after("") is None
    assert registry_http._retry_after("soon") is None
    assert registry_http._retry_after(formatdate(0)) == 0


def test_explain() -> None:
    """Any body becomes one line, without markup and without secrets."""
    assert explain(ERROR) == "not yours (DENIED)"
    assert explain(b'{"errors": [{"message": "a\\n b"}]}') == "a b"
    assert explain(b"<html>x</html>") == ""
    assert explain(b"plain words") == "plain words"
    assert explain(b"\xff" * 1000) == "\ufffd" * 300
    assert explain(b'{"errors": [{"message": "token=abcdef"}]}') == "token=********"
    for body in (b"", b"[]", b'{"errors": []}', b'{"errors": [1]}', b'{"errors": null}'):
        assert len(explain(body)) < 30


@pytest.mark.parametrize(
    ("url", "location", "expected"),
    [
        ("https://r.io/v2/a/", "/v2/b?x=1", "https://r.io/v2/b?x=1"),
        ("https://r.io/v2/a/", "b", "https://r.io/v2/a/b"),
        ("https://r.io/v2/a/", "https://s3.io/b", "https://s3.io/b"),
        ("https://r.io/v2/a/", "http://r.io/b", "https://r.io/b"),
        ("http://localhost:5000/v2/a/", "http://localhost:5000/b", "http://localhost:5000/b"),
    ],
)
def test_locations(url: str, location: str, expected: str) -> None:
    """The location may be relative or absolute; it cannot downgrade the connection from TLS."""
    assert absolute(url, location) == expected


def test_hosts() -> None:
    """Only this machine may be accessed without TLS."""
    assert (
        is_loopback("localhost:1")
        and is_loopback("a.localhost")
        and is_loopback("127.8.8.8:1")
        and is_loopback("[::1]")
    )
    assert not any(map(is_loopback, ("localhost.evil.io", "10.0.0.1:5000", "registry:5000", "127.0.0.1.evil.io", "")))
    assert host_of("https://user:pw@r.io:1/x?y") == "r.io:1"
    with pytest.raises(BackendError, match="which is not a valid URL of http or https"):
        host_of("file:///etc/passwd")


class Hosts:
    """Two real servers on this machine: a registry that redirects blobs, and the host that it redirects to.

    ``seen`` has, for each request, the server's name, the path and the login that came with it.
    """

    def __init__(self, challenge: str) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.other = self._serve(
            "other", lambda _: (401, {"WWW-Authenticate": challenge.format(port=self.port_of("other"))})
        )
        self.registry = self._serve("registry", self._registry)

    def port_of(self, name: str) -> int:
        return int((self.other if name == "other" else self.registry).server_address[1])

    def _registry(self, login: str) -> tuple[int, dict[str, str]]:
        if not login:
            return 401, {"WWW-Authenticate": 'Basic realm="registry"'}
        return 307, {"Location": f"http://127.0.0.1:{self.port_of('other')}/blob"}

    def _serve(self, name: str, answer: Callable[[str], tuple[int, dict[str, str]]]) -> HTTPServer:
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                login = self.headers.get("Authorization", "")
                seen.append((name, self.path, login))
                status, headers = answer(login)
                self.send_response(status)
                for key, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(key, value)
                self.end_headers()

            do_HEAD = do_GET

            def log_message(self, *args: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.other, self.registry):
            server.shutdown()
            server.server_close()


@pytest.mark.parametrize(
    "challenge",
    [
        'Bearer realm="http://127.0.0.1:{port}/token",service="s"',
        'Basic realm="give it to me"',
        'BEARER realm="HTTP://127.0.0.1:{port}/t"',
    ],
    ids=["bearer", "basic", "upper case"],
)
def test_a_redirect_target_asks_for_a_login_in_vain(challenge: str) -> None:
    """The host of the request determines the login: the target of a redirect gets neither login nor token."""
    with Hosts(challenge) as hosts:
        registry = Registry(f"127.0.0.1:{hosts.port_of('registry')}", credentials=Credentials("me", "hunter2"))
        for _ in range(2):  # the second time, the login is sent at once
            with pytest.raises(BackendError, match="401"):
                registry.blob("me/x", "sha256:" + "0" * 64)
        registry.close()
    assert ("registry", "Basic") in {(name, login.partition(" ")[0]) for name, _, login in hosts.seen}
    assert {(name, path, login) for name, path, login in hosts.seen if name == "other"} == {("other", "/blob", "")}


@pytest.mark.parametrize("realm", ["http://evil.io/t", "HTTP://evil.io/t", "ftp://evil.io/t", "http://[::bad", ""])
def test_a_realm_without_tls_gets_no_password(realm: str) -> None:
    """A realm without TLS, or an invalid URL, gets no password; scheme and host are compared case-insensitively."""
    registry, http = client(lambda *_: reply(401, www_authenticate=f'Bearer realm="{realm}"'), Credentials("me", "1"))
    with pytest.raises(BackendError):
        registry.has_blob("me/x", "sha256:1")
    assert len(http.asked) == 1


@pytest.mark.parametrize("target", ["http://[::bad", "http://h:99999/", "file:///etc/passwd"])
def test_a_redirect_to_what_is_no_url(target: str) -> None:
    """A redirect to an invalid URL is a one-line error."""
    with pytest.raises(BackendError, match="not a valid URL"):
        host_of(absolute("https://r.io/v2/", target))


def test_an_upload_has_more_time_than_a_connection() -> None:
    """A busy registry may be slow to receive data, but an unreachable one is detected quickly."""
    with Hosts("") as hosts:
        url = f"http://127.0.0.1:{hosts.port_of('registry')}/"
        pool = registry_http._new_pool("http", host_of(url)).connection_from_url(url)
        assert pool.timeout.connect_timeout == registry_http._CONNECT_TIMEOUT_S < registry_http._ANSWER_TIMEOUT_S
        connection = pool._get_conn()
        connection.timeout = pool.timeout.connect_timeout
        connection.connect()
        assert connection.sock.gettimeout() == registry_http._ANSWER_TIMEOUT_S
        connection.close()
