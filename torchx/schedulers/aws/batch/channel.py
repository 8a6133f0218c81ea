"""The data channel of an ECS Exec session: a websocket that carries numbered messages in both directions.

A data message is sent again until it is acknowledged, and received messages are processed in order of their numbers.
There is no specification: the format follows AWS's client and agent,
https://github.com/aws/session-manager-plugin and https://github.com/aws/amazon-ssm-agent.
"""

from __future__ import annotations

import hashlib
import json
import select
import struct
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from torchx.errors import NotSupportedError, TorchXError, TransientError
from torchx.util.foreign import loads

_Message = tuple[str, int, int, bytes, uuid.UUID]
"""Kind, sequence number, payload type (of data messages), payload, and id."""

INPUT, OUTPUT = "input_stream_data", "output_stream_data"
ACKNOWLEDGE, CLOSED = "acknowledge", "channel_closed"
DATA, SIZE, HANDSHAKE, HANDSHAKE_ANSWER = 1, 3, 5, 6
# Length of the header without its last field, kind, version, milliseconds since the epoch, number, flags, id with its
# halves swapped, SHA-256 of the payload, type, length of the payload.
_HEAD = struct.Struct(">I32sIQqQ16s32sII")
_CLIENT = "1.2.0.0"  # the version of AWS's client that this code follows
_PIECE = 1024
_WINDOW = 64
"""Limit of unacknowledged messages: the agent writes them into the terminal, which may block."""
_AGAIN_S, _AGAIN_MOST_S = 1.0, 30.0
_START_S, _PING_S, _TICK_S = 60.0, 60.0, 0.25


def pack(message: _Message) -> bytes:
    """Serializes a message.

    >>> unpack(pack((INPUT, 7, DATA, b"ls", uuid.UUID(int=1))))[:4]
    ('input_stream_data', 7, 1, b'ls')
    """
    kind, number, type_, payload, own = message
    flags, halves = 3 if kind == ACKNOWLEDGE else 0, own.bytes[8:] + own.bytes[:8]
    head = (_HEAD.size - 4, kind.ljust(32).encode(), 1, int(time.time() * 1000), number, flags, halves)
    return _HEAD.pack(*head, hashlib.sha256(payload).digest(), type_, len(payload)) + payload


def unpack(data: bytes) -> _Message | None:
    """Parses a message; None if it is invalid or damaged."""
    if len(data) < _HEAD.size:
        return None
    length, kind, _, _, number, _, halves, digest, type_, size = _HEAD.unpack_from(data)
    payload = data[length + 4 :]
    if size and hashlib.sha256(payload).digest() != digest:
        return None
    name = kind.strip(b" \0").decode("ascii", "replace")
    return (name, number, type_, payload, uuid.UUID(bytes=halves[8:] + halves[:8]))


