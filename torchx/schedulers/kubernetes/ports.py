"""Connections to ports of a pod, with ``pods/portforward`` like ``kubectl port-forward``.

Each connection has its own SPDY session, because a slow stream blocks all others of its session.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from torchx.errors import BackendError
from torchx.schedulers.inside import STDERR, STDOUT, Duplex
from torchx.schedulers.kubernetes.client import KubeApi, path_to
from torchx.schedulers.kubernetes.names import Object
from torchx.schedulers.kubernetes.spdy import Spdy

_PROTOCOL = "portforward.k8s.io"
_ERROR, _DATA = 1, 3


def way_to(api: KubeApi, pod: Object) -> Callable[[int], PodPort] | None:
    """A function that connects to a port of a running pod; None if the cluster rejects this or the node is lost."""
    path = f"{path_to('Pod', pod)}/portforward"
    try:
        Spdy(api, path, _PROTOCOL, ()).close()
    except BackendError:
        return None
    return functools.partial(PodPort, api, path)


class PodPort(Duplex):
    """One connection, with a stream for data and one for errors."""

    def __init__(self, api: KubeApi, path: str, port: int) -> None:
        streams = [{"streamtype": kind, "port": str(port), "requestid": "0"} for kind in ("error", "data")]
        self._spdy = Spdy(api, path, _PROTOCOL, streams, ended=(_ERROR,))
        self._said: bytes | None = b""
        self._over = False

    def write(self, data: bytes) -> None:
        self._spdy.write(_DATA, data)

    def close_stdin(self) -> None:
        self._spdy.end(_DATA)

    def read(self) -> tuple[int, bytes] | None:
        while not self._over:
            stream, data, ended = self._spdy.read()
            self._over = ended and stream != _ERROR
            if stream == _DATA and data:
                self._said = None
                return STDOUT, data
            if stream == _ERROR and self._said is not None:
                self._said += data
        said, self._said = self._said, None
        refused = b"connection refused" in (said or b"").lower()
        return (STDERR, b"Connection refused" if refused else said.strip()) if said else None

    def close(self) -> None:
        self._spdy.close()
