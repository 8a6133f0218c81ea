"""Registers a model archive with a running TorchServe.

``python -m torchx.apps.serve.serve --model_path s3://bucket/model.mar --management_api http://host:8081``

TorchServe fetches the archive from a URL. If the archive is not on the web, this program serves that one file over
HTTP, under an unguessable name, until TorchServe has answered.
TorchServe's interface: https://pytorch.org/serve/management_api.html#register-a-model

Since 0.11 TorchServe requires a token, unless it was started with ``--disable-token-auth``. The token comes from
``--token_file``, which may be TorchServe's own ``key_file.json``, or from ``$TORCHSERVE_TOKEN``; never from the command
line, which every user of the machine can read. See https://pytorch.org/serve/token_authorization_api.html
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from torchx.errors import BackendError, MissingDependencyError, SpecError, TorchXError
from torchx.util.foreign import loads

TORCHSERVE_PARAMS = [
    "model_name",
    "handler",
    "runtime",
    "batch_size",
    "max_batch_delay",
    "initial_workers",
    "synchronous",
    "response_timeout",
]
"""Parameters of a new model in TorchServe; each is an option here."""

ENV_TOKEN = "TORCHSERVE_TOKEN"  # noqa: S105  # the name of a variable
"""Environment variable with the token of TorchServe's management API, used without ``--token_file``."""

PORT = 8222
"""Default port to serve the archive from; the component publishes it."""

_BLOCK = 1 << 20  # bytes held in memory at a time


