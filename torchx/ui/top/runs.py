"""The runs as the list shows them: in order, searched, counted."""

from __future__ import annotations

import time

from torchx.specs.tasks import progress
from torchx.ui.top.rows import BAD, MUTED, STYLES, marked
from torchx.util.datetime import ago, duration
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from torchx.runs import Run
    from torchx.ui.top.rows import Cells

    Row = dict[str, Any]

GROUPS = {
    "running": ("RUNNING",),
    "pending": ("PENDING", "SUBMITTED", "UNSUBMITTED"),
    "failed": ("FAILED",),
    "succeeded": ("SUCCEEDED",),
    "cancelled": ("CANCELLED", "UNKNOWN"),
}
_STATE, _WHERE, _WHEN, _TOOK = 11, 11, 10, 12
_GAPS = 12


def row_of(run: Run) -> Row:
    """A run as :class:`torchx.ui.live.Live` compares it."""
    over = run.is_terminal()
    msg = "" if run.msg == "<NONE>" else run.msg
    return {
        "handle": run.handle,
        "name": run.name or run.app_id,
        "app_id": run.app_id,
        "scheduler": run.scheduler,
        "state": str(run.state),
        "msg": msg,
        "tasks": progress(msg),  # of a sweep, as the poller has seen it
        "created": run.created_at,
        "ended": run.ended_at if over else None,
        "order": run.id,
    }


@dataclass
class Wanted:
    """Which runs are shown.

    Attributes:
        text: words, all of which are in name, id, scheduler, state or cause.
        group: of :data:`GROUPS`; empty: any.
    """

    text: str = ""
    group: str = ""


class RunList:
    """All runs, newest first, and those that are wanted."""

    def __init__(self) -> None:
        self._all: dict[str, Row] = {}
        self.wanted = Wanted()
        self.shown: list[Row] = []

    def update(self, rows: Iterable[Row]) -> None:
        """Rows that are new, have changed, or have ``gone``."""
        for row in rows:
            if row.get("gone"):
                self._all.pop(row["handle"], None)
            else:
                self._all[row["handle"]] = row
        self.choose()

    def choose(self) -> None:
        """Finds the wanted ones."""
        states = GROUPS.get(self.wanted.group)
        words = self.wanted.text.lower().split()
        found = [r for r in self._all.values() if states is None or r["state"] in states]
        if words:
            found = [r for r in found if all(word in _text(r) for word in words)]
        self.shown = sorted(found, key=lambda r: -r["order"])

    def get(self, handle: str) -> Row | None:
        """The row of a run."""
        return self._all.get(handle)

    def position(self, handle: str) -> int | None:
        """Where a run is among those that are shown."""
        return next((i for i, row in enumerate(self.shown) if row["handle"] == handle), None)

    def counts(self) -> dict[str, int]:
        """How many runs of each group there are."""
        counted = dict.fromkeys(GROUPS, 0)
        groups = {state: group for group, states in GROUPS.items() for state in states}
        for row in self._all.values():
            counted[groups.get(row["state"], "cancelled")] += 1
        return counted

    def cells(self, i: int, width: int) -> Cells:
        """A line of the list."""
        row = self.shown[i]
        name, cause = _rooms(width)
        end = row["ended"] or time.time()
        began = row["state"] != "UNSUBMITTED"
        tasks, bad = row["tasks"], BAD if "failed" in row["tasks"] else MUTED
        cells = [
            (marked(row["state"]), _STATE, STYLES.get(row["state"], "")),
            (row["name"], name, ""),
            (row["scheduler"], _WHERE, MUTED),
        ]
        if tasks and not cause:  # how far it is says more than when it began
            return [*cells, (tasks, _WHEN + 2 + _TOOK, bad)]
        cells += [
            (ago(row["created"]), _WHEN, MUTED),
            (duration(end - row["created"]) if began else "", _TOOK, MUTED),
        ]
        what = tasks or (" ".join(row["msg"].split()) if row["state"] != "SUCCEEDED" else "")
        return [*cells, (what, cause, bad)] if cause else cells

    @staticmethod
    def heading(width: int) -> Cells:
        """The line above."""
        name, cause = _rooms(width)
        words = ["  STATE", "RUN", "SCHEDULER", "LAUNCHED", "TOOK", "WHAT BECAME OF IT"]
        rooms = [_STATE, name, _WHERE, _WHEN, _TOOK, cause]
        return [(word, room, "") for word, room in zip(words, rooms, strict=True) if room]


def _rooms(width: int) -> tuple[int, int]:
    """Columns of the name, and of the cause: none where there is no room for it."""
    left = max(width - _STATE - _WHERE - _WHEN - _TOOK - _GAPS - 1, 10)
    if left < 38:
        return left, 0
    name = min(max(left // 3, 18), 40)
    return name, left - name


def _text(row: Row) -> str:
    return f"{row['name']} {row['handle']} {row['state']} {row['msg']}".lower()
