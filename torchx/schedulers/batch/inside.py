"""A process beside a replica on a node of a cluster. The script there is ``inside.sh``."""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Callable, Sequence

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.inside import Tty
from torchx.schedulers.inside.marks import MarkedProcess
from torchx.schedulers.inside.spawned import SpawnedProcess
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.shell import read_script

Run = Callable[[list[str]], Completed]
Spawn = Callable[[list[str], Tty | None], SpawnedProcess]


def sign_of(folder: str) -> str:
    """What only processes of the replica with this folder have in their environment."""
    return f"TORCHELASTIC_ERROR_FILE={folder}/error.json"


class Entered(MarkedProcess):
    """A process on a node, seen through the client that has started it there.

    Args:
        client: starts these words on the replica's node, with their streams.
        sign: what the replica's processes have in their environment, and no others of this job do.
        run: runs a command where the cluster's commands run, to its end.
        ended: makes the error for a replica that is not there after all.
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
        """The error for a client that has ended, by its exit code, before the script said how the command did."""

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
        return code or 128 + signal.SIGKILL  # it was ended from outside
