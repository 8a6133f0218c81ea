"""Connections to ports of a pod, and processes in it, with a fake kubelet that speaks SPDY."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("urllib3")

import urllib3

from torchx.errors import BackendError, NotFoundError
from torchx.runner.inside.forward import Forwarding, OwnForwarding, forwarding
from torchx.schedulers.kit.inside import STDERR, STDOUT, Tty
from torchx.schedulers.kit.inside.spawned import SpawnedProcess
from torchx.schedulers.kubernetes import claims
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.inside import PodPort, PodProcess, port_opener

POD = {"metadata": {"namespace": "team", "name": "web-0"}, "spec": {"containers": [{"name": "main"}]}}
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
SYN_REPLY, RESET, PING = 0x80030002, 0x80030003, 0x80030006
FIN = 1
Script = Callable[[Any], None]


def frame(head: int, data: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("!II", head, flags << 24 | len(data)) + data


class Kubelet:
    """Answers each upgrade, and then does as its script says.

    Attributes:
        asked: the requests.
        opened: of each stream, its number, flags and headers.
    """

    def __init__(self, script: Script, answer: bytes = UPGRADED, streams: int = 2) -> None:
        self.script, self.answer, self.streams = script, answer, streams
        self.asked: list[bytes] = []
        self.opened: list[tuple[int, int, dict[bytes, bytes]]] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._accept)
        self.serving: list[threading.Thread] = []
        self.thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.serving.append(threading.Thread(target=self._serve, args=(self.server.accept()[0],)))
                self.serving[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rwb", 0) as file:
            asked = b""
            while not asked.endswith(b"\r\n\r\n"):
                asked += file.readline()
            self.asked.append(asked)
            connection.sendall(self.answer)
            unpacker = zlib.decompressobj()
            for _ in range(self.streams if self.answer == UPGRADED else 0):
                head, flags, data = self.frame(file)
                if not head:
                    return
                assert head == 0x80030001
                stream, _, _, count = *struct.unpack("!IIH", data[:10]), 0
                block = unpacker.decompress(data[10:])
                (count,), rest = struct.unpack("!I", block[:4]), block[4:]
                texts = []
                for _ in range(2 * count):
                    size = int.from_bytes(rest[:4], "big")
                    texts.append(rest[4 : 4 + size])
                    rest = rest[4 + size :]
                self.opened.append((stream, flags, dict(zip(texts[::2], texts[1::2], strict=True))))
                connection.sendall(frame(SYN_REPLY, struct.pack("!I", stream)))
            self.script(file)

    @staticmethod
    def frame(file: Any) -> tuple[int, int, bytes]:
        begin = file.read(8)
        if len(begin) < 8:
            return 0, 0, b""
        head, rest = struct.unpack("!II", begin)
        size, data = rest & 0xFFFFFF, b""
        while len(data) < size:
            data += file.read(size - len(data))
        return head, rest >> 24, data

    def api(self) -> KubeApi:
        configuration = SimpleNamespace(
            host=f"http://127.0.0.1:{self.server.getsockname()[1]}",
            auth_settings=lambda: {"t": {"in": "header", "key": "authorization", "value": "Bearer x"}},
        )
        pools = urllib3.PoolManager()
        client = SimpleNamespace(configuration=configuration, rest_client=SimpleNamespace(pool_manager=pools))
        made = KubeApi(client, sleep=lambda _: None)
        made.websockets = False
        return made

    def way(self) -> Callable[[int], PodPort]:
        found = port_opener(self.api(), POD)
        assert found is not None
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for thread in (self.thread, *self.serving):
            thread.join()


@pytest.fixture
def kubelet() -> Iterator[Callable[..., Kubelet]]:
    made: list[Kubelet] = []

    def make(script: Script = lambda file: None, answer: bytes = UPGRADED, streams: int = 2) -> Kubelet:
        made.append(Kubelet(script, answer, streams))
        return made[-1]

    yield make
    for one in made:
        one.close()


def read_all(port: PodPort) -> list[tuple[int, bytes]]:
    return [*iter(port.read, None)]


def echo(file: Any) -> None:
    """Returns all data after the stream's end."""
    said = b""
    while True:
        head, flags, data = Kubelet.frame(file)
        said += data
        if head != 3 or flags & FIN:
            break
    file.write(frame(PING, b"\0\0\0\1") + frame(3, said) + frame(3, b"", FIN) + frame(1, b"", FIN))


