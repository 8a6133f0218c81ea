"""Ports of a replica as ports of this machine, on loopback alone: by a relay inside it, or the backend's own way."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence

from torchx.errors import BackendError, ConfigError
from torchx.runner.relay import Relay
from torchx.schedulers.inside import CHUNK, STDOUT, Duplex, InsideProcess
from torchx.schedulers.inside.run import python_words

_Way = Callable[[int], Duplex]


LOOPBACK = "127.0.0.1"
_LOOK_S = 30.0


def relay_words() -> list[str]:
    """The command that runs the relay inside a replica: its text goes along."""
    with open(os.path.join(os.path.dirname(__file__), "relay.py"), encoding="utf-8") as file:
        return python_words(file.read())


def forwarding(
    start: Callable[[list[str]], InsideProcess], find: Callable[[], _Way | None], ports: Sequence[tuple[int, int]]
) -> Forwarding:
    """Ports that are forwarded by the backend's own way, or else by a relay inside the replica.

    Args:
        start: starts a command inside the replica.
        find: returns the way, as :meth:`torchx.schedulers.kit.abilities.Forwards.way_to` does.
    """
    way = find()
    return Forwarding(start(relay_words()), ports) if way is None else OwnForwarding(way, find, ports)


class Forwarding:
    """Ports that are forwarded. Close it, or use it as a context manager.

    Args:
        process: the relay inside the replica.
        ports: port there, and port here; 0: any that is free.

    Attributes:
        local_ports: those here.

    Raises:
        ConfigError: a port here is taken.
    """

    def __init__(self, process: InsideProcess, ports: Sequence[tuple[int, int]]) -> None:
        self._process = process
        self._begun = bytearray()
        self._said = b""
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
                self._take(connection, there)
            except OSError:
                return  # closed, or the way has ended

    def on_refusal(self, call: Callable[[str], None]) -> None:
        """Has it called with the reason why the replica does not take a connection."""
        self._relay.refused = call

    def run(self) -> None:
        """Forwards until the relay inside the replica ends.

        Raises:
            BackendError: it has ended.
        """
        self._relay.run()
        why = self._said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise BackendError(
            f"the connection to the replica has ended{': ' + why if why else ''}",
            hint="the image needs Python 3" if self._process.wait() == 127 else "`torchx status` shows whether it runs",
        )

    def _receive(self, size: int) -> bytes:
        while len(self._begun) < size and (piece := self._process.read()) is not None:
            if piece[0] == STDOUT:
                self._begun += piece[1]
            else:
                self._said = (self._said + piece[1])[-4096:]
        data = bytes(self._begun[:size])
        del self._begun[:size]
        return data

    def close(self) -> None:
        """Ends all connections, and the way to the replica."""
        self._unlisten()
        self._process.close()

    def _unlisten(self) -> None:
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            listening.close()

    def __enter__(self) -> Forwarding:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OwnForwarding(Forwarding):
    """Ports that are forwarded by the backend's own way, a connection for each; arguments as of :func:`forwarding`."""

    def __init__(self, way: _Way, find: Callable[[], _Way | None], ports: Sequence[tuple[int, int]]) -> None:
        self._way: _Way | None = way
        self._find = find
        self._look = threading.Event()
        self._streams: set[Duplex] = set()
        self.on_refusal(lambda _: None)
        self._listen_on(ports, lambda *one: threading.Thread(target=self._serve, args=one, daemon=True).start())

    def on_refusal(self, call: Callable[[str], None]) -> None:
        self._refused = call

    def run(self) -> None:
        """Forwards until the replica does not run any more; one in its place is as good.

        Raises:
            NotFoundError: it does not.
            BackendError: it cannot be reached.
        """
        while self._way is not None:
            self._look.wait(_LOOK_S)
            self._look.clear()
            self._way = None if self._way is None else self._find()
        raise BackendError("the connection to the replica has ended", hint="`torchx status` shows whether it runs")

    def _serve(self, connection: socket.socket, there: int) -> None:
        way = self._way
        with connection, contextlib.suppress(OSError):  # one of both ends is gone
            try:
                if way is not None:
                    with way(there) as stream:
                        self._pass_on(connection, stream, there)
            except BackendError as e:
                self._refused(f"port {there}: {e}")
                self._look.set()

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
            connection.shutdown(socket.SHUT_RDWR)  # wakes who reads it

    def close(self) -> None:
        self._way = None
        self._look.set()
        self._unlisten()
        for stream in [*self._streams]:
            stream.close()


def _send_all(connection: socket.socket, stream: Duplex) -> None:
    try:
        while data := connection.recv(CHUNK):
            stream.write(data)
        stream.close_stdin()
    except OSError:  # nobody hears its answer
        stream.close()
