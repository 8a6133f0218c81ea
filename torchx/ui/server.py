"""The server of ``torchx ui``, on a loopback port, until Ctrl-C."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable

from torchx.errors import ConfigError
from torchx.runner import Runner

_HOST = "127.0.0.1"
_LAST_ANSWERS_S = 1


def serve(runner: Runner, port: int, allowed: tuple[str, ...], ready: Callable[[str, str], None]) -> None:
    """Serve the page until SIGINT or SIGTERM; raise ImportError if an optional package is not installed.

    Once the port is open, ``ready`` is called with the address, and one that is good once, for a browser's arguments.
    """
    import uvicorn

    from torchx.ui.pages import application

    listener = listen(port)
    token, code = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    config = uvicorn.Config(
        application(runner, token, code, allowed),
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody may say where a request comes from
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
        lifespan="off",
        ws="none",
    )
    # uvicorn raises the signal again after closing the port; SystemExit lets the callers clean up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with listener:
        page = f"http://{_HOST}:{listener.getsockname()[1]}/"
        ready(f"{page}#token={token}", f"{page}#code={code}")
        uvicorn.Server(config).run(sockets=[listener])


def listen(port: int) -> socket.socket:
    """Return a listening socket on loopback; raise ConfigError if the port is taken."""
    try:
        return socket.create_server((_HOST, port))
    except OSError as e:
        why = os.strerror(e.errno) if e.errno else e
        hint = "choose another, or omit --port"
        raise ConfigError(f"port {port} of {_HOST} is not available: {why}", hint=hint) from e