def parse_args(argv: list[str]) -> argparse.Namespace:
    """Parse the model, the server, and the parameters of the model."""
    parser = argparse.ArgumentParser(description="registers a model archive with a running TorchServe")
    parser.add_argument("--model_path", required=True, help="the archive (.mar): a path or a URL that fsspec supports")
    parser.add_argument(
        "--management_api", required=True, help="address of TorchServe's management API: http://host:8081"
    )
    parser.add_argument(
        "--port",
        type=int,
        help=f"port to serve the archive from, 0 for any free one (default: {PORT}; 0 for a server on this machine)",
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for TorchServe's answer")
    parser.add_argument("--token_file", help="TorchServe's key_file.json, or a file with the token: a path or a URL")
    parser.add_argument("--dryrun", action="store_true", help="print the request without sending it")
    model = parser.add_argument_group("the model", "see TorchServe's management API")
    for name in TORCHSERVE_PARAMS:
        model.add_argument(f"--{name}")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Register the model and print TorchServe's answer.

    Raises:
        SpecError: the address of the management API is invalid.
        BackendError: TorchServe rejected the model, or cannot be reached.
        OSError: the archive cannot be read.
    """
    args = parse_args(argv)
    host = urlsplit(args.management_api).hostname
    if urlsplit(args.management_api).scheme not in ("http", "https") or not host:
        raise SpecError(f"`{args.management_api}` is not a server address", hint="for example http://host:8081")
    params = {name: getattr(args, name) for name in TORCHSERVE_PARAMS if getattr(args, name) is not None}
    if urlsplit(args.model_path).scheme in ("http", "https"):
        _register(args, {"url": args.model_path, **params})
        return
    name = f"{rand_id()}/{quote(os.path.basename(args.model_path.rstrip('/'))) or 'model.mar'}"
    address = get_routable_ip_to(host)
    # For a TorchServe on this machine, listen only on loopback. Otherwise listen on every interface, because we cannot
    # know which one TorchServe uses; the unguessable name protects the file.
    bind = address if address.startswith("127.") else ""
    port = args.port if args.port is not None else 0 if bind else PORT
    if args.dryrun:
        _register(args, {"url": f"http://{address}:{port}/{name}", **params})
        return
    fs, path = _file_system(args.model_path)
    with _served(fs, path, f"/{name}", (bind, port)) as port:
        _register(args, {"url": f"http://{address}:{port}/{name}", **params})


def get_routable_ip_to(addr: str) -> str:
    """Return this host's address as seen from ``addr``; send nothing.

    >>> get_routable_ip_to("127.0.0.1")
    '127.0.0.1'
    """
    family, kind, protocol, _, target = socket.getaddrinfo(addr, 80, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as s:
        s.connect(target)
        ip = str(s.getsockname()[0])
    return f"[{ip}]" if ":" in ip else ip


def rand_id() -> str:
    """Return an unguessable name.

    >>> len(rand_id()) >= 20 and rand_id() != rand_id()
    True
    """
    import secrets

    return secrets.token_urlsafe(16)


def _register(args: argparse.Namespace, params: dict[str, str]) -> None:
    url = f"{args.management_api.rstrip('/')}/models?{urlencode(params)}"
    if args.dryrun:
        print(f"POST {url}")
        return
    token = _token(args.token_file)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(url, data=b"", headers=headers, method="POST")  # noqa: S310  # the caller has checked the scheme
    try:
        with urlopen(request, timeout=args.timeout) as answer:  # noqa: S310  # as above
            print(answer.read().decode(errors="replace").strip())
    except HTTPError as e:
        with e:
            reason = _explain(e.read().decode(errors="replace")) or e.reason
        raise BackendError(f"TorchServe refused `{args.model_path}`: {e.code} {reason}", hint=_hint(reason)) from e
    except (OSError, HTTPException) as e:
        cause = getattr(e, "reason", e)
        raise BackendError(f"TorchServe at `{args.management_api}` cannot be reached: {cause}") from e


def _explain(answer: str) -> str:
    """Return an error of TorchServe on one line: ``{"type": ..., "message": ...}`` as ``type: message``.

    >>> _explain('{"code": 409, "type": "ConflictStatusException", "message": "Model m is already registered."}')
    'ConflictStatusException: Model m is already registered.'
    >>> _explain("<h1>Bad\\n gateway</h1>")
    '<h1>Bad gateway</h1>'
    """
    try:
        error = loads(answer)
        answer = f"{error['type']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        pass  # not from TorchServe but from a proxy
    return " ".join(answer.split())


def _hint(reason: str) -> str:
    if reason.startswith("InvalidKeyException"):
        return f"the management key of its key_file.json: --token_file, or ${ENV_TOKEN}"
    if "already exists" in reason:
        return "TorchServe keeps archives by file name: unregister that model, or give the archive another name"
    if "model API" in reason or reason.startswith("MethodNotAllowed"):
        return "TorchServe takes new models when it is started with --enable-model-api"
    return ""


def _token(path: str | None) -> str:
    """Return the token for TorchServe; empty if none is configured."""
    if not path:
        return os.environ.get(ENV_TOKEN, "").strip()
    fs, name = _file_system(path)
    text = str(fs.cat_file(name).decode(errors="replace"))
    try:
        keys = loads(text)
        text = str(keys["management"]["key"])
    except ValueError:
        pass  # the file contains the bare token
    except (KeyError, TypeError) as e:
        raise SpecError(f"`{path}` has no management key", hint="it is TorchServe's key_file.json, or the token") from e
    if not text.strip().isprintable():
        raise SpecError(f"`{path}` has no token", hint="it is TorchServe's key_file.json, or the token alone")
    return text.strip()


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of an existing file, and the path on it."""
    try:
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(url)
    except ImportError as e:
        raise MissingDependencyError(
            f"`{url}` cannot be read: {e}", hint="pip install fsspec, or the package named above"
        ) from e
    if not fs.isfile(path):
        raise FileNotFoundError(2, "there is no such file", url)
    return fs, path


@contextmanager
def _served(fs: Any, path: str, name: str, address: tuple[str, int]) -> Iterator[int]:
    """Serve one file; yield the port."""
    size = int(fs.size(path))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            if self.path != name:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if body:
                with fs.open(path, "rb") as f:
                    while block := f.read(_BLOCK):
                        self.wfile.write(block)

        def log_message(self, format: str, *args: Any) -> None:
            print(f"{self.address_string()} {format % args}".replace(name, "/***"), file=sys.stderr)

    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as e:
        raise OSError(e.errno, f"port {address[1]} cannot be used: {e.strerror}; --port takes another") from e
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (TorchXError, OSError) as e:
        hint = getattr(e, "hint", "")
        sys.exit(f"serve: {e}" + (f" ({hint})" if hint else ""))  # one line: `torchx status` shows the last
