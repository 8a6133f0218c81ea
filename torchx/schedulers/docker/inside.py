"""Runs a process inside a container through the engine's exec API.

With a terminal the connection carries raw bytes. Without one it carries frames of the two outputs, each after a header
of eight bytes: stream, three zeros, length. https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Exec
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from torchx.errors import BackendError
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.schedulers.kit.inside import CHUNK, STDERR, STDOUT, Tty
from torchx.schedulers.kit.inside.marks import MarkedProcess, kill_words
from torchx.util.foreign import reading

_HEAD = 8
_RESIZE_S = 0.02  # Podman may lose a size that follows another one at once
_END_S = 10.0  # an engine may report a process as running for a moment after its output has ended


class ContainerProcess(MarkedProcess):
    """``argv`` in a container, with the container's user, environment and working directory."""

    def __init__(self, engine: EngineHttp, container: str, argv: Sequence[str], tty: Tty | None) -> None:
        super().__init__(tty)
        self._engine = engine
        self._container = container
        self._link: socket.socket
        self._id, self._link, self._begun = self._start(self._mark.words(argv), stdin=True, tty=self._tty)
        self._stream, self._left = (STDOUT, -1) if self._tty else (0, 0)
        self._resized = 0.0

    def _start(self, words: list[str], *, stdin: bool, tty: bool) -> tuple[str, socket.socket, bytes]:
        """Return the exec id, the connection, and the data that has already been read from it."""
        config = {"Cmd": words, "AttachStdin": stdin, "AttachStdout": True, "AttachStderr": True, "Tty": tty}
        try:
            with reading("the engine's answer"):
                made = str(self._engine.call("POST", f"/containers/{self._container}/exec", body=config)["Id"])
            return made, *self._engine.upgrade(f"/exec/{made}/start", {"Detach": False, "Tty": tty})
        except RefusedError as e:
            raise BackendError(f"the engine refused: {e}") from e

    def write(self, data: bytes) -> None:
        try:
            self._link.sendall(data)
        except ConnectionError as e:
            raise BrokenPipeError("its stdin is closed") from e

    def _end_stdin(self) -> None:
        socket.socket.shutdown(self._link, socket.SHUT_WR)  # not SSLSocket.shutdown, which closes both directions

    def _piece(self) -> tuple[int, bytes] | None:
        while self._left == 0:
            head = self._exactly(_HEAD)
            if head is None:
                self._over = True
                return None
            self._stream = STDERR if head[0] == STDERR else STDOUT
            self._left = int.from_bytes(head[4:], "big")
        data = self._some(CHUNK if self._left < 0 else min(self._left, CHUNK))
        self._over = not data
        self._left -= len(data) if self._left > 0 else 0
        return (self._stream, data) if data else None

    def resize(self, columns: int, rows: int) -> None:
        self._mark.once_known(lambda _: self._resize({"h": rows, "w": columns}))

    def _resize(self, size: dict[str, int]) -> None:
        time.sleep(max(0.0, self._resized + _RESIZE_S - time.monotonic()))
        self._engine.call("POST", f"/exec/{self._id}/resize", size)
        self._resized = time.monotonic()

    def _signal(self, who: str, number: int | None) -> None:
        _, connection, _ = self._start(kill_words(who, number), stdin=False, tty=False)
        with connection:
            while connection.recv(CHUNK):  # until it has ended
                pass

    def wait(self) -> int:
        deadline, pause = time.monotonic() + _END_S, 0.002
        while True:
            try:
                found = self._engine.get(f"/exec/{self._id}/json")
            except (OSError, RefusedError) as e:
                raise BackendError(
                    f"the exit code of the command is not known: {e}",
                    hint="was the job deleted, or the engine stopped? `torchx status` shows what runs",
                ) from e
            if not found.get("Running") and found.get("ExitCode") is not None:
                return int(found["ExitCode"])
            if time.monotonic() > deadline:
                raise BackendError(
                    "the connection to the engine was lost", hint="the command may go on inside the replica"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

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
            return self._link.recv(most)
        except ConnectionError:
            return b""