class DataChannel:
    """An open session. One thread may read while another one writes.

    Args:
        session: ``session`` in the answer of ExecuteCommand.
        by_hand: the equivalent command line of AWS's client, for hints.

    Attributes:
        ended: whether the agent has closed the session.
        closing_message: the agent's closing message, mostly empty.
    """

    def __init__(self, session: Mapping[str, str], by_hand: str) -> None:
        import websocket

        self._by_hand = by_hand
        self._changed = threading.Condition()
        self._pieces: list[bytes] = []
        self._unacknowledged: dict[int, tuple[bytes, float, float]] = {}  # number -> message, due time, pause
        self._early: dict[int, tuple[int, bytes]] = {}
        self._sent = self._taken = 0
        self._problem: TorchXError | None = None
        self._patience_s: float | None = None
        self.ended = self._over = False
        self.closing_message = ""
        try:
            self._socket: Any = websocket.create_connection(session["streamUrl"], timeout=_START_S)
            opening = {
                "MessageSchemaVersion": "1.0",
                "RequestId": str(uuid.uuid4()),
                "TokenValue": session["tokenValue"],
                "ClientId": str(uuid.uuid4()),
                "ClientVersion": _CLIENT,
            }
            self._socket.send(json.dumps(opening))
        except (OSError, websocket.WebSocketException) as e:
            raise TransientError(
                f"the session of ECS Exec cannot be opened: {e}", hint=f"is there a proxy in between? {by_hand}"
            ) from None
        self._socket.settimeout(None)
        threading.Thread(target=self._receive, daemon=True).start()

    def write(self, data: bytes) -> None:
        """Sends input. Raises BrokenPipeError if the session has ended."""
        for begin in range(0, len(data), _PIECE):
            self._send(DATA, data[begin : begin + _PIECE])

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size of the terminal."""
        self._send(SIZE, json.dumps({"cols": columns, "rows": rows}).encode())

    def _send(self, type_: int, payload: bytes, *, wait: bool = True) -> None:
        with self._changed:
            while wait and len(self._unacknowledged) >= _WINDOW and not self._over:
                self._changed.wait()
            if self._over:
                raise BrokenPipeError("the session has ended")
            message = pack((INPUT, self._sent, type_, payload, uuid.uuid4()))
            self._unacknowledged[self._sent] = (message, time.monotonic() + _AGAIN_S, _AGAIN_S)
            self._sent += 1
        self._put(message)  # outside the lock: the receiver restores the order

    def _put(self, message: bytes) -> None:
        import websocket

        try:
            self._socket.send_binary(message)
        except (OSError, websocket.WebSocketException) as e:
            self._end()
            raise BrokenPipeError("the session has ended") from e

    def _send_again(self) -> None:
        """Sends the oldest unacknowledged message again when it is due, with growing pauses."""
        now = time.monotonic()
        with self._changed:
            number = next(iter(self._unacknowledged), None)
            if number is None or now < self._unacknowledged[number][1]:
                return
            message, _, pause = self._unacknowledged[number]
            self._unacknowledged[number] = (message, now + pause, min(2 * pause, _AGAIN_MOST_S))
        self._put(message)

    def settimeout(self, seconds: float) -> None:
        """Sets the default timeout of :meth:`read`."""
        self._patience_s = seconds

    def read(self, timeout_s: float | None = None) -> bytes:
        """The next output; empty at the end, or after the timeout."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._pieces or self._over, self._patience_s if timeout_s is None else timeout_s
            )
            if self._problem is not None:
                raise self._problem
            found, self._pieces = b"".join(self._pieces), []
            return found

    def _receive(self) -> None:
        """Receives messages until the end, in a thread of its own: the agent does not wait for a slow reader."""
        import websocket

        pinged = time.monotonic()
        try:
            while not self._over:
                self._send_again()
                if time.monotonic() > pinged + _PING_S:
                    pinged = time.monotonic()
                    self._socket.ping()
                buffered = getattr(self._socket.sock, "pending", int)()  # by TLS
                if not buffered and not select.select([self._socket.sock], [], [], _TICK_S)[0]:
                    continue
                opcode, data = self._socket.recv_data(control_frame=True)  # return after a pong, too
                if opcode == websocket.ABNF.OPCODE_CLOSE:
                    break
                message = unpack(data)
                if message is not None:
                    self._take(*message)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, websocket.WebSocketException):
            pass  # the connection was lost or closed, or the message is invalid
        finally:
            self._end()

    def _take(self, kind: str, number: int, type_: int, payload: bytes, which: uuid.UUID) -> None:
        if kind == ACKNOWLEDGE:
            with self._changed:
                self._unacknowledged.pop(int(loads(payload)["AcknowledgedMessageSequenceNumber"]), None)
                self._changed.notify_all()
        elif kind == CLOSED:
            self.ended, self.closing_message = True, str(loads(payload).get("Output") or "")
            self._end()
        elif kind == OUTPUT:
            content = {
                "AcknowledgedMessageType": kind,
                "AcknowledgedMessageId": str(which),
                "AcknowledgedMessageSequenceNumber": number,
                "IsSequentialMessage": True,
            }
            self._put(pack((ACKNOWLEDGE, 0, 0, json.dumps(content).encode(), uuid.uuid4())))
            if number >= self._taken:
                self._early[number] = (type_, payload)
            while self._taken in self._early:
                type_, payload = self._early.pop(self._taken)
                self._taken += 1
                if type_ == HANDSHAKE:
                    self._answer(loads(payload))
                elif type_ == DATA:
                    with self._changed:
                        self._pieces.append(payload)
                        self._changed.notify_all()

    def _answer(self, asked: Mapping[str, Any]) -> None:
        """Answers the agent's handshake: accepts the session type, and refuses other actions, such as encryption."""
        actions = [str(action.get("ActionType")) for action in asked.get("RequestedClientActions") or ()]
        others = [action for action in actions if action != "SessionType"]
        if others:
            self._problem = NotSupportedError(
                f"sessions of ECS Exec in this cluster require {', '.join(others)}, which torchx does not support",
                hint=f"by hand: {self._by_hand}",
            )
            self._end()
            return
        done = [{"ActionType": action, "ActionStatus": 1, "ActionResult": None, "Error": ""} for action in actions]
        answer = {"ClientVersion": _CLIENT, "ProcessedClientActions": done, "Errors": []}
        self._send(HANDSHAKE_ANSWER, json.dumps(answer).encode(), wait=False)

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the connection. The command in the container continues."""
        self._end()
        self._socket.shutdown()
