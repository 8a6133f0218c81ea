"""The tables of top: runs, and of a job its replicas with their metrics, the timeline, the tasks of a sweep."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from torchx.runner.show.tables import Row, usage_table
from torchx.schedulers.kit.metrics import ReplicaMetrics
from torchx.specs.api import AppStatus
from torchx.specs.tasks import TaskList, TaskTable, progress
from torchx.ui.top.rows import BAD, MUTED, STATE, STYLES, Cells, Table, marked
from torchx.util.datetime import ago, duration

GROUPS = {
    "running": ("RUNNING",),
    "pending": ("PENDING", "SUBMITTED", "UNSUBMITTED"),
    "failed": ("FAILED",),
    "succeeded": ("SUCCEEDED",),
    "cancelled": ("CANCELLED", "UNKNOWN"),
}
_LAUNCHED, _WHERE, _LEAST_OUTCOME, _MAX_RUN = 11, 12, 24, 40  # columns
_WHO = re.compile(r"^\S+/\d+(?: rank \d+)?(?: on \S+)?: (?:exit code \d+: )?(?=\S)")
_HOST, _MAX_HOST = 9, 40  # columns
_NAME, _TOOK, _TEXT = 24, 11, 40
_FIRST = ("FAILED", "UNKNOWN", "RUNNING", "CANCELLED", "PENDING", "SUBMITTED", "UNSUBMITTED", "SUCCEEDED")
_EXIT, _ENDED, _LEAST = 4, 10, 12
_COLOURS = {"CPU": "#7fb2ff", "MEMORY": "#d9a3ee", "PEAK": "#d9a3ee", "LIMIT": MUTED, "GPU": "#6fce8d"}


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
        self._terse = False

    def update(self, rows: Iterable[Row]) -> None:
        """Add, changes, or (with ``gone``) removes rows."""
        for row in rows:
            if row.get("gone"):
                self._all.pop(row["handle"], None)
            else:
                self._all[row["handle"]] = {**self._all.get(row["handle"], {}), **row}
        self.choose()

    def choose(self) -> None:
        states = GROUPS.get(self.group)
        found = [r for r in self._matching() if states is None or r["state"] in states]
        self.shown = sorted(found, key=lambda r: -r["order"])
        self._longest = max((len(_label(row)) for row in self.shown), default=0)

    def _matching(self) -> list[Row]:
        words = self.words.lower().split()
        return (
            [r for r in self._all.values() if all(word in _text(r) for word in words)]
            if words
            else [*self._all.values()]
        )

    def get(self, handle: str) -> Row | None:
        return self._all.get(handle)

    def position(self, handle: str) -> int | None:
        """Return the index of a run among the shown ones."""
        return next((i for i, row in enumerate(self.shown) if row["handle"] == handle), None)

    def counts(self) -> dict[str, int]:
        """Return the number of runs that match the search, by group."""
        counted = dict.fromkeys(GROUPS, 0)
        groups = {state: group for group, states in GROUPS.items() for state in states}
        for row in self._matching():
            counted[groups.get(row["state"], "cancelled")] += 1
        return counted

    def __len__(self) -> int:
        return len(self.shown)

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Return the columns. The scheduler, then the duration, give way to the outcome; the foot has both."""
        left = width - 2 - (STATE + 2) - (_LAUNCHED + 2)
        run = min(max(self._longest, 12), _MAX_RUN, left // 2)
        outcome = left - run - 2
        took = _TOOK if outcome - _TOOK - 2 >= _LEAST_OUTCOME else 0
        outcome -= took + 2 if took else 0
        where = _WHERE if took and outcome - _WHERE - 2 >= _LEAST_OUTCOME else 0
        outcome -= where + 2 if where else 0
        self._terse = outcome < 2 * _LEAST_OUTCOME
        words = ("  STATE", "RUN", "SCHEDULER", "LAUNCHED", "TOOK", "OUTCOME")
        return list(zip(words, (STATE, run, where, _LAUNCHED, took, outcome), strict=True))

    def cells(self, i: int) -> Cells:
        row = self.shown[i]
        message = " ".join(row["msg"].split()) if row["state"] != "SUCCEEDED" else ""
        outcome = row["tasks"] or (_WHO.sub("", message, count=1) if self._terse else message)
        bad = row["state"] == "FAILED" or "failed" in row["tasks"]
        return [
            *(marked(row["state"]), (_label(row), ""), (row["scheduler"], MUTED), (ago(row["created"]), MUTED)),
            *((took(row), MUTED), (outcome, BAD if bad else MUTED)),
        ]


class Replicas(Table):
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
        return [name, ("  STATE", STATE), *others, ("HOST", min(host, _MAX_HOST) if host >= _HOST else 0)]

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
        running = sum(state.name == "RUNNING" for state in self.table.states)
        words = [progress(self.table.summary()) if self.order else "", f"{running:,} running" if running else ""]
        return "".join(f", {word}" for word in words if word)

    def __len__(self) -> int:
        return len(self.order)

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Return the columns. Values get at most half of the free room, causes the rest."""
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


def took(row: Row) -> str:
    return duration((row["ended"] or time.time()) - row["created"]) if row["state"] != "UNSUBMITTED" else ""


def _label(row: Row) -> str:
    """Return the name and the id of a run, which many ids begin with."""
    return row["app_id"] if row["name"] in row["app_id"] else f"{row['name']} {row['app_id']}"


def _text(row: Row) -> str:
    return f"{row['name']} {row['handle']} {row['state']} {row['msg']}".lower()
