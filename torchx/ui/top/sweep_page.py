"""One sweep: how far it is, why tasks failed, and its tasks, those that failed first."""

from __future__ import annotations

import asyncio

from textual.widgets import Footer, Static

from torchx.runs import default_registry
from torchx.specs.tasks import TaskTable, progress
from torchx.ui.top.page import JobPage
from torchx.ui.top.rows import BAD, MUTED, STYLES, Rows, marked
from torchx.util.datetime import ago
from torchx.util.term import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

    from textual.app import ComposeResult

    from torchx.specs.api import AppStatus
    from torchx.specs.tasks import TaskList
    from torchx.ui.top.rows import Cells

_FIRST = ("FAILED", "UNKNOWN", "RUNNING", "CANCELLED")  # then those that wait, then those that succeeded
_GROUPS = 4
_NUMBERS = 3
_STATE, _EXIT, _ENDED = 11, 4, 10
_LEAST = 12  # columns of values, and of a cause


class SweepPage(JobPage):
    """The page of a sweep; Enter opens a task, as a job is opened."""

    IS_SWEEP: ClassVar = True

    def __init__(self, handle: str) -> None:
        super().__init__(handle)
        self.table = TaskTable(states=[], exit_codes=[], ended=[])
        self.order: list[int] = []
        self._values: TaskList | None = None
        self._longest = 0  # columns of a task's values, about
        self._causes: dict[int, str] = {}

    def compose(self) -> ComposeResult:
        """What is on the screen."""
        yield Static(id="title")
        yield Static(id="cause")
        yield Rows(self._cells, self._heading, id="tasks")
        yield Footer()

    def on_mount(self) -> None:
        """The keys are for the tasks."""
        rows = self.query_one("#tasks", Rows)
        rows.border_title = "Tasks"
        rows.focus()

    async def found(self, status: AppStatus | None) -> None:
        """Shows the tasks, and why some failed."""
        if status is None or status.tasks is None:
            return
        if self._values is None:
            self._values = await asyncio.to_thread(self._given)
            some = range(0, len(status.tasks.states), max(len(status.tasks.states) // 100, 1))
            self._longest = max((len(self._given_to(k)) for k in some), default=0)
        before = self.table.failed()
        self.show(status.tasks)
        if self.table.failed() != before:
            await self._why()

    def _given(self) -> TaskList | None:
        return default_registry().tasks(self.app.runner.recorded(self.handle))

    def show(self, table: TaskTable) -> None:
        """Puts these tasks in order, with the same one chosen as before; at the top one stays there."""
        self.table = table
        rows = self.query_one("#tasks", Rows)
        at = self.order[rows.cursor] if rows.cursor and self.order else None
        rank = {name: i for i, name in enumerate((*_FIRST, "PENDING", "SUBMITTED", "UNSUBMITTED", "SUCCEEDED"))}
        ranks = [rank[state.name] for state in self.table.states]
        self.order = sorted(range(len(ranks)), key=ranks.__getitem__)
        rows.show(len(self.order), None if at is None else self.order.index(at))

    async def _why(self) -> None:
        groups = await self.app.runner.aio.sweep_failures(self.handle, self.table)
        self._causes = {k: group.cause for group in groups for k in group.tasks}
        lines = []
        for group in groups[:_GROUPS]:
            numbers = ", ".join(map(str, group.tasks[:_NUMBERS])) + (", ..." if len(group.tasks) > _NUMBERS else "")
            lines.append(f"{len(group.tasks):>6,}  {printable(group.cause)}  ({numbers})")
        if len(groups) > _GROUPS:
            lines.append(f"        and {len(groups) - _GROUPS:,} more causes")
        self.say(lines, BAD)
        self.query_one("#tasks", Rows).refresh()

    def about(self) -> str:
        """How far it is."""
        running = sum(state.name == "RUNNING" for state in self.table.states)
        words = [progress(self.table.summary()) if self.order else "", f"{running:,} running" if running else ""]
        return "".join(f", {word}" for word in words if word)

    # -- tasks -----------------------------------------------------------------------------------

    def _columns(self, width: int) -> list[tuple[str, int]]:
        """Headings and columns: causes get what is left, values at most half of it."""
        number = max(len(str(len(self.order))), 4)
        left = width - 1 - (number + _STATE + _EXIT + _ENDED + 4 * 2)
        values = min(max(self._longest, 6), left // 2 - 2) if self._longest else 0
        values = values if values >= _LEAST // 2 else 0
        cause = left - values - 4 if values else left - 2
        return [
            *(("TASK", number), ("  STATE", _STATE), ("EXIT", _EXIT), ("ENDED", _ENDED), ("VALUES", values)),
            ("WHY", cause if cause >= _LEAST else 0),
        ]

    def _given_to(self, k: int) -> str:
        return self._values.text(k) if self._values else ""

    def _heading(self, width: int) -> Cells:
        return [(word, room, "") for word, room in self._columns(width) if room]

    def _cells(self, i: int, width: int) -> Cells:
        k = self.order[i]
        state, code, ended = self.table.states[k].name, self.table.exit_codes[k], self.table.ended[k]
        cells = [
            (str(k), ""),
            (marked(state), STYLES.get(state, "")),
            ("" if code is None else str(code), BAD if code else MUTED),
            (ago(ended) if ended else "", MUTED),
            (self._given_to(k), ""),
            (self._causes.get(k, "").removeprefix(f"exit code {code}: "), BAD),
        ]
        rooms = [room for _, room in self._columns(width)]
        return [(text, room, colour) for (text, colour), room in zip(cells, rooms, strict=True) if room]

    def chosen(self) -> str:
        """The task that the cursor is on."""
        cursor = self.query_one("#tasks", Rows).cursor
        return f"{self.handle}/{self.order[cursor]}" if cursor < len(self.order) else self.handle

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """The page of the chosen task."""
        event.stop()
        self.app.push_screen(self.app.page_of(self.chosen(), sweep=False))
