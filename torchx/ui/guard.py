"""Access control of the page: requests need the token, and may not come from pages of other sites."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/api/"
TOKEN = f"{API}token"
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)
_HEADERS = (
    # Only our own files, no inline scripts or styles, no frames, no requests to other hosts.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Rejects requests that do not come from a page of this server, and adds security headers to each response.

    The Host header stops a foreign domain that resolves to this machine (DNS rebinding), the Origin header the pages
    of other sites, and the token other users of this machine. The token is in the fragment of the address, which
    browsers send to no server, and then in the Authorization header. The address that a browser is started with, which
    others can read among its arguments, has a ``code`` instead, which one page of this user exchanges for the token.
    Paths below ``closed`` need the token.
    """

    def __init__(self, app: ASGIApp, token: str, code: str, *, closed: str = API) -> None:
        self._app = app
        self._token = token
        self._code = f"Code {code}".encode()
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        answer = self._own_answer(dict(scope["headers"]), scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _own_answer(self, headers: dict[bytes, bytes], scope: Scope) -> PlainTextResponse | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if not _HOST.fullmatch(host):
            return PlainTextResponse("this page is only for this machine: use http://127.0.0.1", 403)
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1") != f"http://{host}":
            return PlainTextResponse("requested by a page of another site", 403)
        given = headers.get(b"authorization", b"")
        if scope["path"] == TOKEN and hmac.compare_digest(given, self._code) and _is_ours(scope):
            self._code = secrets.token_bytes()  # of no address: it was good once
            return PlainTextResponse(self._token)
        if scope["path"].startswith(self._closed) and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            return PlainTextResponse("the token is wrong: open the address that `torchx ui` printed", 401)
        return None


def _is_ours(scope: Scope) -> bool:
    """Whether a process of this user, or root, has sent a request; true where the kernel does not tell (not Linux)."""
    ends = tuple(f":{scope[end][1]:04X}" for end in ("client", "server"))
    rows: list[list[str]] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table, encoding="ascii") as f:
            rows += [line.split() for line in f]
    owners = {row[7] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1])}
    return not rows or (bool(owners) and owners <= {"0", str(os.geteuid())})
