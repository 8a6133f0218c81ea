"""Forwards local ports to ports of a replica: through a relay inside it, or by the backend's own API."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from torchx.errors import BackendError, ConfigError
from torchx.runner.inside.relay import Relay
from torchx.schedulers.kit.inside import CHUNK, STDOUT, Duplex, InsideProcess
from torchx.schedulers.kit.inside.run import python_words

Connect = Callable[[int], Duplex]
"""The backend's own API: opens a connection to a port of the replica."""

LOOPBACK = "127.0.0.1"
_LOOK_S = 30.0
_FULL_S = 0.2  # pause if this process has too many open files for another connection


def relay_words() -> list[str]:
    """Return the command that runs the relay inside a replica; it contains the relay's source code."""
    with open(os.path.join(os.path.dirname(__file__), "relay.py"), encoding="utf-8") as file:
        return python_words(file.read())


def forwarding(
    start: Callable[[list[str]], InsideProcess], find: Callable[[], Connect | None], ports: Sequence[tuple[int, int]]
) -> Forwarding:
    """Forward ports by the backend's own API if it has one, else through a relay inside the replica.

    Args:
        start: starts a command inside the replica.
        find: returns that API, see :meth:`torchx.schedulers.kit.abilities.Forwards.port_opener`.
    """
    connect = find()
    return Forwarding(start(relay_words()), ports) if connect is None else OwnForwarding(connect, find, ports)


class Forwarding:
    """Forwarded ports. Close it, or use it as a context manager.

    Args:
        process: the relay inside the replica.
        ports: pairs of replica port and local port (0: any free port).

    Attributes:
        local_ports: the local ports, in the order of ``ports``.

    Raises:
        ConfigError: a local port is in use.
    """

    def __init__(self, process: InsideProcess, ports: Sequence[tuple[int, int]]) -> None:
        self._process = process
        self._received = bytearray()
        self._stderr = b""
        self._relay = Relay(self._receive, process.write)
        self._listen_on(ports, self._relay.open)

    def _listen_on(self, ports: Sequence[tuple[int, int]], take: Callable[[socket.socket, int], None]) -> None:
        self._take = take
        self._listening: list[socket.socket] = []
        self.local_ports: list[int] = []
        try:
            for there, here in ports:
                self._listen(there, here)
        except BaseException:
            self.close()
            raise

    def _listen(self, there: int, here: int) -> None:
        try:
            listening = socket.create_server((LOOPBACK, here), backlog=128)
        except OSError as e:
            raise ConfigError(
                f"port {here} of this machine cannot be used: {e.strerror}",
                hint=f"`{there}:0` takes any that is free, `{there}:PORT` another one",
            ) from None
        self._listening.append(listening)
        self.local_ports.append(listening.getsockname()[1])
        threading.Thread(target=self._accept, args=(listening, there), daemon=True).start()

    def _accept(self, listening: socket.socket, there: int) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError as e:
                if e.errno not in (errno.EMFILE, errno.ENFILE):
                    return  # the socket was closed
                time.sleep(_FULL_S)
                continue
            try:
                self._take(connection, there)
            except OSError:
                return  # the relay has ended

    def on_refusal(self, call: Callable[[str], None]) -> None:
        """Set a callback for refused connections; it gets the reason."""
        self._relay.refused = call

    def run(self) -> None:
        """Forward until the relay inside the replica ends.

        Raises:
            BackendError: the relay has ended.
        """
        self._relay.run()
        why = self._stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise BackendError(
            f"the connection to the replica has ended{': ' + why if why else ''}",
            hint="the image needs Python 3" if self._process.wait() == 127 else "`torchx status` shows whether it runs",
        )

    def _receive(self, size: int) -> bytes:
        while len(self._received) < size and (piece := self._process.read()) is not None:
            if piece[0] == STDOUT:
                self._received += piece[1]
            else:
                self._stderr = (self._stderr + piece[1])[-4096:]
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def close(self) -> None:
        """Close all connections and stop forwarding."""
        self._unlisten()
        self._process.close()

    def _unlisten(self) -> None:
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts connections
            listening.close()

    def __enter__(self) -> Forwarding:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OwnForwarding(Forwarding):
    """Ports forwarded by the backend's own API, with a connection each; arguments are those of :func:`forwarding`."""

    def __init__(self, connect: Connect, find: Callable[[], Connect | None], ports: Sequence[tuple[int, int]]) -> None:
        self._connect: Connect | None = connect
        self._find = find
        self._failed = threading.Event()
        self._streams: set[Duplex] = set()
        self.on_refusal(lambda _: None)
        self._listen_on(ports, lambda *one: threading.Thread(target=self._serve, args=one, daemon=True).start())

    def on_refusal(self, call: Callable[[str], None]) -> None:
        self._refused = call

    def run(self) -> None:
        """Forward until the replica ends; if it is replaced by another attempt, forwards to that.

        Raises:
            NotFoundError: the replica is no longer running.
            BackendError: it cannot be reached.
        """
        while self._connect is not None:
            self._failed.wait(_LOOK_S)
            self._failed.clear()
            self._connect = None if self._connect is None else self._find()
        raise BackendError("the connection to the replica has ended", hint="`torchx status` shows whether it runs")

    def _serve(self, connection: socket.socket, there: int) -> None:
        connect = self._connect
        with connection, contextlib.suppress(OSError):  # one of the ends was closed
            try:
                if connect is not None:
                    with connect(there) as stream:
                        self._pass_on(connection, stream, there)
            except BackendError as e:
                self._refused(f"port {there}: {e}")
                self._failed.set()

    def _pass_on(self, connection: socket.socket, stream: Duplex, there: int) -> None:
        self._streams.add(stream)
        threading.Thread(target=_send_all, args=(connection, stream), daemon=True).start()
        try:
            while (piece := stream.read()) is not None:
                if piece[0] == STDOUT:
                    connection.sendall(piece[1])
                else:
                    self._refused(f"port {there}: {piece[1].decode('utf-8', 'replace')}")
        finally:
            self._streams.discard(stream)
            connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it

    def close(self) -> None:
        self._connect = None
        self._failed.set()
        self._unlisten()
        for stream in [*self._streams]:
            stream.close()


def _send_all(connection: socket.socket, stream: Duplex) -> None:
    try:
        while data := connection.recv(CHUNK):
            stream.write(data)
        stream.close_stdin()
    except OSError:  # the client is gone
        stream.close()
