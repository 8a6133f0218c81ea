"""A process inside a container, by the engine's exec API.

https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Exec. With a terminal the connection carries its bytes;
without one, pieces of the two outputs, each behind eight bytes: the stream, three zeros, the length.
"""

from __future__ import annotations

import socket
import time

from torchx.errors import BackendError, NotSupportedError
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.schedulers.inside import CHUNK, STDERR, STDOUT, InsideProcess, not_running
from torchx.schedulers.inside.marks import Mark, kill_words
from torchx.specs.api import AppState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torchx.schedulers.docker.containers import Container
    from torchx.schedulers.inside import Tty

_HEAD = 8
_END_S = 10.0  # an engine may list a process as running for a moment after its output has ended


def enter(
    client: Any, environ: Mapping[str, str] | None, container: Container, argv: Sequence[str], tty: Tty | None
) -> InsideProcess:
    """Starts ``argv`` in a container, as its user, with its environment and in its folder.

    Args:
        environ: says where the engine is; None: only this program's client knows, which cannot carry a stream.

    Raises:
        NotFoundError: the replica does not run.
    """
    if container.state is not AppState.RUNNING:
        raise not_running(
            container.labels["torchx.pytorch.org/app-id"], container.role, container.k, str(container.state)
        )
    if environ is None:
        raise NotSupportedError(
            "only this program's own client knows the way to its engine, and it cannot carry a stream",
            hint="set DOCKER_HOST instead of passing a client",
        )
    mark = Mark()
    words = mark.words(argv, tty)
    made = client.api.exec_create(container.id, words, stdin=True, tty=tty is not None)["Id"]
    start = {"Detach": False, "Tty": tty is not None}
    try:
        connection, begun = EngineHttp(environ).upgrade(f"/exec/{made}/start", start)
    except RefusedError as e:
        raise BackendError(f"the engine refused: {e}") from e
    return ContainerProcess(client, container.id, made, connection, begun, mark=mark, tty=tty is not None)


class ContainerProcess(InsideProcess):
    """One exec of the engine."""

    def __init__(
        self, client: Any, container: str, made: str, connection: socket.socket, begun: bytes, *, mark: Mark, tty: bool
    ) -> None:
        self._api = client.api
        self._container = container
        self._id = made
        self._connection = connection
        self._begun = begun
        self._mark = mark
        self._tty = tty
        self._due: list[int] = []
        self._size: tuple[int, int] | None = None
        self._stream, self._left = (STDOUT, -1) if tty else (0, 0)
        self._over = False

    def write(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except ConnectionError as e:
            raise BrokenPipeError("its stdin is closed") from e

    def close_stdin(self) -> None:
        if not self._tty:
            try:
                socket.socket.shutdown(self._connection, socket.SHUT_WR)  # of TLS, too: its own would end both ways
            except OSError:
                return  # it has ended

    def read(self) -> tuple[int, bytes] | None:
        while not self._over:
            if self._left == 0:
                head = self._exactly(_HEAD)
                if head is None:
                    break
                self._stream = STDERR if head[0] == STDERR else STDOUT
                self._left = int.from_bytes(head[4:], "big")
                continue
            data = self._some(CHUNK if self._left < 0 else min(self._left, CHUNK))
            if not data:
                break
            if self._left > 0:
                self._left -= len(data)
            if self._tty or self._stream == STDERR:
                data = self._marked(data)
            if data:
                return self._stream, data
        self._over = True
        held = self._mark.left()
        return (STDOUT if self._tty else STDERR, held) if held else None

    def _marked(self, data: bytes) -> bytes:
        known = self._mark.who
        data = self._mark.take(data)
        if self._mark.who and not known:
            due, self._due = self._due, []
            for number in due:
                self.send_signal(number)
            if self._size is not None:
                self.resize(*self._size)
        return data

    def resize(self, columns: int, rows: int) -> None:
        if self._mark.who:
            self._api.exec_resize(self._id, height=rows, width=columns)
        else:
            self._size = (columns, rows)

    def send_signal(self, number: int) -> None:
        if not self._mark.who:
            self._due.append(number)
            return
        made = self._api.exec_create(self._container, kill_words(self._mark.who, number))["Id"]
        self._api.exec_start(made)

    def wait(self) -> int:
        deadline = time.monotonic() + _END_S
        while True:
            found = self._api.exec_inspect(self._id)
            if not found.get("Running") and found.get("ExitCode") is not None:
                return int(found["ExitCode"])
            if time.monotonic() > deadline:
                raise BackendError(
                    "the connection to the engine was lost", hint="the command may go on inside the replica"
                )
            time.sleep(0.02)

    def close(self) -> None:
        import signal

        self._connection.close()
        if not self._over and self._mark.who:
            self._over = True
            self.send_signal(signal.SIGHUP)
            self.send_signal(signal.SIGTERM)

    def _exactly(self, count: int) -> bytes | None:
        parts = b""
        while len(parts) < count:
            more = self._some(count - len(parts))
            if not more:
                return None
            parts += more
        return parts

    def _some(self, most: int) -> bytes:
        if self._begun:
            data, self._begun = self._begun[:most], self._begun[most:]
            return data
        try:
            return self._connection.recv(most)
        except ConnectionError:
            return b""
