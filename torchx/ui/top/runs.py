"""The table of runs: order, search and counts."""

from __future__ import annotations

import time
from collections.abc import Iterable

from torchx.runner.shown import Row
from torchx.ui.top.rows import BAD, MUTED, STATE, Cells, Table, marked
from torchx.util.datetime import ago, duration

GROUPS = {
    "running": ("RUNNING",),
    "pending": ("PENDING", "SUBMITTED", "UNSUBMITTED"),
    "failed": ("FAILED",),
    "succeeded": ("SUCCEEDED",),
    "cancelled": ("CANCELLED", "UNKNOWN"),
}
_WHERE, _TIMES, _PROGRESS = 11, 24, 28  # columns
_LEAST_CAUSE, _MOST_NAME = 24, 40


class RunList(Table):
    """All runs, and the selected ones, newest first.

    Attributes:
        words: the search; each word must occur in name, id, scheduler, state or cause.
        group: the selected one of :data:`GROUPS`; empty: all.
    """

    def __init__(self) -> None:
        self._all: dict[str, Row] = {}
        self.words = self.group = ""
        self.shown: list[Row] = []
        self._longest = 0
        self._wide = True

    def update(self, rows: Iterable[Row]) -> None:
        """Adds, changes, or (with ``gone``) removes rows."""
        for row in rows:
            if row.get("gone"):
                self._all.pop(row["handle"], None)
            else:
                self._all[row["handle"]] = {**self._all.get(row["handle"], {}), **row}
        self.choose()

    def choose(self) -> None:
        """Selects the runs to show."""
        states = GROUPS.get(self.group)
        words = self.words.lower().split()
        found = [r for r in self._all.values() if states is None or r["state"] in states]
        if words:
            found = [r for r in found if all(word in _text(r) for word in words)]
        self.shown = sorted(found, key=lambda r: -r["order"])
        self._longest = max((len(row["name"]) for row in self.shown), default=0)

    def get(self, handle: str) -> Row | None:
        return self._all.get(handle)

    def position(self, handle: str) -> int | None:
        """Returns the index of a run among the shown ones."""
        return next((i for i, row in enumerate(self.shown) if row["handle"] == handle), None)

    def counts(self) -> dict[str, int]:
        """Returns the number of runs in each group."""
        counted = dict.fromkeys(GROUPS, 0)
        groups = {state: group for group, states in GROUPS.items() for state in states}
        for row in self._all.values():
            counted[groups.get(row["state"], "cancelled")] += 1
        return counted

    def __len__(self) -> int:
        return len(self.shown)

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Returns the columns. Without room for causes, the progress of a sweep replaces its times."""
        left = width - STATE - _WHERE - _TIMES - 4 * 2
        name = min(max(self._longest, 12), _MOST_NAME, left // 2)
        self._wide = left - name - 2 >= _LEAST_CAUSE
        times, name, cause = (_TIMES, name, left - name - 2) if self._wide else (_PROGRESS, max(left - 4, 10), 0)
        words = ("  STATE", "RUN", "SCHEDULER", f"{'LAUNCHED':<12}TOOK", "WHAT BECAME OF IT")
        return list(zip(words, (STATE, name, _WHERE, times, cause), strict=True))

    def cells(self, i: int) -> Cells:
        row = self.shown[i]
        took = duration((row["ended"] or time.time()) - row["created"]) if row["state"] != "UNSUBMITTED" else ""
        times = (f"{ago(row['created']):<12}{took}", MUTED)
        what = row["tasks"] or (" ".join(row["msg"].split()) if row["state"] != "SUCCEEDED" else "")
        cause = (what, BAD if row["state"] == "FAILED" or "failed" in row["tasks"] else MUTED)
        times = cause if row["tasks"] and not self._wide else times
        return [marked(row["state"]), (row["name"], ""), (row["scheduler"], MUTED), times, cause]


def _text(row: Row) -> str:
    return f"{row['name']} {row['handle']} {row['state']} {row['msg']}".lower()
