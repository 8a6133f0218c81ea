"""Access control of the page: requests need the token, and may not come from pages of other sites."""

from __future__ import annotations

import hmac
import re

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/api/"
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
    browsers send to no server, and then in the Authorization header.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        answer = self._refusal(dict(scope["headers"]), scope["path"]) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, headers: dict[bytes, bytes], path: str) -> PlainTextResponse | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if not _HOST.fullmatch(host):
            return PlainTextResponse("this page is only for this machine: use http://127.0.0.1", 403)
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1") != f"http://{host}":
            return PlainTextResponse("requested by a page of another site", 403)
        if path.startswith(API) and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            return PlainTextResponse("the token is wrong: open the address that `torchx ui` printed", 401)
        return None
