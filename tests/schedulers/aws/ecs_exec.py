"""The far end of ECS Exec for tests: ExecuteCommand, and the agent in a container that speaks the data channel.

Written from AWS's published client and agent (https://github.com/aws/amazon-ssm-agent). As there: a handshake, then what is
read from a terminal goes out as numbered messages of 1024 bytes at most, each sent again until it is acknowledged; what
comes in is taken in its order, acknowledged before it is used and not a second time, and what is no text is changed on
the way out. What runs in the terminals is real.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import queue
import random
import shlex
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from tests.schedulers.aws.batch_cloud import Meta, validate

HEAD = struct.Struct(">I32sIQqQ16s32sII")
BINARY, TEXT, CLOSE, PING, PONG = 2, 1, 8, 9, 10


class Terminal(Protocol):
    """A process in a terminal."""

    def read(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def resize(self, columns: int, rows: int) -> None: ...
    def close(self) -> None: ...


class FarEnd:
    """Give it to a scheduler as its client of ECS.

    Args:
        start: a terminal in which these words run.
        asks: what the agent asks of its client in the handshake besides the type of the session.
    """

    meta = Meta()

    def __init__(self, start: Callable[[list[str]], Terminal], *, asks: tuple[str, ...] = ()) -> None:
        self.start, self.asks = start, asks
        self.calls: list[dict[str, Any]] = []
        self.faults: list[Exception] = []
        self.lossy: random.Random | None = None
        """Loses, doubles and delays messages of data, both ways."""
        self.lost = 0
        self.sessions: list[Session] = []
        self._commands: dict[str, str] = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def execute_command(self, **params: Any) -> dict[str, Any]:
        validate("ecs", "execute_command", params)
        assert params["interactive"] is True
        self.calls.append(params)
        if self.faults:
            raise self.faults.pop(0)
        token = str(uuid.uuid4())
        self._commands[token] = params["command"]
        session = {"sessionId": token, "streamUrl": f"ws://127.0.0.1:{self.port}/{token}", "tokenValue": token}
        return {"clusterArn": params["cluster"], "taskArn": params["task"], "interactive": True, "session": session}

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                session = Session(self, connection, self._commands)
                self.sessions.append(session)
                threading.Thread(target=session.run, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for session in self.sessions:
            session.close()


class Session:
    def __init__(self, far: FarEnd, connection: socket.socket, commands: dict[str, str]) -> None:
        self.far, self.connection, self.commands = far, connection, commands
        self.terminal: Terminal | None = None
        self.sending = threading.Lock()
        self.unacknowledged: dict[int, tuple[bytes, float]] = {}
        self.sent = self.expected = 0
        self.early: dict[int, tuple[int, bytes]] = {}
        # Used by a thread of its own: while a terminal takes nothing, acknowledgements of its output are still read.
        self.inputs: queue.SimpleQueue[tuple[int, int, bytes, bytes] | None] = queue.SimpleQueue()
        self.complete = threading.Event()
        self.over = False
        self.errors: list[str] = []
        self.stream = connection.makefile("rb", 1 << 16)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # -- the websocket

    def run(self) -> None:
        try:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.stream.read(1)
            key = next(
                line[18:].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:")
            )
            accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            self.connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
            )
            while (frame := self.frame()) is not None:
                self.take(*frame)
        except OSError:
            pass
        except AssertionError as e:
            self.errors.append(str(e))
            raise
        finally:
            self.over = True
            self.inputs.put(None)
            self.stream.close()

    def frame(self) -> tuple[int, bytes] | None:
        head = self.stream.read(2)
        if len(head) < 2:
            return None
        opcode, size = head[0] & 15, head[1] & 127
        assert head[1] & 128, "a client masks"
        if size > 125:
            size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
        mask = self.stream.read(4)
        data = self.stream.read(size)
        whole = (mask * (size // 4 + 1))[:size]
        return opcode, (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")

    def put(self, opcode: int, data: bytes) -> None:
        size = len(data)
        head = bytes([128 | opcode, size]) if size < 126 else bytes([128 | opcode, 126]) + size.to_bytes(2, "big")
        with self.sending, contextlib.suppress(OSError):
            self.connection.sendall(head + data)

    # -- the data channel

    def message(self, kind: str, number: int, type_: int, payload: bytes) -> bytes:
        one = uuid.uuid4().bytes
        digest = hashlib.sha256(payload).digest()
        head = (116, kind.encode().ljust(32, b"\0"), 1, int(time.time() * 1000), number, 0)
        return HEAD.pack(*head, one[8:] + one[:8], digest, type_, len(payload)) + payload

    def send(self, type_: int, payload: bytes) -> None:
        data = self.message("output_stream_data", self.sent, type_, payload)
        self.unacknowledged[self.sent] = (data, time.monotonic())
        self.sent += 1
        if not self.lose():
            self.put(BINARY, data)
            if self.lose():
                self.put(BINARY, data)

    def lose(self) -> bool:
        lost = self.far.lossy is not None and self.far.lossy.random() < 0.05
        self.far.lost += lost
        return lost

    def again(self) -> None:
        while not self.over:
            time.sleep(0.1)
            number = next(iter(list(self.unacknowledged)), None)
            found = self.unacknowledged.get(number) if number is not None else None
            if found and time.monotonic() > found[1] + 0.2:
                self.put(BINARY, found[0])

    def take(self, opcode: int, data: bytes) -> None:
        if opcode == TEXT:
            self.open(json.loads(data))
        elif opcode == PING:
            self.put(PONG, data)
        elif opcode == BINARY:
            self.take_message(data)

    def take_message(self, data: bytes) -> None:
        length, kind, version, at, number, flags, halves, digest, type_, size = HEAD.unpack_from(data)
        payload = data[120:]
        assert (length, version, size) == (116, 1, len(payload)), "the head is not as AWS has it"
        assert abs(at / 1000 - time.time()) < 600
        assert hashlib.sha256(payload).digest() == digest
        name = kind.decode().rstrip(" ")
        if name == "acknowledge":
            content = json.loads(payload)
            assert (flags, content["IsSequentialMessage"]) == (3, True)
            number = content["AcknowledgedMessageSequenceNumber"]
            held = self.unacknowledged.pop(number, None)
            if held:
                own = HEAD.unpack_from(held[0])[6]
                assert content["AcknowledgedMessageId"] == str(uuid.UUID(bytes=own[8:] + own[:8]))
            return
        assert name == "input_stream_data", name
        assert flags == 0
        assert size <= 1024 or type_ == 6
        self.inputs.put((number, type_, payload, halves))

    def use_inputs(self) -> None:
        while (found := self.inputs.get()) is not None:
            number, type_, payload, halves = found
            if self.lose() or number < self.expected:
                continue
            content = {
                "AcknowledgedMessageType": "input_stream_data",
                "AcknowledgedMessageId": str(uuid.UUID(bytes=halves[8:] + halves[:8])),
                "AcknowledgedMessageSequenceNumber": number,
                "IsSequentialMessage": True,
            }
            self.put(BINARY, self.message("acknowledge", 0, 0, json.dumps(content).encode()))
            self.early[number] = (type_, payload)
            while self.expected in self.early:
                type_, payload = self.early.pop(self.expected)
                self.expected += 1
                self.use(type_, payload)

    def open(self, opening: dict[str, str]) -> None:
        assert opening.keys() == {"MessageSchemaVersion", "RequestId", "TokenValue", "ClientId", "ClientVersion"}
        assert opening["MessageSchemaVersion"] == "1.0"
        self.command = self.commands.pop(opening["TokenValue"])
        actions = [{"ActionType": "SessionType", "ActionParameters": {"SessionType": "InteractiveCommands"}}]
        actions += [{"ActionType": kind, "ActionParameters": {}} for kind in self.far.asks]
        self.put(BINARY, self.message("start_publication", 0, 0, b""))
        threading.Thread(target=self.again, daemon=True).start()
        threading.Thread(target=self.use_inputs, daemon=True).start()
        self.send(5, json.dumps({"AgentVersion": "3.3.0.0", "RequestedClientActions": actions}).encode())

    def use(self, type_: int, payload: bytes) -> None:
        if type_ == 6:
            answer = json.loads(payload)
            assert answer.keys() == {"ClientVersion", "ProcessedClientActions", "Errors"}
            if all(action["ActionStatus"] == 1 for action in answer["ProcessedClientActions"]):
                self.send(7, json.dumps({"HandshakeTimeToComplete": 1, "CustomerMessage": ""}).encode())
                threading.Thread(target=self.pump, daemon=True).start()
                self.complete.set()
        elif self.terminal is None:
            pass  # as the agent does: it is acknowledged and ignored
        elif type_ == 1:
            with contextlib.suppress(OSError):
                self.terminal.write(payload)
        elif type_ == 3:
            size = json.loads(payload)
            self.terminal.resize(size["cols"], size["rows"])

    def pump(self) -> None:
        try:
            self.terminal = self.far.start(shlex.split(self.command))
        except OSError as e:
            self.closed(f"Unable to start command: {e}")
            return
        with contextlib.suppress(OSError):
            while data := self.terminal.read():
                for begin in range(0, len(data), 1024):
                    while (
                        len(self.unacknowledged) > 5000 and not self.over
                    ):  # the agent would lose what is beyond 10,000
                        time.sleep(0.01)
                    self.send(1, data[begin : begin + 1024])
        deadline = time.monotonic() + 60
        while self.unacknowledged and not self.over and time.monotonic() < deadline:
            time.sleep(0.01)
        self.closed("")

    def closed(self, said: str) -> None:
        content = {"MessageType": "channel_closed", "SessionId": "s", "SchemaVersion": 1, "Output": said}
        self.put(BINARY, self.message("channel_closed", 0, 0, json.dumps(content).encode()))
        self.put(CLOSE, (1000).to_bytes(2, "big"))
        self.over = True

    def cut(self) -> None:
        """Ends the connection; what runs there goes on."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self.connection.close()
        if self.terminal is not None:
            self.terminal.close()
