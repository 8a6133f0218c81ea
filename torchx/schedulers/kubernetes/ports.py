"""Connections to ports of a pod, by ``pods/portforward`` as kubectl has it: SPDY after an upgrade of HTTP.

https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/. By a websocket the end of one direction could not
be passed on. Each connection has an upgrade of its own: all streams of one would be held up by one that is slow.
"""

from __future__ import annotations

import contextlib
import functools
import struct

from torchx.errors import BackendError
from torchx.schedulers.inside import STDERR, STDOUT, Duplex
from torchx.schedulers.kubernetes.client import KubeApi, path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PROTOCOL = {"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "portforward.k8s.io"}
_HEAD = struct.Struct("!II")
"""Of a frame: its stream, or what it controls; flags in 8 bits, and in 24 the length of what follows."""

_ERROR, _DATA = 1, 3
_OPEN, _RESET = 0x80030001, 0x80030003
_FIN = 1


def way_to(api: KubeApi, pod: dict[str, Any]) -> Callable[[int], PodPort] | None:
    """What connects to ports of a pod that runs; None where the cluster refuses that, or has lost its pod's node."""
    path = f"{path_of('Pod', pod['metadata']['namespace'], pod['metadata']['name'])}/portforward"
    try:
        _connect(api, path).close()
    except BackendError:
        return None
    return functools.partial(PodPort, api, path)


def _connect(api: KubeApi, path: str) -> Any:
    """An answer of ``urllib3`` whose ``connection`` leads to the kubelet.

    Raises:
        BackendError: it is refused, or what is between here and there does not know the protocol.
    """
    response = api.upgraded(path, _PROTOCOL)
    if response.status == 101:
        return response
    response.close()
    raise BackendError(f"the Kubernetes API answers with {response.status} and does not forward ports")


class PodPort(Duplex):
    """One connection, as two streams: on the other one it is said why it failed."""

    def __init__(self, api: KubeApi, path: str, port: int) -> None:
        import threading
        import zlib

        self._response = _connect(api, path)  # closes what it is read from when it is forgotten
        self._socket = self._response.connection.sock
        self._socket.settimeout(None)
        self._file = self._socket.makefile("rb")
        self._sending = threading.Lock()
        self._said: bytes | None = b""
        self._over = False
        packer = zlib.compressobj()
        for stream, kind, flags in ((_ERROR, b"error", _FIN), (_DATA, b"data", 0)):
            texts = (b"streamtype", kind, b"port", b"%d" % port, b"requestid", b"0")
            block = struct.pack("!I", 3) + b"".join(struct.pack("!I", len(text)) + text for text in texts)
            packed = packer.compress(block) + packer.flush(zlib.Z_SYNC_FLUSH)
            self._send(_OPEN, flags, struct.pack("!IIH", stream, 0, 0) + packed)

    def _send(self, head: int, flags: int, data: bytes = b"") -> None:
        with self._sending:
            self._socket.sendall(_HEAD.pack(head, flags << 24 | len(data)) + data)

    def write(self, data: bytes) -> None:
        self._send(_DATA, 0, data)

    def close_stdin(self) -> None:
        self._send(_DATA, _FIN)

    def read(self) -> tuple[int, bytes] | None:
        with contextlib.suppress(OSError, ValueError):  # the connection is lost, or closed by us
            while not self._over and len(begin := self._file.read(_HEAD.size)) == _HEAD.size:
                head, rest = _HEAD.unpack(begin)
                data = self._file.read(rest & 0xFFFFFF)
                self._over = head == _RESET or (head == _DATA and bool(rest >> 24 & _FIN))
                if head == _DATA and data:
                    self._said = None
                    return STDOUT, data
                if head == _ERROR and self._said is not None:
                    self._said += data
        said, self._said = self._said, None
        refused = b"connection refused" in (said or b"").lower()
        return (STDERR, b"Connection refused" if refused else said.strip()) if said else None

    def close(self) -> None:
        import socket

        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who reads it
        self._response.close()
