"""Access control of the page: requests need the token, and may not come from pages of other sites."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/api/"
_NAMES = ("127.0.0.1", "localhost", "::1")
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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        refused = self._refused(dict(scope["headers"]), scope["path"])
        if refused is None:
            await self._app(scope, receive, send_with_headers)
            return
        status, text = refused
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send_with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})

    def _refused(self, headers: dict[bytes, bytes], path: str) -> tuple[int, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if _hostname(f"//{host}") not in _NAMES:
            return 403, "this page is only for this machine: use http://127.0.0.1"
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1") != f"http://{host}":
            return 403, "requested by a page of another site"
        if path.startswith(API) and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            return 401, "the token is wrong: open the address that `torchx ui` printed"
        return None


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
