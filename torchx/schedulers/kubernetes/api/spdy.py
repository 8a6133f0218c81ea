"""Streams to the node of a pod: SPDY after an HTTP upgrade, as in kubectl.

https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/. Flow control windows are not used by either side.
For commands it is what :mod:`~torchx.schedulers.kubernetes.api.channels` fall back to, and no longer needed for them
where no API server is older than 1.30.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from torchx.errors import BackendError, TransientError
from torchx.schedulers.kubernetes.client import KubeApi

_HEAD = struct.Struct("!II")
"""Head of a frame: stream or control type; flags (8 bits) and length of the data (24 bits)."""

_OPEN, _RESET = 0x80030001, 0x80030003
_FIN = 1
_PIECE = _READ_AHEAD = 1 << 16


class Upgraded:
    """A connection that was switched from HTTP to another protocol by the ``response``. One thread may read while
    others write.
    """

    def __init__(self, response: Any) -> None:
        self._response = response  # keep it: garbage collection closes the connection
        self._socket = response.connection.sock
        self._socket.settimeout(None)
        self._sending = threading.Lock()

    def settimeout(self, seconds: float) -> None:
        """Treat the connection as lost after this many seconds without traffic."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Close the connection, which wakes the thread that reads it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._response.close()


class Spdy(Upgraded):
    """One connection with its streams.

    ``path`` is a subresource of a pod, such as ``exec``. ``streams`` are the headers of the streams to open, whose
    numbers will be 1, 3, 5 and so on; nothing is ever written to those in ``ended``. BackendError if the server rejects
    the request, or a proxy on the way does not support SPDY.
    """

    def __init__(
        self,
        api: KubeApi,
        path: str,
        protocol: str,
        streams: Sequence[Mapping[str, str]],
        *,
        query: Mapping[str, object] | None = None,
        ended: Sequence[int] = (),
    ) -> None:
        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": protocol}
        response = api.upgraded(path, query or {}, headers)
        if response.status != 101:
            response.close()
            raise BackendError(
                f"the Kubernetes API answers `{path}` with {response.status}: a proxy on the way does not support"
                " streams",
                hint="SPDY, or websockets to an API server since 1.30, must pass the proxy or gateway of the cluster",
            )
        super().__init__(response)
        self._file = self._socket.makefile("rb", _READ_AHEAD)
        packer = zlib.compressobj()
        for i, texts in enumerate(streams):
            words = [word.encode() for item in texts.items() for word in item]
            block = struct.pack("!I", len(texts)) + b"".join(struct.pack("!I", len(word)) + word for word in words)
            packed = packer.compress(block) + packer.flush(zlib.Z_SYNC_FLUSH)
            number = 2 * i + 1
            try:
                self._put(_OPEN, _FIN if number in ended else 0, struct.pack("!IIH", number, 0, 0) + packed)
            except OSError as e:
                raise TransientError(f"the connection to the Kubernetes API was lost: {e}") from None

    def write(self, stream: int, data: bytes) -> None:
        """Send all data; raises an OSError if the connection has ended."""
        for begin in range(0, len(data), _PIECE):
            self._put(stream, 0, data[begin : begin + _PIECE])

    def end(self, stream: int) -> None:
        """Close a stream for writing."""
        self._put(stream, _FIN)

    def _put(self, head: int, flags: int, data: bytes = b"") -> None:
        with self._sending:
            self._socket.sendall(_HEAD.pack(head, flags << 24 | len(data)) + data)

    def read(self) -> tuple[int, bytes, bool]:
        """Receive data: the stream, the data, and whether the stream ends. Stream 0 if the connection has ended."""
        with contextlib.suppress(OSError, ValueError):  # the connection was lost, or closed by us
            while len(begin := self._file.read(_HEAD.size)) == _HEAD.size:
                head, rest = _HEAD.unpack(begin)
                size = rest & 0xFFFFFF
                data = self._file.read(size)
                if len(data) < size:
                    break
                if head == _RESET:
                    return int.from_bytes(data[:4], "big"), b"", True
                if not head >> 31:  # the highest bit marks control frames
                    return head, data, bool(rest >> 24 & _FIN)
        return 0, b"", True

    def close(self) -> None:
        super().close()
        self._file.close()
