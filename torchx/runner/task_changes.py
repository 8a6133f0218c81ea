"""Changes of the tasks of sweeps, found by looking at all of them every now and then: a question a sweep."""

from __future__ import annotations

import time

from torchx.runs.records import Change
from torchx.specs.api import AppState, AppStatus, parse_app_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torchx.specs.tasks import TaskTable

_EVERY_S, _SHARE = 1.0, 10
"""Seconds between two looks at least, and how many times as long as the last look took."""


class TaskChanges:
    """What has become of the tasks of some sweeps since the last look.

    Args:
        status: asks for the status of a job.
        handles: of jobs; those that are not sweeps are looked at once.
    """

    def __init__(self, status: Callable[[str], AppStatus | None], handles: Iterable[str]) -> None:
        self._status = status
        self._seen: dict[str, list[AppState]] = {handle: [] for handle in handles}
        self._due = 0.0

    def look(self, *, now: bool = False) -> list[Change]:
        """The changes, if it is time to look; a task that still waits at the first look is none.

        Args:
            now: it is time.
        """
        began = time.monotonic()
        if not self._seen or (began < self._due and not now):
            return []
        found: list[Change] = []
        for handle in list(self._seen):
            status = self._status(handle)
            if status is not None and status.tasks is not None:
                found += self._compare(handle, status.tasks)
            elif not self._seen[handle] and (status is None or status.error is None):
                del self._seen[handle]
        ended = time.monotonic()
        self._due = ended + max(_EVERY_S, _SHARE * (ended - began))
        return found

    def _compare(self, handle: str, table: TaskTable) -> Iterator[Change]:
        before, self._seen[handle] = self._seen[handle], list(table.states)
        name = parse_app_handle(handle).app_id
        for k, state in enumerate(table.states):
            was = before[k] if before else None
            if state is not was and (before or state is not AppState.PENDING):
                code = table.exit_codes[k]
                msg = f"exit code {code}" if code else ""
                yield Change(0, f"{handle}/{k}", f"{name}/{k}", was, state, msg, table.ended[k] or time.time())