def test_one_direction_ends_before_the_other(kubelet: Callable[..., Kubelet]) -> None:
    """Data is received after the end of sending; streams are opened by the protocol, with our credentials."""
    node = kubelet(echo)
    with node.way()(8080) as port:
        port.write(b"hello, ")
        port.write("世界".encode())
        port.close_stdin()
        assert read_all(port) == [(STDOUT, "hello, 世界".encode())]
        assert port.read() is None
    first = node.asked[-1].split(b"\r\n")
    assert first[0] == b"POST /api/v1/namespaces/team/pods/web-0/portforward HTTP/1.1"
    for header in (b"Upgrade: SPDY/3.1", b"Connection: Upgrade", b"X-Stream-Protocol-Version: portforward.k8s.io"):
        assert header in first
    assert b"authorization: Bearer x" in first
    assert node.opened == [
        (1, FIN, {b"streamtype": b"error", b"port": b"8080", b"requestid": b"0"}),
        (3, 0, {b"streamtype": b"data", b"port": b"8080", b"requestid": b"0"}),
    ]


ENDS: dict[str, tuple[list[bytes], list[tuple[int, bytes]]]] = {
    "refused": (
        [frame(1, b"error forwarding: socat[1] E connect: "), frame(1, b"Connection refused\n"), frame(3, b"", FIN)],
        [(STDERR, b"Connection refused")],
    ),
    "another reason": ([frame(1, b"no such pod \n", FIN), frame(3, b"", FIN)], [(STDERR, b"no such pod")]),
    "the end with the last bytes": ([frame(3, b"last", FIN)], [(STDOUT, b"last")]),
    "an error after bytes": ([frame(3, b"some"), frame(1, b"reset by peer"), frame(3, b"", FIN)], [(STDOUT, b"some")]),
    "reset": ([frame(3, b"some"), frame(RESET, b"\0\0\0\3\0\0\0\1")], [(STDOUT, b"some")]),
    "cut within a frame": ([frame(3, b"some"), frame(3, b"whole")[:5]], [(STDOUT, b"some")]),
    "cut at once": ([], []),
}


@pytest.mark.parametrize("case", ENDS)
def test_how_connections_end(kubelet: Callable[..., Kubelet], case: str) -> None:
    """With the reason if no data was received; further reads report the end of the connection."""
    sent, expected = ENDS[case]
    release = threading.Event()

    def script(file: Any) -> None:
        file.write(b"".join(sent))
        if not case.startswith("cut"):
            release.wait(30)

    node = kubelet(script)
    try:
        with node.way()(1) as port:
            assert read_all(port) == expected
            assert port.read() is None
    finally:
        release.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=["no right", "a proxy refuses it", "a proxy takes it for something else"],
)
def test_where_it_is_refused_a_relay_does_it(kubelet: Callable[..., Kubelet], answer: bytes) -> None:
    """A process in the replica relays the connections."""
    node = kubelet(answer=answer)
    made = forwarding(SpawnedProcess, lambda: port_opener(node.api(), POD), [(1, 0)])
    with made:
        assert type(made) is Forwarding


def test_forwarding_ends(kubelet: Callable[..., Kubelet]) -> None:
    """After the replica is found to have ended, at the latest after a failed connection, or by `close`."""
    node = kubelet(lambda file: file.write(frame(1, b"Connection refused") + frame(3, b"", FIN)))
    found: list[Any] = [node.way()]

    def find() -> Any:
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    with OwnForwarding(node.way(), find, [(7, 0)]) as made:
        heard: list[str] = []
        made.on_refusal(heard.append)
        found[0] = NotFoundError("it does not run")
        with socket.create_connection(("127.0.0.1", made.local_ports[0])) as connection:
            assert connection.recv(1) == b""
        assert heard == ["port 7: Connection refused"]
        node.close()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", made.local_ports[0])) as connection:
            connection.recv(1)
        with pytest.raises(NotFoundError, match="it does not run"):
            made.run()
        assert "does not answer" in heard[1]
    with pytest.raises(BackendError, match="has ended"):
        made.run()


def entered(node: Kubelet, tty: Tty | None = None) -> PodProcess:
    return PodProcess(node.api(), POD, ["cat", "", "a b"], tty)


def failure(*causes: dict[str, str], message: str = "it failed") -> bytes:
    return json.dumps({"status": "Failure", "message": message, "details": {"causes": [*causes]}}).encode()


