"""Ports of a replica as ports of this machine, on loopback alone: connections go through a relay inside the replica."""

from __future__ import annotations

import contextlib
import os
import socket

from torchx.errors import BackendError, ConfigError
from torchx.runner.relay import Relay
from torchx.schedulers.inside import STDOUT, InsideProcess
from torchx.schedulers.inside.run import python_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


LOOPBACK = "127.0.0.1"


def relay_words() -> list[str]:
    """The command that runs the relay inside a replica: its text goes along."""
    with open(os.path.join(os.path.dirname(__file__), "relay.py"), encoding="utf-8") as file:
        return python_words(file.read())


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
        self._listening: list[socket.socket] = []
        self.local_ports: list[int] = []
        self._relay = Relay(self._receive, process.write)
        try:
            for there, here in ports:
                self._listen(there, here)
        except BaseException:
            self.close()
            raise

    def _listen(self, there: int, here: int) -> None:
        import threading

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
                self._relay.open(connection, there)
            except OSError:
                return  # closed, or the relay has ended

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
        """Ends all connections, and the relay."""
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            listening.close()
        self._process.close()

    def __enter__(self) -> Forwarding:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
