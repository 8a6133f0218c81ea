"""Probes containers that others wait for: by their address on the job's network, their logs and their files."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.containers import join_name
from torchx.schedulers.docker.logs import pieces_of, seconds
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.schedulers.kit.timed_lines import whole_lines
from torchx.specs.api import AppState
from torchx.specs.order import order_of
from torchx.supervisor.probes import Probe, last_line, sentence
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.docker.containers import Container, Job, Mark
    from torchx.specs.api import AppDef
    from torchx.supervisor.layout import OrderRequest

_OVERLAP_S = 1.0  # of two looks at a log: the end of a line may come later
_LATEST_S = 1.0
_STOPPED = ("cancelled", "ended", "late", "due")


def check_reach(app: AppDef, environ: Mapping[str, str] | None) -> None:
    """Raise NotSupportedError for probes of ports on an engine elsewhere: its networks cannot be reached from here."""
    engine = EngineHttp(environ or {})
    if engine.is_here():
        return
    for name, order in order_of(app).items():
        if order.port:
            raise NotSupportedError(
                f"role `{name}` is ready by `{order.probe}`, and containers of `{engine.host}` have no address here",
                hint="use `log` or `file`",
            )


class ContainerProbe(Probe):
    """The probe of one start of a container."""

    def __init__(self, engine: EngineHttp, container: Container, order: OrderRequest, now: float) -> None:
        self._engine = engine
        self._path = f"/containers/{container.id}"
        details = engine.get(f"{self._path}/json")
        started, before = (seconds(str(details["State"].get(key) or "")) for key in ("StartedAt", "FinishedAt"))
        networks = (details.get("NetworkSettings") or {}).get("Networks") or {}
        addresses = [found["IPAddress"] for found in networks.values() if found.get("IPAddress")]
        folder = str(details["Config"].get("WorkingDir") or "/")
        super().__init__(order, folder, container.k, now, _LATEST_S, addresses=addresses)
        self.deadline -= max(time.time() - started, 0.0)
        # An engine may stamp the first lines before the start that it reports.
        self._since = (before + started) / 2 if before > 0 else 0.0

    def look(self, now: float) -> bool:
        try:
            return super().look(now)
        except RefusedError as e:  # it has just ended, or was removed
            self.seen = str(e)
            return False

    def last_words(self) -> str:
        """Return the last line of its output; empty if it wrote nothing."""
        return last_line([text for text, _ in self._lines(tail=20)])

    def _lines(self, **query: object) -> list[tuple[bytes, float]]:
        """Return lines of its log with their times."""
        data = self._engine.read(f"{self._path}/logs", {"stdout": 1, "stderr": 1, "timestamps": 1, **query})
        return [(piece.text, piece.time / 1e9) for piece in whole_lines(pieces_of(io.BytesIO(data).read))]

    def _says(self, _: float) -> bool:
        lines = self._lines(since=f"{self._since:.9f}")
        self._since = max([self._since, *(at - _OVERLAP_S for _, at in lines)])
        self.seen = "no line of its output matches"
        return self._matches(*(text for text, _ in lines))

    def _has_file(self, _: float) -> bool:
        try:
            self._engine.read(f"{self._path}/archive", {"path": self._file}, method="HEAD")
        except RefusedError:
            self.seen = "it does not exist"
            return False
        return True


class Readiness:
    """Which containers of a job are ready."""

    def __init__(self, engine: EngineHttp) -> None:
        self._engine = engine
        self._probes: dict[tuple[str, str, float], ContainerProbe] = {}

    def look(
        self, job: Job, starts: Mapping[str, float], now: float
    ) -> tuple[list[tuple[Container, Mark]], str, float]:
        """Probe those for which it is time.

        Args:
            starts: container id -> Unix time of its last start, as far as an event has reported it.

        Returns: new marks of containers, why the job cannot go on (empty if it can), and when to look again.
        """
        order, states, orders = gangs.order_of(job), gangs.states_of(job), gangs.orders_of(job)
        numbers = {name: number for number, (name, _, _) in enumerate(job.sizes())}
        marks: list[tuple[Container, Mark]] = []
        due = float(sys.maxsize)
        for container in job.containers:
            asked, mark, started = orders[container.role], container.mark, starts.get(container.id, 0.0)
            if not asked.get("probe") or any(getattr(mark, word) for word in _STOPPED):
                continue
            if mark.ready:
                if started > mark.ready + 1:  # the engine has restarted it
                    marks.append((container, replace(mark, ready=0)))
                continue
            if container.state not in (AppState.RUNNING, AppState.SUCCEEDED):
                continue
            key = (container.id, join_name("", mark), started)
            probe = self._probes.get(key) or ContainerProbe(self._engine, container, asked, now)
            self._probes[key] = probe
            ended = container.state is AppState.SUCCEEDED
            if probe.look_at_end(now) if ended else now >= probe.due and probe.look(now):
                marks.append((container, replace(mark, ready=int(time.time()))))
            elif not ended and not order.is_ready(numbers[container.role], states):
                if now >= probe.deadline:
                    return [], sentence(asked["late"], probe.seen, probe.last_words()), now
                due = min(due, probe.due)
        role = None if marks else order.hopeless(states)
        return marks, "" if role is None else self._hopeless(job, job.sizes()[role][0]), due

    def _hopeless(self, job: Job, role: str) -> str:
        found = next(c for c in job.containers if c.role == role and not c.mark.ready)
        asked = gangs.orders_of(job)[role]
        return sentence(asked["ended"], said=ContainerProbe(self._engine, found, asked, 0.0).last_words())
