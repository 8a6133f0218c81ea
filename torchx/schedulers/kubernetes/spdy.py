"""Streams to the node of a pod, as kubectl has them: SPDY after an upgrade of HTTP.

https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/. By a websocket the end of one direction could not
be passed on, and the API server takes half as much in a second. Windows are not kept: neither side knows them.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

from torchx.errors import BackendError, TransientError
from torchx.schedulers.kubernetes.client import KubeApi

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEAD = struct.Struct("!II")
"""Of a frame: its stream, or what it controls; flags in 8 bits, and in 24 the length of what follows."""

_OPEN, _RESET = 0x80030001, 0x80030003
_FIN = 1
_PIECE = _READ_AHEAD = 1 << 16


class Spdy:
    """One connection with its streams. One thread may read while others write.

    Args:
        path: a part of a pod, such as its ``exec``.
        protocol: what the streams carry, by the name that Kubernetes has for it.
        streams: the headers of each, all of which are opened. Their numbers are 1, 3, 5 and so on.
        query: parameters of the path.
        ended: the numbers of those that are not written to.

    Raises:
        BackendError: it is refused, or what is between here and there does not know SPDY.
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
        import threading
        import zlib

        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": protocol}
        self._response = api.upgraded(path, query or {}, headers)  # closes what it is read from when it is forgotten
        if self._response.status != 101:
            self._response.close()
            raise BackendError(
                f"the Kubernetes API answers `{path}` with {self._response.status}: what is on the way to it passes no"
                " streams",
                hint="kubectl up to 1.30 needs them, too: SPDY must pass the proxy or the gateway of the cluster",
            )
        self._socket = self._response.connection.sock
        self._socket.settimeout(None)
        self._file = self._socket.makefile("rb", _READ_AHEAD)
        self._sending = threading.Lock()
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
        """Sends all of it; an OSError where the connection has ended."""
        for begin in range(0, len(data), _PIECE):
            self._put(stream, 0, data[begin : begin + _PIECE])

    def end(self, stream: int) -> None:
        """Nothing more will be written to it."""
        self._put(stream, _FIN)

    def _put(self, head: int, flags: int, data: bytes = b"") -> None:
        with self._sending:
            self._socket.sendall(_HEAD.pack(head, flags << 24 | len(data)) + data)

    def read(self) -> tuple[int, bytes, bool]:
        """The next data of a stream, and whether it ends with it; stream 0: there is no connection any more."""
        with contextlib.suppress(OSError, ValueError):  # it is lost, or closed by us
            while len(begin := self._file.read(_HEAD.size)) == _HEAD.size:
                head, rest = _HEAD.unpack(begin)
                size = rest & 0xFFFFFF
                data = self._file.read(size)
                if len(data) < size:
                    break
                if head == _RESET:
                    return int.from_bytes(data[:4], "big"), b"", True
                if not head >> 31:  # data: what controls has the highest bit
                    return head, data, bool(rest >> 24 & _FIN)
        return 0, b"", True

    def settimeout(self, seconds: float) -> None:
        """From now on, the connection counts as lost where nothing passes for so long."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Lets go of the connection, which wakes whoever reads it."""
        import socket

        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._response.close()
