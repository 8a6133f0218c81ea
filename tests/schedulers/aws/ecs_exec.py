"""The far end of ECS Exec for tests: ExecuteCommand, and terminals for our stand-in of AWS's `session-manager-plugin`.

The plugin cannot be had here. Its stand-in, `session_manager_plugin.py`, takes the same command line, wants a terminal,
relays it, and ends with its stdin; the bytes then go to this process, in frames of our own. As with AWS, what is no
text is changed on the way out, and a command goes on when its session is lost. What runs in the terminals is real.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import shlex
import socket
import struct
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.schedulers.aws.batch_cloud import Meta, validate

FRAME = struct.Struct(">BHHI")  # whether it is a size, columns, rows, length of the data that follows
RUNTIME = "0123456789abcdef-42"


def install(folder: Path) -> None:
    """Puts the stand-in into a folder, under the plugin's name."""
    program = Path(__file__).with_name("session_manager_plugin.py")
    made = folder / "session-manager-plugin"
    made.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(program))} "$@"\n')
    made.chmod(0o755)


class Terminal(Protocol):
    """A process in a terminal."""

    def read(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def resize(self, columns: int, rows: int) -> None: ...
    def close(self) -> None: ...


class FarEnd:
    """Give it to a scheduler as its client of ECS, and of Systems Manager.

    Args:
        start: a terminal in which these words run.
    """

    meta = Meta()

    def __init__(self, start: Callable[[list[str]], Terminal]) -> None:
        self.start = start
        self.calls: list[dict[str, Any]] = []
        self.plugins: list[list[str]] = []
        """The arguments of each plugin."""
        self.faults: list[Exception] = []
        self.sessions: list[Session] = []
        self._commands: dict[str, str] = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def execute_command(self, **params: Any) -> dict[str, Any]:
        validate("ecs", "execute_command", params)
        assert params["interactive"] is True
        self.calls.append(params)
        if self.faults:
            raise self.faults.pop(0)
        token = str(uuid.uuid4())
        self._commands[token] = params["command"]
        session = {"sessionId": token, "streamUrl": f"ws://127.0.0.1:{self.port}/{token}", "tokenValue": token}
        whole = {"clusterArn": params["cluster"], "taskArn": params["task"], "containerName": "default"}
        return {**whole, "interactive": True, "session": session}

    def describe_tasks(self, **params: Any) -> dict[str, Any]:
        validate("ecs", "describe_tasks", params)
        sidecar = {"name": "aws-guardduty-agent", "runtimeId": "other"}
        return {"tasks": [{"containers": [sidecar, {"name": "default", "runtimeId": RUNTIME}]}], "failures": []}

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                session = Session(self, connection, self._commands)
                self.sessions.append(session)
                threading.Thread(target=session.run, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for session in self.sessions:
            session.close()


class Session:
    """One plugin, and the terminal that it is connected to."""

    def __init__(self, far: FarEnd, connection: socket.socket, commands: dict[str, str]) -> None:
        self.far, self.connection, self.commands = far, connection, commands
        self.terminal: Terminal | None = None
        self.stream = connection.makefile("rb")

    def run(self) -> None:
        with self.connection, self.stream:
            self.serve()

    def serve(self) -> None:
        arguments = json.loads(self.stream.readline())
        self.far.plugins.append(arguments)
        command = self.commands.pop(json.loads(arguments[0])["tokenValue"])
        try:
            self.terminal = self.far.start(shlex.split(command))
        except OSError as e:
            self.connection.sendall(f"Unable to start command: {e}\r\n".encode())
            self.cut()
            return
        threading.Thread(target=self.pump, daemon=True).start()
        with contextlib.suppress(OSError):
            while len(head := self.stream.read(FRAME.size)) == FRAME.size:
                resized, columns, rows, size = FRAME.unpack(head)
                if resized:
                    self.terminal.resize(columns, rows)
                else:
                    self.terminal.write(self.stream.read(size))

    def pump(self) -> None:
        assert self.terminal is not None
        text = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(OSError):
            while data := self.terminal.read():
                self.connection.sendall(text.decode(data).encode())
        self.cut()

    def cut(self) -> None:
        """Ends the connection; what runs there goes on."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        if self.terminal is not None:
            with contextlib.suppress(OSError):
                self.terminal.close()
