"""A process inside a replica of an LSF job, by ``ssh`` to the replica's host.

LSF itself cannot do this: ``battach`` works for interactive jobs only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from torchx.errors import BackendError, NotFoundError, NotSupportedError
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.batch.inside import Entered, Spawn, sign_of
from torchx.schedulers.batch.sites import Run
from torchx.schedulers.batch.ssh.script import command_line, join
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.inside import Tty, not_running
from torchx.schedulers.kit.inside.marks import kill_words
from torchx.schedulers.kit.inside.spawned import SpawnedProcess
from torchx.schedulers.lsf.replicas import REPLICAS_FILE
from torchx.specs.api import AppState

_SSH = ["ssh", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-e", "none"]
_SSH_FAILED = 255
_IN_CONTAINER = "\ntorchx_container "


def host_of(folder: JobFolder, replicas: Sequence[ReplicaFacts], app_id: str, role: str, k: int) -> str:
    """Return the host of a running replica or task; raises NotFoundError,
    or NotSupportedError if it is in a container.
    """
    found = next((r for r in replicas if (r.role, r.replica) == (role, k)), None)
    if found is None or found.state is not AppState.RUNNING or not found.host:
        raise not_running(app_id, role, k, str(found.state if found else AppState.UNKNOWN))
    refuse_container(folder, app_id, role, k, found.host)
    return found.host


def refuse_container(folder: JobFolder, app_id: str, role: str, k: int, host: str) -> None:
    """Raise :class:`NotSupportedError` if the job's replicas run in containers."""
    if _IN_CONTAINER in folder.text(REPLICAS_FILE):
        raise NotSupportedError(
            f"replica {role}/{k} of `{app_id}` runs in a container, which torchx cannot enter on LSF",
            hint=f"`docker ps` and `docker exec` on host `{host}` can",
        )


class OnHost(Entered):
    """A process on a host, seen through its ``ssh``.

    Args:
        spawn: starts a command where LSF's commands run.
        host: name of the host; empty: the one where commands run, without ``ssh``.
        run, ended: see :class:`torchx.schedulers.batch.inside.Entered`.
    """

    def __init__(
        self,
        spawn: Spawn,
        host: str,
        folder: str,
        argv: Sequence[str],
        tty: Tty | None,
        *,
        run: Run,
        ended: Callable[[], NotFoundError],
    ) -> None:
        self._host = host

        def start(words: list[str]) -> SpawnedProcess:
            if not host:
                return spawn(words, tty)
            line, first = command_line(f"exec {join(words)}")
            client = spawn([*_SSH, "-tt" if tty else "-T", "--", host, line], tty)
            if first:
                client.write(first)
            return client

        super().__init__(start, sign_of(folder), argv, tty, run=run, ended=ended)

    def wait(self) -> int:
        code = super().wait()
        if code == _SSH_FAILED and self._mark.code is None:
            raise self._failed(code)
        return code

    def _signal(self, who: str, number: int | None) -> None:
        words = kill_words(who, number or signal.SIGKILL)
        line, _ = command_line(join(words))
        self._run([*_SSH, "-n", "--", self._host, line] if self._host else words)

    def _failed(self, code: int) -> BackendError:
        return BackendError(
            f"`ssh {self._host}` ended with exit code {code}",
            hint="entering replicas on LSF requires ssh to their hosts without a password",
        )
