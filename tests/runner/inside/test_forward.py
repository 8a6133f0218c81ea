"""Forwarded ports: many connections, their ends, refusals, and a slow one."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import queue
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tests import ports
from torchx.cli.cmd_exec import parse_ports
from torchx.cli.failures import UsageError
from torchx.errors import BackendError, ConfigError
from torchx.runner.inside import forward
from torchx.runner.inside.forward import Forwarding, relay_words
from torchx.runner.inside.relay import CREDIT, DATA, HEAD, OPEN, REFUSED, Channel, Relay
from torchx.schedulers.kit.inside.spawned import SpawnedProcess


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server in the replica, which returns the hash and the bytes of each connection after its end."""
    server = socket.create_server(("127.0.0.1", 0), backlog=128)

    def serve(connection: socket.socket) -> None:
        with connection:
            data = bytearray()
            while piece := connection.recv(1 << 16):
                data += piece
            connection.sendall(hashlib.sha256(data).digest() + data)

    def accept() -> None:
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.fixture
def forwarding(echo: int) -> Iterator[Forwarding]:
    """That port, and one without a server."""
    made = Forwarding(SpawnedProcess(relay_words()), [(echo, 0), (ports.free(), 0)])

    def run() -> None:
        with contextlib.suppress(BackendError):
            made.run()

    running = threading.Thread(target=run, daemon=True)
    running.start()
    yield made
    made._process.close_stdin()  # the relay ends, and with it `run`
    running.join()
    made.close()


def ask(port: int, data: bytes) -> bytes:
    """The server's answer to ``data``."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        sending = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
        sending.start()
        answer = bytearray()
        while piece := connection.recv(1 << 16):
            answer += piece
        sending.join()
    return bytes(answer)


def test_fifty_connections_at_once(forwarding: Forwarding) -> None:
    """Each gets its own bytes, complete, and an end of file."""
    texts = [os.urandom(200_000 + i) for i in range(50)]
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda text: ask(forwarding.local_ports[0], text), texts))
    assert answers == [hashlib.sha256(text).digest() + text for text in texts]


def test_megabytes_both_ways(forwarding: Forwarding) -> None:
    """Far more than the buffers of both ends."""
    data = os.urandom(1 << 20) * 20
    assert ask(forwarding.local_ports[0], data) == hashlib.sha256(data).digest() + data


def test_one_that_is_slow_holds_up_no_other(forwarding: Forwarding) -> None:
    """A client that does not read its answer blocks only its own connection."""
    data = os.urandom(1 << 20) * 8
    with socket.create_connection(("127.0.0.1", forwarding.local_ports[0])) as slow:
        slow.sendall(data)
        slow.shutdown(socket.SHUT_WR)
        assert ask(forwarding.local_ports[0], b"quick") == hashlib.sha256(b"quick").digest() + b"quick"
        answer = b""
        while piece := slow.recv(1 << 16):
            answer += piece
    assert answer[32:] == data


def test_too_many_open_files(forwarding: Forwarding, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections wait until this process can open files again; the port is not given up."""
    port, limit, paused = forwarding.local_ports[0], resource.getrlimit(resource.RLIMIT_NOFILE), threading.Event()

    def sleep(seconds: float) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        paused.set()

    monkeypatch.setattr(forward, "time", SimpleNamespace(sleep=sleep))
    with socket.socket() as client:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limit[1]))
        try:
            client.connect(("127.0.0.1", port))  # a file for this connection was reserved before
            assert paused.wait(20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert ask(port, b"more") == hashlib.sha256(b"more").digest() + b"more"


def test_a_port_on_which_nobody_listens(forwarding: Forwarding) -> None:
    """The connection is closed, and the reason reported; other connections work."""
    heard: list[str] = []
    forwarding.on_refusal(heard.append)
    assert ask(forwarding.local_ports[1], b"") == b""
    assert [text.partition(": ")[2] for text in heard] == ["Connection refused"]
    assert ask(forwarding.local_ports[0], b"x")[32:] == b"x"


def test_a_replica_connects_to_nothing_here(echo: int) -> None:
    """Only this machine may open connections; those that a replica opens are rejected."""
    asks = f"import struct; print(end=struct.pack('!BII5s', 0, 1, 5, b'%05d' % {echo}).decode(), flush=True); input()"
    received: list[bytes] = []

    class Program(SpawnedProcess):
        def write(self, data: bytes) -> None:
            received.append(data)

    with Forwarding(Program([sys.executable, "-c", asks]), [(1, 0)]) as made:
        made._process.close_stdin()
        with pytest.raises(BackendError, match="has ended"):
            made.run()
        assert threading.active_count() and not made._relay._channels and not received


def test_loopback_alone(forwarding: Forwarding) -> None:
    """Other hosts cannot connect."""
    for listening in forwarding._listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken(echo: int) -> None:
    """It is an error, and the relay is killed."""
    process = SpawnedProcess(["sleep", "1000"])
    with pytest.raises(ConfigError, match=f"port {echo} of this machine cannot be used"):
        Forwarding(process, [(1, echo)])
    assert process.wait() > 128


def test_the_replica_ends() -> None:
    """`run` raises an error with the relay's last message."""
    cut = SpawnedProcess(["sh", "-c", "echo cut >&2; exit 3"])
    with Forwarding(cut, [(1, 0)]) as made, pytest.raises(BackendError, match="has ended: cut"):
        made.run()


def test_another_thread_closes_it() -> None:
    """`run` raises its error at any time."""
    for _ in range(20):
        made = Forwarding(SpawnedProcess(relay_words()), [(1, 0)])
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(made.run)
            made.close()
            with pytest.raises(BackendError, match="has ended"):
                running.result()


@pytest.mark.parametrize("text", ["", "x", "0", "70000", "1:", "1:70000", ":1", "-1", "1:2:3", "٣"])
def test_what_is_no_port(text: str) -> None:
    """It is rejected with an example."""
    with pytest.raises(UsageError) as refused:
        parse_ports(text)
    assert "6006:8080" in refused.value.hint


def test_no_more_is_sent_than_the_other_end_accepts() -> None:
    """Each byte uses up credit; without any, nothing is read from the connection until there is more."""
    frames: queue.Queue[bytes] = queue.Queue()
    relay = Relay(lambda _: b"", frames.put)
    ours, theirs = socket.socketpair()
    with ours:
        channel = Channel(relay, 7, theirs, 10)
        ours.sendall(bytes(range(25)))
        ours.shutdown(socket.SHUT_WR)
        got = [frames.get(timeout=10)]
        for credit in (5, 100):
            channel.take(CREDIT, b"%d" % credit)
            got.append(frames.get(timeout=10))
        assert [HEAD.unpack(frame[: HEAD.size]) for frame in got] == [(DATA, 7, 10), (DATA, 7, 5), (DATA, 7, 10)]
        assert b"".join(frame[HEAD.size :] for frame in got) == bytes(range(25))
        channel.close()


def test_a_replica_opens_nothing_here() -> None:
    """What the program in a replica sends back may be anything: a request for a port of this machine ends the relay."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        frames = io.BytesIO(HEAD.pack(OPEN, 1, 5) + b"%5d" % server.getsockname()[1] + HEAD.pack(REFUSED, 2, 2) + b"no")
        sent: list[bytes] = []
        refused: list[str] = []
        relay = Relay(frames.read, sent.append)
        relay.refused = refused.append
        relay.run()
        assert (sent, refused) == ([], []), "nothing was answered, and nothing was read after it"
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
