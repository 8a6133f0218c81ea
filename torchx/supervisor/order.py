"""Decides which roles of a job may start, which can no longer become ready, and whose end ends the job.

Pure functions of plain values, without processes, files or clocks.
"""

from __future__ import annotations

from torchx.supervisor.statefile import PENDING, RUNNING, SUCCEEDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx.supervisor.layout import OrderRequest

    States = Sequence[Sequence[tuple[str, float]]]
    """Of each role, its replicas: state, and when its probe succeeded; 0: not yet. One to be restarted is PENDING."""

_NONE: OrderRequest = {}


class Order:
    """The order of a job's roles, by their numbers.

    Args:
        names: of all roles.
        orders: by name; a missing role starts at once.
    """

    def __init__(self, names: Sequence[str], orders: Mapping[str, OrderRequest]) -> None:
        self.roles = [orders.get(name, _NONE) for name in names]
        self._after = [[names.index(other) for other in role.get("after", ())] for role in self.roles]

    def may_start(self, role: int, states: States) -> bool:
        """Whether all roles that this one waits for are ready.

        >>> order = Order(["s", "t"], {"s": {"probe": "tcp", "at_least": 1}, "t": {"after": ["s"]}})
        >>> order.may_start(1, [[("RUNNING", 0.0)], []]), order.may_start(1, [[("RUNNING", 5.0)], []])
        (False, True)
        """
        return all(self.is_ready(other, states) for other in self._after[role])

    def is_ready(self, role: int, states: States) -> bool:
        """Whether the roles after this one may start."""
        return sum(self._counts(role, *one) for one in states[role]) >= self.roles[role].get("at_least", 1)

    def hopeless(self, states: States) -> int | None:
        """Return a role that others wait for and that can no longer become ready; None if there is none."""
        for role in {other for after in self._after for other in after}:
            possible = sum(state in (PENDING, RUNNING) or self._counts(role, state, at) for state, at in states[role])
            waiting = any(
                role in after and any(state == PENDING for state, _ in of_role)
                for after, of_role in zip(self._after, states, strict=True)
            )
            if waiting and possible < self.roles[role].get("at_least", 1):
                return role
        return None

    def restarts_with(self, role: int, states: States) -> set[int]:
        """Return the roles that a restart of this one restarts, too: those after it of which a replica runs."""
        found: set[int] = set()
        todo = [role]
        while todo:
            one = todo.pop()
            if self.roles[one].get("restarts_after"):
                after = {k for k, others in enumerate(self._after) if one in others} - found
                begun = {k for k in after if any(state == RUNNING for state, _ in states[k])}
                found |= begun
                todo += begun
        return found

    def decides(self, states: States) -> int | None:
        """Return a role whose end ends the job, if all its replicas have ended; else None."""
        for role, order in enumerate(self.roles):
            if order.get("ends_job") and not any(state in (PENDING, RUNNING) for state, _ in states[role]):
                return role
        return None

    def _counts(self, role: int, state: str, at: float) -> bool:
        return state in (RUNNING, SUCCEEDED) and (bool(at) or not self.roles[role].get("probe"))
