"""Websockets into pods, with a server of our own that speaks `v5.channel.k8s.io` and has real processes behind it."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("urllib3")

import urllib3

from torchx.errors import BackendError, TransientError
from torchx.schedulers.kit.inside import STDERR, STDOUT, Tty
from torchx.schedulers.kubernetes.api.channels import V4, V5, Channels
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.inside import PodProcess

POD = {"metadata": {"namespace": "n", "name": "p"}, "spec": {"containers": [{"name": "main"}]}}
STREAMS = [{"streamtype": kind} for kind in ("error", "stdin", "stdout", "stderr")]
CONT, BINARY, CLOSE, PING, PONG = 0, 2, 8, 9, 10


def frame(data: bytes, kind: int = BINARY, *, last: bool = True) -> bytes:
    """As a server sends it, which does not mask."""
    size = len(data)
    if size < 126:
        length = bytes([size])
    else:
        length = b"\x7e" + struct.pack("!H", size) if size < 1 << 16 else b"\x7f" + struct.pack("!Q", size)
    return bytes([kind | 0x80 * last]) + length + data


class Server:
    """Answers each request by `answer`, which gets it as text; `None`: hangs up. Then does as `script` says.

    Attributes:
        asked: first lines of the requests.
        received: frames: kind and data.
    """

    def __init__(self, answer: Callable[[str], bytes | None], script: Callable[[Server, Any], None]) -> None:
        self.answer, self.script = answer, script
        self.asked: list[str] = []
        self.received: list[tuple[int, bytes]] = []
        self.sending = threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.threads.append(threading.Thread(target=self._serve, args=(self.server.accept()[0],)))
                self.threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rwb", 0) as file:
            text = b""
            while not text.endswith(b"\r\n\r\n"):
                text += file.readline()
            self.asked.append(text.decode())
            answer = self.answer(text.decode())
            if answer is not None:
                file.write(answer)
                if b" 101 " in answer:
                    self.script(self, file)

    def send(self, file: Any, data: bytes) -> None:
        with self.sending, contextlib.suppress(OSError):
            file.write(data)

    def frames(self, file: Any) -> Iterator[tuple[int, bytes]]:
        """What the client sends, until it hangs up: all of it is masked."""

        def exactly(size: int) -> bytes:
            data = b""
            while len(data) < size and (piece := file.read(size - len(data))):
                data += piece
            return data

        while len(head := exactly(2)) == 2:
            assert head[1] & 0x80
            size = head[1] & 127
            if size > 125:
                size = int.from_bytes(exactly(2 if size == 126 else 8), "big")
            key = exactly(4)
            found = head[0], bytes(byte ^ key[i % 4] for i, byte in enumerate(exactly(size)))
            self.received.append(found)
            yield found

    @property
    def verbs(self) -> list[str]:
        return [text.split()[0] for text in self.asked]

    def api(self) -> KubeApi:
        host = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        configuration = SimpleNamespace(host=host, auth_settings=dict)
        client = SimpleNamespace(
            configuration=configuration, rest_client=SimpleNamespace(pool_manager=urllib3.PoolManager())
        )
        return KubeApi(client, sleep=lambda _: None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for thread in self.threads:
            thread.join(60)


def accepted(protocol: str, first: bytes = b"") -> bytes:
    """The first messages come with the answer."""
    words = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: {protocol}"
    return f"{words}\r\n\r\n".encode() + first


def refused(message: str = "") -> bytes:
    body = json.dumps({"message": message}).encode()
    return b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def kubelet(server: Server, file: Any) -> None:
    """Runs the command of the request."""
    command = parse_qs(urlsplit(server.asked[-1].split()[1]).query)["command"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr

        def copy(channel: int, source: Any) -> None:
            while data := source.read1(100_000):
                half = len(data) // 2
                server.send(file, frame(bytes([channel]) + data[:half], last=False) + frame(data[half:], CONT))

        def until_the_end() -> None:
            copies = [threading.Thread(target=copy, args=found) for found in ((1, process.stdout), (2, process.stderr))]
            for thread in copies:
                thread.start()
            for thread in copies:
                thread.join()
            causes = {"causes": [{"reason": "ExitCode", "message": str(process.wait())}]}
            status = json.dumps({"status": "Failure", "details": causes})
            server.send(file, frame(b"\3" + status.encode()) + frame(b"\x03\xe8", CLOSE))

        ending = threading.Thread(target=until_the_end)
        ending.start()
        for _, data in server.frames(file):
            if data[:1] == b"\0":
                process.stdin.write(data[1:])
                process.stdin.flush()
            if data == b"\xff\0":
                process.stdin.close()
        ending.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(answer: Callable[[str], bytes | None], script: Callable[[Server, Any], None] = kubelet) -> Server:
        made.append(Server(answer, script))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("size", [0, 1, 124, 125, 126, 32_768, 300_001])
def test_stdin_ends_before_the_output(serve: Callable[..., Server], size: int) -> None:
    """By a websocket that can do this; a ping is answered, and messages may come in pieces."""
    server = serve(lambda _: accepted(V5, frame(b"\1") + frame(b"still there?", PING)))
    given = bytes(i % 251 for i in range(size))
    with PodProcess(server.api(), POD, ["sh", "-c", "cat; echo err >&2; exit 3"], None) as process:
        for begin in range(0, size, 100_000):
            process.write(given[begin : begin + 100_000])
        process.close_stdin()
        read = [*iter(process.read, None)]
        assert b"".join(data for stream, data in read if stream == STDOUT) == given
        assert b"".join(data for stream, data in read if stream == STDERR) == b"err\n"
        assert process.wait() == 3
    (asked,) = server.asked
    assert asked.startswith("GET /api/v1/namespaces/n/pods/p/exec?container=main&stdin=true&")
    assert f"Sec-WebSocket-Protocol: {V5}\r\n" in asked
    assert (0x80 | PONG, b"still there?") in server.received


def test_a_terminal_takes_the_protocol_of_before(serve: Callable[..., Server]) -> None:
    """Its stdin never ends alone; its size goes to its own channel."""
    done = threading.Event()

    def script(server: Server, file: Any) -> None:
        for _, data in server.frames(file):
            if data[:1] == b"\4":
                done.set()

    server = serve(lambda _: accepted(V4), script)
    process = PodProcess(server.api(), POD, ["sh"], Tty())
    process.write(b"x")
    process.close_stdin()
    process.resize(100, 30)
    assert done.wait(60)
    process._link.close()
    assert [data for _, data in server.received] == [b"\0x", b'\4{"Width": 100, "Height": 30}']
    assert f"Sec-WebSocket-Protocol: {V5}, {V4}\r\n" in server.asked[0]


NO_RIGHT = 'pods "p" is forbidden: User "u" cannot get resource "pods/exec" in API group ""'


@pytest.mark.parametrize(("why", "shown"), [("", False), (NO_RIGHT, True)])
def test_where_it_is_refused_it_is_spdy(serve: Callable[..., Server], why: str, shown: bool) -> None:
    """Websockets are not tried again; if both are refused, a missing right to the first is named."""
    server = serve(lambda text: refused(why if text.startswith("GET") else "not here"))
    api = server.api()
    for verbs in (["GET", "POST"], ["GET", "POST", "POST"]):
        with pytest.raises(BackendError, match="not here") as e:
            PodProcess(api, POD, ["x"], None)
        assert server.verbs == verbs
        assert ("by a websocket" in str(e.value)) is (shown and len(verbs) == 2)


def test_a_command_is_never_sent_twice(serve: Callable[..., Server]) -> None:
    """A connection that is lost before the answer is an error, as the command may have been started."""
    server = serve(lambda _: None)
    with pytest.raises(TransientError, match="does not answer"):
        PodProcess(server.api(), POD, ["x"], None)
    assert server.verbs == ["GET"]
    server = serve(lambda _: accepted("other"), lambda *_: None)
    with pytest.raises(BackendError, match=f"has the protocol `other` instead of {V5}") as e:
        PodProcess(server.api(), POD, ["x"], None)
    assert server.verbs == ["GET"] and "Sec-WebSocket-Protocol" in e.value.hint


def test_where_nobody_listens_it_was_not_sent(serve: Callable[..., Server]) -> None:
    """So the other protocol is tried, with its retries."""
    server = serve(lambda _: None)
    api = server.api()
    server.close()
    slept: list[float] = []
    api.sleep = slept.append
    with pytest.raises(TransientError, match="does not answer"):
        PodProcess(api, POD, ["x"], None)
    assert len(slept) == 4


Read = tuple[int, bytes, bool]


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ([frame(b"\1a"), frame(b"\2b"), frame(b"\3c")], [(5, b"a", False), (7, b"b", False), (1, b"c", False)]),
        ([frame(b"\1"), frame(b"\xff\1")], [(5, b"", False), (5, b"", True)]),
        ([frame(b""), frame(b"\xff"), frame(b"\xff\x09"), frame(b"\x09x"), frame(b"\1a")], [(5, b"a", False)]),
        ([frame(b"\1a", 1), frame(b"", PONG)], [(5, b"a", False)]),
        ([frame(b"\1a", last=False), frame(b"?", PING), frame(b"b", CONT)], [(5, b"ab", False)]),
        ([frame(b"\1" + b"x" * size) for size in (124, 125, 65_534, 65_535)],
         [(5, b"x" * size, False) for size in (124, 125, 65_534, 65_535)]),
        ([frame(b"\1a"), frame(b"", CLOSE), frame(b"\1late")], [(5, b"a", False)]),
        ([frame(b"\1a"), frame(b"\1bc")[:-1]], [(5, b"a", False)]),
        ([frame(b"\1a"), b"\x82"], [(5, b"a", False)]),
        ([b"\x82\x7f" + b"\xff" * 8], []),
        ([], []),
    ],
)  # fmt: skip
def test_what_is_read(serve: Callable[..., Server], sent: list[bytes], read: list[Read]) -> None:
    """In whatever frames; one that is cut, or absurdly long, is the end of the connection."""
    server = serve(lambda _: accepted(V5, b"".join(sent)), lambda *_: None)
    link = Channels(server.api(), "/exec", (V5,), STREAMS, query={})
    assert [link.read() for _ in range(len(read) + 1)] == [*read, (0, b"", True)]
    link.close()
    with pytest.raises(OSError):
        link.write(3, b"x")
