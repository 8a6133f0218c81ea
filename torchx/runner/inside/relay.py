"""Multiplexes connections over one stream, between this process and a copy of this file inside a replica.

The copy runs with ``python -c``, so this file uses only the standard library of Python 3.7. The header of a frame is
its kind, the number of its connection and the length of its data. Each connection has a send window, which the other
end extends when it has passed data on, so that a slow connection does not block the others.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable

HEAD = struct.Struct("!BII")
OPEN, DATA, END, CREDIT, REFUSED = range(5)
WINDOW = 1 << 19
PIECE = 1 << 16


class Relay:
    """One end of the stream.

    Args:
        receive: reads exactly the given number of bytes, or fewer at the end of the stream.
        send: writes to the stream; called by one thread at a time.
        connects: whether the other end may open connections to ports here; a replica must not.
    """

    def __init__(
        self, receive: Callable[[int], bytes], send: Callable[[bytes], None], *, connects: bool = False
    ) -> None:
        self._receive = receive
        self._write = send
        self._connects = connects
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._next = 0
        self.refused: Callable[[str], None] = lambda _: None

    def send(self, kind: int, number: int, data: bytes = b"") -> None:
        with self._lock:
            self._write(HEAD.pack(kind, number, len(data)) + data)

    def open(self, connection: socket.socket, port: int) -> None:
        """Forward a connection that was accepted here to a port of the other end."""
        with self._lock:
            self._next += 1
            number = self._next
        self._channels[number] = Channel(self, number, connection, 0)
        self.send(OPEN, number, b"%d" % port)

    def run(self) -> None:
        """Receives frames until the stream ends."""
        while True:
            head = self._receive(HEAD.size)
            if len(head) < HEAD.size:
                break
            kind, number, size = HEAD.unpack(head)
            data = self._receive(size) if size else b""
            if kind == OPEN and not self._connects:
                break  # the other end violates the protocol
            if kind == OPEN:
                threading.Thread(target=self._connect, args=(number, int(data)), daemon=True).start()
                continue
            channel = self._channels.get(number)
            if kind == REFUSED:
                self.refused(data.decode("utf-8", "replace"))
            if channel is not None:
                channel.take(kind, data)
        for channel in list(self._channels.values()):
            channel.close()

    def forget(self, number: int) -> None:
        self._channels.pop(number, None)

    def _connect(self, number: int, port: int) -> None:
        try:
            connection = socket.create_connection(("127.0.0.1", port), 30)
            connection.settimeout(None)
        except OSError as e:
            self.send(REFUSED, number, f"port {port}: {e.strerror or e}".encode())
            return
        self._channels[number] = Channel(self, number, connection, WINDOW)
        self.send(CREDIT, number, b"%d" % WINDOW)  # the channel is registered: the other end may send


class Channel:
    """One connection, with a thread that reads it and one that writes it.

    ``credit`` is the initial send window in bytes; 0 until the other end has connected.
    """

    def __init__(self, relay: Relay, number: int, connection: socket.socket, credit: int) -> None:
        self._relay = relay
        self._number = number
        self._connection = connection
        self._credit = credit
        self._granted = threading.Condition()
        self._waiting: queue.Queue[bytes | None] = queue.Queue()
        self._left = 2
        self._closed = False
        for work in (self._read, self._pass_on):
            threading.Thread(target=self._until_over, args=(work,), daemon=True).start()

    def take(self, kind: int, data: bytes) -> None:
        if kind == CREDIT:
            with self._granted:
                self._credit += int(data)
                self._granted.notify()
        elif kind == REFUSED:
            self.close()
        else:
            self._waiting.put(data if kind == DATA else None)

    def close(self) -> None:
        with self._granted:
            self._closed = True
            self._granted.notify()
        self._waiting.put(None)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        while True:
            with self._granted:
                while self._credit <= 0 and not self._closed:
                    self._granted.wait()
                most = min(self._credit, PIECE)
            data = b"" if self._closed else self._connection.recv(most)
            if not data:
                break
            with self._granted:
                self._credit -= len(data)
            self._relay.send(DATA, self._number, data)

    def _pass_on(self) -> None:
        for data in iter(self._waiting.get, None):
            self._connection.sendall(data)
            self._relay.send(CREDIT, self._number, b"%d" % len(data))
        self._connection.shutdown(socket.SHUT_WR)

    def _until_over(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, ValueError):
            if work != self._read:
                self.close()
        if work == self._read:
            with contextlib.suppress(OSError, ValueError):
                self._relay.send(END, self._number)
        with self._granted:
            self._left -= 1
            over = self._left == 0
        if over:
            self._relay.forget(self._number)
            self._connection.close()


def main() -> None:
    """Run inside the replica; stdin and stdout are the stream."""
    out = sys.stdout.buffer

    def send(data: bytes) -> None:
        out.write(data)
        out.flush()

    Relay(sys.stdin.buffer.read, send, connects=True).run()


if __name__ == "__main__":
    main()
