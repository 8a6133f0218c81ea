"""Copies files in and out of a container through the engine, which is faster than a process inside it.

The engine reads and writes one tar stream, as root, and sees all file systems of the container except tmpfs:
https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerArchive
"""

from __future__ import annotations

import socket
from contextlib import closing

from torchx.errors import BackendError
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError, Upload
from torchx.schedulers.kit.inside import STDOUT, InsideProcess

_CHUNK = 1 << 20


class ArchiveStream(InsideProcess):
    """A tar stream of an absolute path in a container, as a process that writes it or, with ``into``, unpacks it."""

    def __init__(self, engine: EngineHttp, container: str, path: str, *, into: bool) -> None:
        self._why = ""
        self._down: socket.socket | None = None
        self._up: Upload | None = None
        self._begun = b""
        where = f"/containers/{container}/archive"
        try:
            if into:
                self._up = engine.upload(where, {"path": path, "noOverwriteDirNonDir": "1"})
            else:
                self._down, self._begun = engine.download(where, {"path": path})
        except RefusedError as e:
            raise BackendError(f"the engine refused: {e}") from e

    def write(self, data: bytes) -> None:
        try:
            if self._up is not None:
                self._up.write(data)
        except OSError as e:
            raise BrokenPipeError("the engine closed the upload") from e

    def close_stdin(self) -> None:
        self.write(b"")

    def read(self) -> tuple[int, bytes] | None:
        data, self._begun = self._begun, b""
        try:
            if self._down is not None:
                data = data or self._down.recv(_CHUNK)
            elif self._up is not None:
                up, self._up = self._up, None
                with closing(up):
                    up.answer()
        except (OSError, RefusedError) as e:
            self._why = str(e)
        return (STDOUT, data) if data else None

    def wait(self) -> int:
        if self._why:
            raise BackendError(f"the engine refused: {self._why}")
        return 0

    def close(self) -> None:
        for connection in (self._up, self._down):
            if connection is not None:
                connection.close()

    def resize(self, columns: int, rows: int) -> None:
        """There is no terminal."""

    def send_signal(self, number: int) -> None:
        """There is no process."""
