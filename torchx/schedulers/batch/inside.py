"""A process beside a replica on a cluster node, started there by ``inside.sh``."""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Callable, Sequence

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.batch.sites import Run
from torchx.schedulers.kit.inside import Tty
from torchx.schedulers.kit.inside.marks import MarkedProcess
from torchx.schedulers.kit.inside.spawned import SpawnedProcess
from torchx.schedulers.kit.shell import read_script

Spawn = Callable[[list[str], Tty | None], SpawnedProcess]


def sign_of(folder: str) -> str:
    """Return an environment entry that only processes of the replica with this folder have."""
    return f"TORCHELASTIC_ERROR_FILE={folder}/error.json"


class Entered(MarkedProcess):
    """A process on a node, seen through the client that started it there.

    Args:
        client: runs a command on the replica's node and connects its streams.
        sign: environment entry that identifies the replica's processes within this job.
        run: runs a command of the cluster to completion.
        ended: creates the error for a replica that turns out not to run.
    """

    def __init__(
        self,
        client: Callable[[list[str]], SpawnedProcess],
        sign: str,
        argv: Sequence[str],
        tty: Tty | None,
        *,
        run: Run,
        ended: Callable[[], NotFoundError],
    ) -> None:
        super().__init__(tty)
        self._run = run
        self._not_there = ended
        script = read_script(__file__, "inside.sh")
        self._link: SpawnedProcess = client(
            ["bash", "-c", script, "bash", self._mark.text, sign, tty.term if tty else "", *argv]
        )

    @abstractmethod
    def _failed(self, code: int) -> BackendError:
        """Return the error for a client that exited before the script reported the command's exit code."""

    def write(self, data: bytes) -> None:
        self._link.write(data)

    def _end_stdin(self) -> None:
        self._link.close_stdin()

    def resize(self, columns: int, rows: int) -> None:
        self._link.resize(columns, rows)

    def read(self) -> tuple[int, bytes] | None:
        piece = super().read()
        if self._mark.absent:
            raise self._not_there()
        return piece

    def _piece(self) -> tuple[int, bytes] | None:
        piece = self._link.read()
        self._over = piece is None
        return piece

    def wait(self) -> int:
        if self._mark.code is not None:
            return self._mark.code
        code = self._link.wait()
        if not self._mark.who:
            raise self._not_there() if code == 0 else self._failed(code)
        return code or 128 + signal.SIGKILL  # it was killed from outside
