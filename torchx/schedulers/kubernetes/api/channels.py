"""Streams to the node of a pod in a websocket, as in kubectl since 1.31, for gateways that do not pass SPDY.

RFC 6455, and https://kep.k8s.io/4006. The frames are made here: importing the package ``websocket`` takes longer than
a whole ``exec`` may, and ``kubernetes.stream``, which does not know the credentials and proxies of :class:`KubeApi`,
many times that.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Mapping, Sequence

from torchx.errors import BackendError, NotFoundError, TorchXError
from torchx.schedulers.kubernetes.api.errors import ApiError
from torchx.schedulers.kubernetes.api.spdy import Upgraded
from torchx.schedulers.kubernetes.client import KubeApi

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
"""Subprotocols. ``V4`` cannot end one direction alone; servers before 1.30 refuse ``V5`` by default."""

_CHANNELS = {"stdin": b"\0", "stdout": b"\1", "stderr": b"\2", "error": b"\3", "resize": b"\4"}
_END = b"\xff"
"""The channel by which ``V5`` ends another one, whose number is its data."""

_LAST = 0x80
_MORE, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_PIECE = 1 << 15
"""Bytes in one message; kubectl sends as many."""
_LONGEST = 1 << 24


class Channels(Upgraded):
    """One websocket with a channel for each stream, which have the numbers and methods of
    :class:`~torchx.schedulers.kubernetes.api.spdy.Spdy`.

    ``protocols`` are acceptable, the best one first. TorchXError if the server does not accept any, see
    :func:`is_refusal`.
    """

    def __init__(
        self,
        api: KubeApi,
        path: str,
        protocols: Sequence[str],
        streams: Sequence[Mapping[str, str]],
        *,
        query: Mapping[str, object],
    ) -> None:
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Protocol": ", ".join(protocols),
        }
        response = api.upgraded(path, query, headers, websocket=True)
        chosen = response.headers.get("Sec-WebSocket-Protocol")
        if response.status != 101:
            response.close()
            raise ApiError(
                f"the Kubernetes API answers `{path}` with {response.status} instead of a websocket",
                status=response.status,
            )
        super().__init__(response)
        if chosen not in protocols:
            self.close()
            raise BackendError(
                f"a websocket to `{path}` has the protocol `{chosen}` instead of {' or '.join(protocols)}",
                hint="the proxy or gateway of the cluster must pass the header `Sec-WebSocket-Protocol`",
            )
        self._file = response._fp.fp  # the first messages may be in its buffer
        self._channels = {2 * i + 1: _CHANNELS[one["streamtype"]] for i, one in enumerate(streams)}
        self._streams = {channel: stream for stream, channel in self._channels.items()}

    def write(self, stream: int, data: bytes) -> None:
        """Send all data; raises an OSError if the connection has ended."""
        channel = self._channels[stream]
        for begin in range(0, len(data), _PIECE):
            self._put(_BINARY, channel + data[begin : begin + _PIECE])

    def end(self, stream: int) -> None:
        """Close a stream for writing; not possible with ``V4``."""
        self._put(_BINARY, _END + self._channels[stream])

    def _put(self, kind: int, data: bytes) -> None:
        size = len(data)
        length = [size] if size < 126 else [126, *divmod(size, 256)]
        head = bytes([_LAST | kind, _LAST | length[0], *length[1:]])
        key = os.urandom(4)
        mask = (key * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")
        with self._sending:
            self._socket.sendall(head + key + masked)

    def read(self) -> tuple[int, bytes, bool]:
        """Receive data: the stream, the data, and whether the stream ends. Stream 0 if the connection has ended."""
        with contextlib.suppress(OSError, EOFError, ValueError):  # the connection was lost, or closed by us
            while (message := self._message()) is not None:
                channel, data = message[:1], message[1:]
                ends = channel == _END
                if stream := self._streams.get(data[:1] if ends else channel):
                    return stream, b"" if ends else data, ends
        return 0, b"", True

    def _message(self) -> bytes | None:
        """Receive a whole message; None if the server closes the websocket."""
        message = b""
        while True:
            first, size = self._exactly(2)
            if size > 125:
                size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
            data = self._exactly(size)
            kind = first & 15
            if kind == _CLOSE:
                return None
            if kind == _PING and not self._sending.locked():  # a writer that is blocked must not block the reader
                self._put(_PONG, data)
            elif kind in (_MORE, _TEXT, _BINARY):
                message += data
                if first & _LAST:
                    return message

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size) if size <= _LONGEST else b""
        if len(data) < size:
            raise EOFError
        return bytes(data)


def is_refusal(error: TorchXError) -> bool:
    """Whether a websocket was certainly refused, so that no command has been started by it."""
    import urllib3

    never_sent = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
    return isinstance(error, (ApiError, NotFoundError)) or isinstance(error.__context__, never_sent)