def test_streams_of_a_process(kubelet: Callable[..., Kubelet]) -> None:
    """Each is opened by its name, stdin can be closed, and the status is joined from its parts."""
    said = []

    def script(file: Any) -> None:
        while not (frame_ := Kubelet.frame(file))[1] & FIN:
            said.append(frame_)
        said.append(frame_)
        status = failure({"reason": "ExitCode", "message": "7"})
        file.write(frame(5, b"out") + frame(7, b"err") + frame(1, status[:9]) + frame(1, status[9:]))

    node = kubelet(script, streams=4)
    with entered(node) as process:
        process.write(b"x" * 70_000)
        process.close_stdin()
        assert [*iter(process.read, None)] == [(STDOUT, b"out"), (STDERR, b"err")]
        assert process.wait() == 7
        process.close_stdin()  # nothing happens
    assert [(head, len(data), flags) for head, flags, data in said] == [(3, 65536, 0), (3, 4464, 0), (3, 0, FIN)]
    assert [texts[b"streamtype"] for _, _, texts in node.opened] == [b"error", b"stdin", b"stdout", b"stderr"]
    line, *headers = node.asked[0].split(b"\r\n")
    assert line.startswith(b"POST /api/v1/namespaces/team/pods/web-0/exec?container=main&stdin=true&stdout=true&")
    assert line.endswith(b"&stderr=true&tty=false&" + line[line.index(b"command=") :])
    assert line.endswith(b"&command=sh&command=cat&command=&command=a+b HTTP/1.1")
    assert b"X-Stream-Protocol-Version: v4.channel.k8s.io" in headers


def test_a_terminal_has_a_size_and_no_stderr(kubelet: Callable[..., Kubelet]) -> None:
    """The size has its own stream; the end of stdin is a character."""
    said = []

    def script(file: Any) -> None:
        said.append(Kubelet.frame(file))
        file.write(frame(1, b'{"status":"Success"}', FIN))

    node = kubelet(script, streams=4)
    with entered(node, Tty()) as process:
        process.close_stdin()
        process.resize(100, 30)
        assert process.read() is None
        assert process.wait() == 0
    assert said == [(7, 0, b'{"Width": 100, "Height": 30}')]
    assert [texts[b"streamtype"] for _, _, texts in node.opened] == [b"error", b"stdin", b"stdout", b"resize"]
    assert b"stderr=false&tty=true&" in node.asked[0]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "the connection to the cluster was lost"),
        (frame(1, b"{not JSON"), "the connection to the cluster was lost"),
        (frame(1, failure(message="no such shell"), FIN), "no such shell"),
        (frame(RESET, b"\0\0\0\1\0\0\0\1"), "the connection to the cluster was lost"),
    ],
    ids=["cut", "no status", "no exit code", "reset"],
)
def test_an_end_that_is_not_known(kubelet: Callable[..., Kubelet], sent: bytes, why: str) -> None:
    """There is no exit code, and signals cannot be sent."""
    node = kubelet(lambda file: file.write(sent), streams=4)
    with entered(node) as process:
        assert process.read() is None
        with pytest.raises(BackendError, match=f"exit code of the command is unknown: {why}"):
            process.wait()
    assert len(node.asked) == 1


def test_who_passes_no_streams_is_named(kubelet: Callable[..., Kubelet]) -> None:
    """A proxy may answer the upgrade like an ordinary request."""
    node = kubelet(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    with pytest.raises(BackendError, match="does not support streams"):
        entered(node)


def test_the_pod_that_reads_claims_is_like_the_one_that_ended() -> None:
    """Same image, user and nodes; only its claims, read-only; nothing of secrets, labels and sizes; it ends by itself."""
    claim = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
    mounts = [{"name": "d", "mountPath": "/d", "subPath": "s"}, {"name": "e", "mountPath": "/e"}]
    container = {
        "name": "w",
        "image": "i",
        "volumeMounts": mounts,
        "workingDir": "/d/w",
        "securityContext": {"runAsUser": 7},
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "volumes": [claim, {"name": "e", "secret": {"secretName": "s"}}],
        "tolerations": [{"key": "gpu"}],
        "serviceAccountName": "powerful",
    }
    about = {"name": "p", "namespace": "n", "labels": {"a": "b"}, "ownerReferences": [{"uid": "u", "controller": True}]}
    api: Any = None
    places = claims.kept(api, {"metadata": about, "spec": spec})
    assert [(place.where, place.folder, place.within) for place in places] == [
        ("claim `data`:/d/w", "/d/w", ("/d",)),
        ("claim `data`:/d", "/d", ("/d",)),
    ]
    made = claims._helper({"metadata": about, "spec": spec}, [{**mounts[0], "readOnly": True}])
    assert "labels" not in made["metadata"] and made["metadata"]["ownerReferences"][0]["controller"] is False
    helper = made["spec"]
    assert helper["volumes"] == [claim] and helper["tolerations"] == [{"key": "gpu"}]
    assert "serviceAccountName" not in helper and helper["automountServiceAccountToken"] is False
    assert 0 < helper["activeDeadlineSeconds"] <= 3600
    (one,) = helper["containers"]
    assert (one["image"], one["securityContext"], one["volumeMounts"]) == ("i", {"runAsUser": 7}, [{**mounts[0], "readOnly": True}])  # fmt: skip
    without = {**spec, "volumes": spec["volumes"][1:]}
    assert claims.kept(api, {"metadata": about, "spec": without}) == []
