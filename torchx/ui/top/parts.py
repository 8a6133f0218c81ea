"""Tables of the page of a job: replicas and their metrics, the timeline, the tasks of a sweep."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torchx.runner.shown import usage_table
from torchx.schedulers.metrics import ReplicaMetrics
from torchx.specs.api import AppStatus
from torchx.specs.tasks import TaskList, TaskTable, progress
from torchx.ui.top.rows import BAD, MUTED, STATE, STYLES, Cells, Table, marked
from torchx.util.datetime import ago, duration

_HOST, _MOST_HOST = 9, 40  # columns
_NAME, _TOOK, _TEXT = 24, 11, 40
_FIRST = ("FAILED", "UNKNOWN", "RUNNING", "CANCELLED", "PENDING", "SUBMITTED", "UNSUBMITTED", "SUCCEEDED")
_EXIT, _ENDED, _LEAST = 4, 10, 12
_COLOURS = {"CPU": "#7fb2ff", "MEMORY": "#d9a3ee", "PEAK": "#d9a3ee", "LIMIT": MUTED, "GPU": "#6fce8d"}


class Replicas(Table):
    """The replicas of a job, and what they use."""

    title = "Replicas"

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []
        self.part = ""  # the replica whose log is shown; empty: all
        self._used: list[ReplicaMetrics] = []
        self._over = False
        self._drawn: tuple[int, list[list[str]]] = 0, []

    def update(self, status: AppStatus, used: Mapping[tuple[str, int], ReplicaMetrics]) -> None:
        replicas = [replica for role in status.roles for replica in role.replicas]
        self.found = [(f"{r.role}/{r.id}", str(r.state), r.hostname or r.hostaddr or "") for r in replicas]
        self._used = [used.get((r.role, r.id)) or ReplicaMetrics(r.role, r.id) for r in replicas]
        self._over = status.is_terminal()
        self._drawn = 0, []

    def __len__(self) -> int:
        return len(self.found)

    def columns(self, width: int) -> list[tuple[str, int]]:
        if self._drawn[0] != width:
            self._drawn = width, usage_table(self._used, width - 1 - STATE - 2, over=self._over)
        drawn = self._drawn[1]
        rooms = [max(map(len, column)) for column in zip(*drawn, strict=True)]
        name, *others = zip(drawn[0], rooms, strict=True)
        host = width - 1 - STATE - 2 - sum(rooms) - 2 * len(rooms)
        return [name, ("  STATE", STATE), *others, ("HOST", min(host, _MOST_HOST) if host >= _HOST else 0)]

    def cells(self, i: int) -> Cells:
        name, state, host = self.found[i]
        headings, cells = self._drawn[1][0], self._drawn[1][i + 1]
        more = [(text, _COLOURS.get(word, "")) for word, text in zip(headings[1:], cells[1:], strict=True)]
        return [(name, "bold" if self.part == name else ""), marked(state), *more, (host, MUTED)]


class Timeline(Table):
    """Attempts and replicas as bars."""

    title = "Timeline"

    def __init__(self, shown: dict[str, Any]) -> None:
        self._bars = shown["bars"]
        self._from, self._to = shown["from"], shown["to"]
        self._room = 0

    def __len__(self) -> int:
        return len(self._bars)

    def columns(self, width: int) -> list[tuple[str, int]]:
        name = min(max([len(bar["name"]) for bar in self._bars], default=0), _NAME)
        text = min(max([len(bar["text"]) for bar in self._bars], default=0), _TEXT, width // 3)
        self._room = max(width - name - text - _TOOK - 4 * 2, 10)
        end = f"{duration((self._to or time.time()) - self._from):>{self._room - 2}}"
        return [("", name), (f"0 {end}", self._room), ("TOOK", _TOOK), ("", text)]

    def cells(self, i: int) -> Cells:
        bar, now = self._bars[i], time.time()
        end = self._to or now
        to = bar["to"] or end
        scale = self._room / max(end - self._from, 1e-3)
        start = min(int((bar["from"] - self._from) * scale), self._room - 1)
        line = " " * start + "━" * max(min(round((to - bar["from"]) * scale), self._room - start), 1)
        took = (duration(to - bar["from"]), MUTED)
        return [(bar["name"], ""), (line, STYLES.get(bar["state"], "")), took, (bar["text"], MUTED)]


class Tasks(Table):
    """The tasks of a sweep with their values, failed ones first."""

    title = "Tasks"

    def __init__(self) -> None:
        self.table = TaskTable(states=[], exit_codes=[], ended=[])
        self.order: list[int] = []
        self.causes: dict[int, str] = {}
        self._values: TaskList | None = None
        self._longest = 0  # approximate width of a task's values

    def update(self, table: TaskTable) -> None:
        self.table = table
        rank = {name: i for i, name in enumerate(_FIRST)}
        ranks = [rank[state.name] for state in table.states]
        self.order = sorted(range(len(ranks)), key=ranks.__getitem__)

    def set_values(self, values: TaskList | None) -> None:
        self._values = values
        some = range(0, len(values.points) if values else 0, max(len(values.points) // 100, 1) if values else 1)
        self._longest = max((len(self._given(k)) for k in some), default=0)

    def about(self) -> str:
        """Returns the progress of the sweep."""
        running = sum(state.name == "RUNNING" for state in self.table.states)
        words = [progress(self.table.summary()) if self.order else "", f"{running:,} running" if running else ""]
        return "".join(f", {word}" for word in words if word)

    def __len__(self) -> int:
        return len(self.order)

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Returns the columns. Values get at most half of the free room, causes the rest."""
        number = max(len(str(len(self.order))), 4)
        left = width - 1 - (number + STATE + _EXIT + _ENDED + 4 * 2)
        values = min(max(self._longest, 6), left // 2 - 2) if self._longest else 0
        values = values if values >= _LEAST // 2 else 0
        cause = left - values - 4 if values else left - 2
        return [
            *(("TASK", number), ("  STATE", STATE), ("EXIT", _EXIT), ("ENDED", _ENDED), ("VALUES", values)),
            ("WHY", cause if cause >= _LEAST else 0),
        ]

    def cells(self, i: int) -> Cells:
        k = self.order[i]
        code, ended = self.table.exit_codes[k], self.table.ended[k]
        return [
            *((str(k), ""), marked(self.table.states[k].name)),
            *(("" if code is None else str(code), BAD if code else MUTED), (ago(ended) if ended else "", MUTED)),
            *((self._given(k), ""), (self.causes.get(k, "").removeprefix(f"exit code {code}: "), BAD)),
        ]

    def _given(self, k: int) -> str:
        return self._values.text(k) if self._values else ""
