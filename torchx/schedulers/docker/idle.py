"""Detects that a job in containers is idle, by the samples that its watcher takes."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from torchx.schedulers.docker.attempts import STEPS
from torchx.schedulers.docker.hangs import ContainersWatchdog
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.specs.api import AppState
from torchx.specs.wishes.idle import parse_idle
from torchx.supervisor.idle import Idle, rows_of

if TYPE_CHECKING:
    from typing import Any

    from torchx.schedulers.docker.metrics import ContainersSampler
    from torchx.supervisor.layout import WatchdogRequest

_LAST = 256


class ContainersIdle(ContainersWatchdog):
    """Detects that an attempt is idle for longer than its wish, such as ``30m:cancel``, permits.

    Args:
        sampler: has the samples of the containers, taken every ``every_s`` seconds.
        plain: see :meth:`torchx.specs.wishes.Wishes.is_plain`.
    """

    def __init__(
        self, engine: EngineHttp, sampler: ContainersSampler, wish: str, every_s: float, *, plain: bool
    ) -> None:
        self.sampler, self._every_s, self._plain = sampler, every_s, plain
        super().__init__(engine, "", wish)

    def _watching(self, app_id: str, wish: str) -> Idle:  # noqa: ARG002  # the contract's signature
        found = parse_idle(wish)
        options: WatchdogRequest = {"seconds": found.seconds, "action": found.action, "plain": self._plain}
        return _Idle(self, options, self._every_s)

    def running(self) -> list[str]:
        """Ids of the containers that run."""
        return [c.id for c in (self._job.containers if self._job else ()) if c.state is AppState.RUNNING]

    def written(self, container: str) -> float:
        """Unix time at which ranks last wrote their steps, whole seconds; 0: never."""
        try:
            data = self._engine.read(f"/containers/{container}/archive", {"path": STEPS})
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                return max((member.mtime for member in tar), default=0.0)
        except (RefusedError, tarfile.TarError):  # there is no such file
            return 0.0


class _Idle(Idle):
    def __init__(self, job: ContainersIdle, options: WatchdogRequest, every_s: float) -> None:
        super().__init__(options, [], every_s)
        self._job = job

    def samples(self) -> list[list[dict[str, Any]]]:
        running, started = self._job.running(), self._job.sampler.started
        if any(container in started for container in running):  # another watcher may have begun
            self._from = max(started.get(container, 0.0) for container in running)
        return [rows_of(self._job.sampler.lines(container)[-_LAST:]) for container in running]

    def stepped(self, since: float) -> bool:
        return any(self._job.written(container) >= int(since) for container in self._job.running())
