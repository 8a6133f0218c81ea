"""Ports that a backend forwards itself: both directions, refusals, the end of either side, and a new attempt."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from torchx.errors import BackendError
from torchx.runner.inside.forward import Connect, OwnForwarding, forwarding
from torchx.schedulers.kit.inside import STDERR, STDOUT, Duplex, InsideProcess

WAIT_S = 30.0


class Stream(Duplex):
    """A connection into the replica, whose other end is the test."""

    def __init__(self) -> None:
        self.output: queue.Queue[tuple[int, bytes] | None] = queue.Queue()
        self.written: queue.Queue[bytes] = queue.Queue()
        self.has_no_more_input = threading.Event()
        self.closed = threading.Event()

    def read(self) -> tuple[int, bytes] | None:
        return self.output.get()

    def write(self, data: bytes) -> None:
        self.written.put(data)

    def close_stdin(self) -> None:
        self.has_no_more_input.set()

    def close(self) -> None:
        self.closed.set()
        self.output.put(None)


class Replica:
    """Gives each connection a stream, or refuses it; ``looked`` has an entry for each search for the replica."""

    def __init__(self) -> None:
        self.streams: queue.Queue[Stream] = queue.Queue()
        self.refuses = ""
        self.looked: queue.Queue[None] = queue.Queue()
        self.is_there = True

    def connect(self, port: int) -> Stream:
        if self.refuses:
            raise BackendError(self.refuses)
        stream = Stream()
        self.streams.put(stream)
        return stream

    def find(self) -> Connect | None:
        self.looked.put(None)
        return self.connect if self.is_there else None


@pytest.fixture
def replica() -> Replica:
    return Replica()


@pytest.fixture
def made(replica: Replica) -> Iterator[OwnForwarding]:
    found = OwnForwarding(replica.connect, replica.find, [(7, 0)])
    with found:
        yield found


@pytest.fixture
def client(made: OwnForwarding) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", made.local_ports[0]), WAIT_S) as found:
        yield found


def test_both_directions(replica: Replica, client: socket.socket) -> None:
    """Bytes and the end of input reach the replica, and its output the client, who is told of its end."""
    stream = replica.streams.get(timeout=WAIT_S)
    client.sendall(b"ping")
    assert stream.written.get(timeout=WAIT_S) == b"ping"
    client.shutdown(socket.SHUT_WR)
    assert stream.has_no_more_input.wait(WAIT_S)
    stream.output.put((STDOUT, b"pong"))
    assert client.recv(100) == b"pong"
    stream.output.put(None)
    assert client.recv(100) == b""


def test_the_replica_ends_a_connection_first(replica: Replica, client: socket.socket) -> None:
    """The client sees the end at once, although it has not finished its own input."""
    replica.streams.get(timeout=WAIT_S).output.put(None)
    assert client.recv(100) == b""


def test_a_client_that_breaks_off(replica: Replica, client: socket.socket) -> None:
    """Its stream into the replica is closed, so that the server there does not wait for it."""
    stream = replica.streams.get(timeout=WAIT_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # resets the connection
    assert stream.closed.wait(WAIT_S)


def test_what_the_backend_says_of_a_port(replica: Replica, made: OwnForwarding, client: socket.socket) -> None:
    """Its errors are reported with the port of the replica, and none of them reaches the client."""
    heard: queue.Queue[str] = queue.Queue()
    made.on_refusal(heard.put)
    stream = replica.streams.get(timeout=WAIT_S)
    stream.output.put((STDERR, b"connection refused"))
    assert heard.get(timeout=WAIT_S) == "port 7: connection refused"
    stream.output.put(None)
    assert client.recv(100) == b""


def run(made: OwnForwarding) -> Callable[[], BaseException | None]:
    """Runs the forwarding in a thread; the function that is returned waits for its end, and returns the error."""
    pool = ThreadPoolExecutor(1)
    running = pool.submit(made.run)
    pool.shutdown(wait=False)
    return lambda: running.exception(WAIT_S)


def test_a_refused_connection_makes_it_look_for_the_replica(replica: Replica, made: OwnForwarding) -> None:
    """The reason is reported; a replica of a later attempt is then found, and its connections work."""
    heard: queue.Queue[str] = queue.Queue()
    made.on_refusal(heard.put)
    error = run(made)
    replica.refuses = "pod not found"
    with socket.create_connection(("127.0.0.1", made.local_ports[0]), WAIT_S) as refused:
        assert refused.recv(100) == b""
    assert heard.get(timeout=WAIT_S) == "port 7: pod not found"
    replica.looked.get(timeout=WAIT_S)
    replica.refuses = ""
    with socket.create_connection(("127.0.0.1", made.local_ports[0]), WAIT_S):
        replica.streams.get(timeout=WAIT_S)
    assert replica.looked.empty(), "once for each failure"
    made.close()
    assert isinstance(error(), BackendError)


def test_no_replica_is_left(replica: Replica, made: OwnForwarding) -> None:
    """After a refused connection, it ends with an error if there is no way to the replica any more."""
    error = run(made)
    replica.refuses, replica.is_there = "gone", False
    with socket.create_connection(("127.0.0.1", made.local_ports[0]), WAIT_S) as refused:
        assert refused.recv(100) == b""
    assert "the connection to the replica has ended" in str(error())


def test_another_thread_closes_it(replica: Replica, made: OwnForwarding, client: socket.socket) -> None:
    """Open connections are closed with it, `run` ends without another look, and the port is free again."""
    error = run(made)
    stream = replica.streams.get(timeout=WAIT_S)
    client.sendall(b"x")
    stream.written.get(timeout=WAIT_S)
    made.close()
    assert stream.closed.wait(WAIT_S)
    assert client.recv(100) == b""
    assert "has ended" in str(error())
    assert replica.looked.empty()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", made.local_ports[0]), WAIT_S)


def test_a_backend_with_its_own_way_needs_no_process(replica: Replica) -> None:
    """Nothing is started inside the replica, whose image may have no Python; the end of the block frees the port."""

    def start(argv: list[str]) -> InsideProcess:
        raise AssertionError(argv)

    with forwarding(start, replica.find, [(7, 0)]) as made:
        assert isinstance(made, OwnForwarding)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", made.local_ports[0]), WAIT_S)
