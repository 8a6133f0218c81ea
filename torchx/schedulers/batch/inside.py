"""A process beside a replica on a node of a cluster. The script there is ``inside.sh``."""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Callable, Sequence

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.inside import InsideProcess, Tty
from torchx.schedulers.inside.marks import Mark
from torchx.schedulers.kit.shell import read_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.schedulers.inside.spawned import SpawnedProcess
    from torchx.schedulers.kit.commands import Completed

    Run = Callable[[list[str]], Completed]
    Spawn = Callable[[list[str], Tty | None], SpawnedProcess]

_START_S = 10.0


def sign_of(folder: str) -> str:
    """What only processes of the replica with this folder have in their environment."""
    return f"TORCHELASTIC_ERROR_FILE={folder}/error.json"


class Entered(InsideProcess):
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
        self._run = run
        self._mark = Mark(tty)
        self._not_there = ended
        self._over = False
        script = read_script(__file__, "inside.sh")
        self._client = client(["bash", "-c", script, "bash", self._mark.text, sign, tty.term if tty else "", *argv])

    @abstractmethod
    def _signal(self, who: str, number: int | None) -> None:
        """Sends a signal to what the script has started; None: ends it."""

    @abstractmethod
    def _failed(self, code: int) -> BackendError:
        """The error for a client that has ended, by its exit code, before the script said how the command did."""

    def write(self, data: bytes) -> None:
        self._client.write(data)

    def close_stdin(self) -> None:
        self._client.close_stdin()

    def resize(self, columns: int, rows: int) -> None:
        self._client.resize(columns, rows)

    def read(self) -> tuple[int, bytes] | None:
        piece = self._mark.read(self._client.read)
        if self._mark.absent:
            raise self._not_there()
        self._over = piece is None
        return piece

    def send_signal(self, number: int) -> None:
        self._mark.once_known(lambda who: self._signal(who, number))

    def wait(self) -> int:
        if self._mark.code is not None:
            return self._mark.code
        code = self._client.wait()
        if not self._mark.who:
            raise self._not_there() if code == 0 else self._failed(code)
        return code or 128 + signal.SIGKILL  # it was ended from outside

    def close(self) -> None:
        if not self._over:  # behind a login node, the client goes on when its connection is closed
            self._client.patience_s = _START_S
            self._mark.seek(self._client.read)
        if not self._over and self._mark.who:
            self._over = True
            self._signal(self._mark.who, None)
        self._client.close()
