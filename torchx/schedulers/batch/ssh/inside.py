"""A command on a login node with its streams: a session of its own over the shared connection."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from torchx.schedulers.batch.ssh.errors import no_master, no_session
from torchx.schedulers.batch.ssh.runner import BUSY_S, SSH_FAILED, SSHCommandRunner
from torchx.schedulers.kit.commands import program_of
from torchx.schedulers.kit.inside import STDERR, STDOUT, Tty
from torchx.schedulers.kit.inside.spawned import SpawnedProcess


class RemoteProcess(SpawnedProcess):
    """A command, seen through its ``ssh``. Exit code 255 is reserved for a lost connection.

    Output of login scripts and ``ssh`` before the command starts is discarded.

    Raises:
        BackendError: the command was not started: the login node cannot be reached, or accepts no further session.
    """

    def __init__(self, runner: SSHCommandRunner, argv: Sequence[str], tty: Tty | None) -> None:
        self._runner = runner
        self._what = f"`{program_of(argv)}`"
        self._ahead: list[tuple[int, bytes]] = []
        deadline, pause = time.monotonic() + BUSY_S, 0.1
        while True:
            words, first, mark = runner.session(argv, tty=tty is not None)
            super().__init__(words, tty=tty)
            with suppress(BrokenPipeError):
                self.write(first)
            noise = self._begin(mark.encode(), {STDOUT: b""} if tty else {STDOUT: b"", STDERR: b""})
            if noise is None:
                return
            code = super().wait()
            self.close()
            if time.monotonic() > deadline or not (no_session(noise) or no_master(noise)):
                raise runner.lost(noise, code, self._what, began=False)
            time.sleep(pause)
            pause = min(pause * 2, 2.0)
            if no_master(noise):
                runner.master.login()

    def _begin(self, mark: bytes, before: dict[int, bytes]) -> str | None:
        """Read up to the marks; return the output if they do not come."""
        while before:
            piece = super().read()
            if piece is None:
                return b"".join(before.values()).decode("utf-8", "replace").strip()
            stream, data = piece
            if stream in before:
                before[stream], found, data = (before[stream] + data).partition(mark)
                if found:
                    del before[stream]
            if data:
                self._ahead.append((stream, data))
        return None

    def read(self) -> tuple[int, bytes] | None:
        return self._ahead.pop(0) if self._ahead else super().read()

    def wait(self) -> int:
        code = super().wait()
        if code == SSH_FAILED:
            raise self._runner.lost("", code, self._what, began=True)
        return code
