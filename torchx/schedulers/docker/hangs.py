"""The watchdog of a job in containers: detects silence in the watcher, and inspects a silent job in a separate program.

A sign of life is a log line of a container or a progress mark. The findings are kept in files of the job's first
container. The watcher needs only the standard library; the program has all installed packages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx.schedulers.docker.attempts import PROGRESS, STEPS
from torchx.schedulers.docker.containers import LABEL_APP_ID, Container, Job
from torchx.schedulers.docker.evidence import HANG_FILE, STACKS_FILE, put_files
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.specs.api import AppState
from torchx.specs.wishes.watchdog import parse_watchdog
from torchx.supervisor.watchdog import Watchdog, page
from torchx.util.procs import own_program

if TYPE_CHECKING:
    from torchx.schedulers.kit.inside.run import Ran
    from torchx.schedulers.kit.stacks import Stacks
    from torchx.supervisor.layout import WatchdogRequest

_GONE = 404


class ContainersWatchdog:
    """Detects that an attempt of a job is silent for longer than its wish, such as ``10m:cancel``, permits.

    Attributes:
        action: what to do with a silent job.
        silent: whether the job is silent.
    """

    def __init__(self, engine: EngineHttp, app_id: str, wish: str) -> None:
        self._engine = engine
        self._job: Job | None = None
        self._attempt: tuple[int, int] | None = None
        self._last: dict[str, bytes] = {}  # container id -> last line and mark, the most recent writer last
        self._signs_seen = 0
        self._watchdog = self._watching(app_id, wish)
        self.action = self._watchdog.action

    def _watching(self, app_id: str, wish: str) -> Watchdog:
        found = parse_watchdog(wish)
        program = own_program("torchx.schedulers.docker.hangs", app_id)
        settings: WatchdogRequest = {"seconds": found.seconds, "action": found.action, "program": program}
        return Watchdog(settings, dict(os.environ), self._signs)

    @property
    def silent(self) -> bool:
        return self._watchdog.silent

    def look(self, job: Job, now: float) -> tuple[str | None, float]:
        """Check for signs of life: a new finding, if any, and the time of the next check. May raise OSError."""
        self._job = job
        attempt = (max(c.mark.app for c in job.containers), max(c.mark.role for c in job.containers))
        if attempt != self._attempt:
            self._attempt = attempt
            self._watchdog.begin(now)
        due = self._watchdog.due or now
        text = self._watchdog.turn(now) if now >= due else None
        if text is not None:
            put_files(self._engine, job.first().id, {STACKS_FILE: page(self._watchdog), HANG_FILE: text})
        return text, self._watchdog.due or now

    def _signs(self) -> int:
        """Return a number that changes with each sign of life.

        Checks the most recent writer first: often that suffices.
        """
        running = [c for c in (self._job.containers if self._job else ()) if c.state is AppState.RUNNING]
        order = {c: i for i, c in enumerate(self._last)}
        for container in sorted(running, key=lambda c: -order.get(c.id, -1)):
            seen = self._last_sign(container)
            if seen != self._last.get(container.id):
                self._last.pop(container.id, None)
                self._last[container.id] = seen
                self._signs_seen += 1
                break
        return self._signs_seen

    def _last_sign(self, container: Container) -> bytes:
        """Return the last log line and the progress mark of a container, with their times."""
        line = {"stdout": 1, "stderr": 1, "timestamps": 1, "tail": 1}
        try:
            last_line = self._engine.read(f"/containers/{container.id}/logs", line)
        except RefusedError as e:
            if e.status != _GONE:
                self._signs_seen += 1  # the log cannot be read: do not treat the job as silent
            return b""
        for path in (PROGRESS, STEPS):
            with suppress(RefusedError):  # there is no mark
                last_line += self._engine.read(f"/containers/{container.id}/archive", {"path": path})
        return last_line


def main() -> None:
    """Inspects the job named on the command line, and prints the finding."""
    from torchx.schedulers.kit.stacks.look import tell

    tell(lambda: _stacks(sys.argv[1]))


def _stacks(app_id: str) -> Stacks:
    import docker

    from torchx.schedulers.docker.inside import ContainerProcess
    from torchx.schedulers.docker.jobs import EngineJobs
    from torchx.schedulers.kit.inside.run import run
    from torchx.schedulers.kit.stacks.look import look

    engine = EngineHttp(os.environ)
    job = EngineJobs(docker.from_env, None).listed(f"{LABEL_APP_ID}={app_id}")[app_id]
    running = {(c.role, c.k): c.id for c in job.containers if c.state is AppState.RUNNING}

    def inside(words: Sequence[str], role: str, k: int) -> Ran:
        return run(ContainerProcess(engine, running[role, k], words, None))

    return look(inside, None, [(role, k) for role, count, _ in job.sizes() for k in range(count)], sorted(running))
