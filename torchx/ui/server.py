"""The server of ``torchx ui``, on a loopback port, until Ctrl-C."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
from collections.abc import Callable

from torchx.errors import ConfigError
from torchx.runner import Runner

_HOST = "127.0.0.1"
_LAST_ANSWERS_S = 1


def serve(runner: Runner, port: int, allowed: tuple[str, ...], ready: Callable[[str], None]) -> None:
    """Serves the page until SIGINT or SIGTERM.

    Args:
        port: 0 for any free port.
        allowed: the permitted ones of :data:`torchx.ui.ACTIONS`.
        ready: called with the address, including the token, once the port is open.

    Raises:
        ConfigError: the port is not available.
        ImportError: an optional package is not installed.
    """
    import uvicorn

    from torchx.ui.pages import application

    listener = _listen(port)
    token = secrets.token_urlsafe(24)
    config = uvicorn.Config(
        application(runner, token, allowed),
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
        lifespan="off",
        ws="none",
    )
    # uvicorn raises the signal again after closing the port; SystemExit lets the callers clean up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with listener:
        ready(f"http://{_HOST}:{listener.getsockname()[1]}/#token={token}")
        uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen()
    except OSError as e:
        listener.close()
        raise ConfigError(
            f"port {port} of {_HOST} is not available: {e.strerror or e}", hint="choose another, or omit --port"
        ) from e
    return listener
