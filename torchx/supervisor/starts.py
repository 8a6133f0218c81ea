"""The replicas of a local job that are to be started: now, or when the roles that they wait for are ready."""

from __future__ import annotations

import time

from torchx.supervisor.gang import Gang
from torchx.supervisor.order import Order
from torchx.supervisor.statefile import PENDING, SUCCEEDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from torchx.supervisor.layout import JobRequest
    from torchx.supervisor.probes import Probe
    from torchx.supervisor.replica import Replica


class Starts:
    """Holds replicas back, and probes those that others wait for.

    Args:
        replicas: of all roles; all of them are to be started.
        latest_s: the longest pause between two probes.

    Attributes:
        now: replicas that may start.
        changed: the readiness of a replica has changed; reset it when that is on record.
    """

    def __init__(self, request: JobRequest, replicas: list[Replica], latest_s: float) -> None:
        names = [role["name"] for role in request["roles"]]
        self._orders = request.get("order", {})
        self._order = Order(names, self._orders)
        self._replicas = replicas
        self._latest_s = latest_s
        self._held: list[Replica] = []
        self._probes: dict[Replica, Probe] = {}
        self.now: list[Replica] = []
        self.changed = False
        self.add(replicas)

    def __bool__(self) -> bool:
        return bool(self.now or self._held)

    def add(self, replicas: Iterable[Replica]) -> None:
        """Start these replicas when it is time."""
        if not self._orders:
            self.now += replicas
            return
        for replica in replicas:
            self._held.append(replica)
            self.changed = self.changed or replica.line.ready > 0
            replica.line.ready = 0.0
        self._let_go()

    def drop(self, *, everything: bool = False) -> None:
        """Do not start those that are to be restarted, because their wave begins later; or none, if ``everything``."""
        left = [] if everything else [r for r in (*self.now, *self._held) if r.restart is None]
        self.now, self._held = [], []
        self.add(left)

    def due(self) -> list[float]:
        """When to call :meth:`turn`, by the monotonic clock."""
        return [probe.due for probe in self._probes.values()]

    def begin(self, replica: Replica, now: float) -> None:
        """Prepare to probe a replica, before its program starts."""
        self._forget(replica)
        order = self._order.roles[replica.role]
        if order.get("probe"):
            from torchx.supervisor.probes import Probe

            asked = replica.request
            logs = (asked["stdout"], asked["stderr"])
            self._probes[replica] = Probe(order, asked["cwd"], replica.k, now, self._latest_s, logs=logs)

    def turn(self, now: float) -> str:
        """Probe, and let go those that waited. Returns why the job cannot go on; empty if it can."""
        for replica, probe in [*self._probes.items()]:
            if why := self._probe(replica, probe, now):
                return why
        if self._held:
            self._let_go()
            role = self._order.hopeless(self._states()) if self._held else None
            if role is not None:
                return self._sentence(next(r for r in self._replicas if r.role == role and not r.line.ready), "ended")
        return ""

    def outcome(self, gang: Gang) -> str:
        """Return the job's state if a role that ends the job has ended; else empty."""
        states = self._states() if self._orders else []
        role = self._order.decides(states) if states else None
        return "" if role is None else Gang([gang.rules[role]]).outcome([[state for state, _ in states[role]]])

    def restarts_with(self, role: int) -> list[Replica]:
        """Return the replicas of other roles that a restart of this one restarts."""
        roles = self._order.restarts_with(role, self._states()) if self._orders else set()
        return [replica for replica in self._replicas if replica.role in roles and replica.line.state != PENDING]

    def _let_go(self) -> None:
        states = self._states()
        free = {role for role in {r.role for r in self._held} if self._order.may_start(role, states)}
        self.now += [replica for replica in self._held if replica.role in free]
        self._held = [replica for replica in self._held if replica.role not in free]

    def _probe(self, replica: Replica, probe: Probe, now: float) -> str:
        line = replica.line
        if line.ended:
            found = line.state == SUCCEEDED and probe.look_at_end(now)
        else:
            found = not replica.stopping and now >= probe.due and probe.look(now)
        if found:
            line.ready, self.changed = time.time(), True
        late = not (found or line.ended or replica.stopping) and now >= probe.deadline
        if found or line.ended or replica.stopping or late:
            self._forget(replica)
        is_late = late and not self._order.is_ready(replica.role, self._states())
        return self._sentence(replica, "late", probe.seen) if is_late else ""

    def _forget(self, replica: Replica) -> None:
        if probe := self._probes.pop(replica, None):
            probe.close()

    def _sentence(self, replica: Replica, key: Literal["late", "ended"], seen: str = "") -> str:
        from torchx.supervisor.probes import last_words, sentence

        return sentence(self._order.roles[replica.role][key], seen, last_words(replica.request))

    def _states(self) -> list[list[tuple[str, float]]]:
        """Return the state of each replica by role, and when it was ready; of one to be restarted: PENDING."""
        found: list[list[tuple[str, float]]] = [[] for _ in self._order.roles]
        for replica in self._replicas:
            found[replica.role].append((PENDING if replica.restart else replica.line.state, replica.line.ready))
        return found
