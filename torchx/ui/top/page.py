"""The page of a job: its state and cause, its replicas and log, or the tasks of a sweep."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Footer, Log, Static

from torchx.errors import TorchXError
from torchx.render.status_page import total_used
from torchx.runner.show.tables import Row, replica_metrics, timeline
from torchx.runs import default_registry
from torchx.schedulers.kit.metrics import ReplicaMetrics
from torchx.specs.api import AppStatus
from torchx.specs.failures import parse_failure
from torchx.specs.tasks import TaskTable
from torchx.ui.follow import log_lines
from torchx.ui.top.parts import Replicas, Tasks, Timeline
from torchx.ui.top.rows import BAD, MUTED, Rows, Table, marked
from torchx.util.datetime import ago, duration
from torchx.util.term import printable

if TYPE_CHECKING:
    from torchx.ui.top.app import Top

_NEAR_S, _FAR_S = 2.0, 15.0
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")  # escape sequences
_LINES, _MAX_LINES = 2_000, 50_000
_CAUSE_LINES, _GROUPS, _NUMBERS = 8, 4, 3


class Lines(Log):
    """The log. Measures new lines directly; Textual does so in a thread, which crashes when it outlives the page."""

    def _update_size(self, updates: int, lines: list[str]) -> None:
        if lines:
            self._update_maximum_width(updates, max(cell_len(self._process_line(line)) for line in lines))


class Page(Screen[None]):
    """The page of a run, a task, or a sweep. Without ``sweep``, the first status shows whether it is one."""

    BINDINGS: ClassVar = [
        Binding("escape,q", "back", "back"),
        Binding("s", "app.shell", "shell"),
        Binding("c", "app.cancel", "cancel"),
        Binding("r", "app.rerun", "rerun"),
        Binding("question_mark", "app.help", "help"),
        Binding("l", "log", "log"),
        Binding("a", "all", "all"),
        Binding("t", "times", "times"),
        Binding("tab", "app.focus_next", "other pane", show=False),
    ]
    app: Top

    def __init__(self, handle: str, *, sweep: bool = False) -> None:
        super().__init__()
        self.handle = handle
        self.tasks = Tasks() if sweep else None
        self.replicas = Replicas()
        self._head, self._cause = Static(id="title"), Static(id="cause")
        self._rows = Rows(self.replicas if self.tasks is None else self.tasks, id="parts")
        self._log = Lines(id="log", max_lines=_MAX_LINES)
        self._times = False
        self._status: AppStatus | None = None
        self._used: dict[tuple[str, int], ReplicaMetrics] = {}
        self._news = asyncio.Event()
        self._refreshed = asyncio.Event()  # set after the first status
        self._near = False  # whether the scheduler can be asked often

    def compose(self) -> ComposeResult:
        yield from (self._head, self._cause, self._rows, self._log, Footer())

    def on_mount(self) -> None:
        self._rows.focus()
        self._lay_out()
        self._title()
        self._follow()
        self.run_worker(self._refresh_loop(), group="status")
        self.set_interval(1.0, self._title)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  # Textual's
        """Disables keys that a sweep lacks: it has neither a log nor replicas."""
        return self.tasks is None or action not in ("log", "all", "times")

    def _lay_out(self) -> None:
        self._rows.show(self.replicas if self.tasks is None else self.tasks)
        self._log.display = self.tasks is None
        self.refresh_bindings()

    # -- status ----------------------------------------------------------------------------------

    def changed(self) -> None:
        """Refresh the page, because the record of the run has changed."""
        self._title()
        self._news.set()

    def row(self) -> Row | None:
        """Return the row of the run. A task has none, so its row is made of that of its sweep and of its status."""
        if (row := self.app.runs.get(self.handle)) is not None:
            return row
        sweep, _, k = self.handle.rpartition("/")
        if (row := self.app.runs.get(sweep)) is None:
            return None
        task = {**row, "handle": self.handle, "app_id": f"{row['app_id']}/{k}", "name": f"{row['name']}/{k}"}
        if (known := self._status) is not None:
            began = known.started_at or row["created"]
            task.update(state=str(known.state), created=began, ended=known.ended_at, msg=known.msg, tasks="")
        return task

    async def _refresh_loop(self) -> None:
        while True:
            self._news.clear()
            await self._refresh_status()
            self._refreshed.set()
            over = self._status is not None and self._status.is_terminal()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), None if over else _NEAR_S if self._near else _FAR_S)

    async def _refresh_status(self) -> None:
        """Asks the scheduler for replicas, tasks and metrics, which are not on record."""
        aio = self.app.runner.aio
        try:
            self._near = await aio.is_near(self.handle)
            self._status = status = await aio.status(self.handle)
        except TorchXError as e:
            self._show_message([printable(str(e))], BAD)
            return
        if status is not None and status.tasks is not None:
            await self._update_tasks(status.tasks)
        elif status is not None:
            with contextlib.suppress(TorchXError):
                await aio.fill_pace(self.handle, status)
                self._used = replica_metrics(await aio.metrics(self.handle), self._used)
            self.replicas.update(status, self._used)
            self._show_replicas()
            self._show_cause(status)
        self._title()

    def _show_replicas(self) -> None:
        table: Table = self.replicas
        if self._times and self._status:
            row = self.row()
            table = Timeline(timeline(self._status, row["created"] if row else None))
        self._rows.show(table)
        self._rows.styles.height = min(max(len(table), 1) + 3, max(self.size.height // 3, 6))

    async def _update_tasks(self, table: TaskTable) -> None:
        if self.tasks is None:
            self.tasks = Tasks()
            self._lay_out()
        if not self.tasks.order:
            run = await asyncio.to_thread(self.app.runner.recorded, self.handle)
            self.tasks.set_values(await asyncio.to_thread(default_registry().tasks, run))
        before = self.tasks.table.failed()
        self.show(self.tasks, table)
        if table.failed() != before:
            await self._show_causes(self.tasks)

    def show(self, tasks: Tasks, table: TaskTable) -> None:
        """Show the tasks in order, and keep the chosen task chosen unless it is the first line."""
        at = tasks.order[self._rows.cursor] if self._rows.cursor and tasks.order else None
        tasks.update(table)
        self._rows.show(tasks, None if at is None else tasks.order.index(at))

    # -- cause and title -------------------------------------------------------------------------

    def _show_cause(self, status: AppStatus) -> None:
        message = "" if status.msg == "<NONE>" else printable(status.msg, lines=True)
        failure = parse_failure(status.structured_error_msg) if str(status.state) == "FAILED" else None
        lines = [message or (printable(failure.summary()) if failure else "")]
        if failure is not None and failure.traceback:
            trace = printable(failure.traceback.strip(), lines=True).splitlines()[-_CAUSE_LINES:]
            lines += [f"  {line}" for line in trace if line.strip(" ^~") and line.strip() not in message]
        lines += [f"{printable(role.role)}: {printable(role.order())}" for role in status.roles if role.order()]
        total = total_used(status)
        paces = [*(status.pace.lines() if status.pace else ()), *([("total", total)] if total else [])]
        lines += [f"{label}: {text}" for label, text in paces]
        lines = [line for line in lines if line]
        self._show_message(lines, BAD if failure else MUTED)

    async def _show_causes(self, tasks: Tasks) -> None:
        groups = await self.app.runner.aio.sweep_failures(self.handle, tasks.table)
        tasks.causes = {k: group.cause for group in groups for k in group.tasks}
        lines = []
        for group in groups[:_GROUPS]:
            numbers = ", ".join(map(str, group.tasks[:_NUMBERS])) + (", ..." if len(group.tasks) > _NUMBERS else "")
            who = f"{len(group.tasks):,} tasks ({numbers})" if len(group.tasks) > 1 else f"task {numbers}"
            lines.append(f"{who}: {printable(group.cause)}")
        if len(groups) > _GROUPS:
            lines.append(f"and {len(groups) - _GROUPS:,} more causes")
        self._show_message(lines, BAD)
        self._rows.refresh()

    def _show_message(self, lines: Sequence[str], style: str) -> None:
        self._cause.update(Text("\n".join(lines), style=style, overflow="ellipsis"))
        self._cause.set_class(style == MUTED, "calm")
        self._cause.display = bool(lines and lines[0])

    def _title(self) -> None:
        row = self.row()
        if row is None:
            return
        state = row["state"] if self._status is None else str(self._status.state)
        took = f", took {duration(row['ended'] - row['created'])}" if row["ended"] else ""
        restarts = self._status.num_restarts if self._status is not None else 0
        about = self.tasks.about() if self.tasks is not None else f", restarts: {restarts}" if restarts > 0 else ""
        text = Text.assemble(
            marked(state),
            ("  " + printable(row["name"]), "bold"),
            (f"  {self.handle}\n", MUTED),
            (f"launched {ago(row['created'])}{took}{about}", MUTED),
        )
        self._head.update(text, layout=False)

    # -- replicas, tasks, and the log ------------------------------------------------------------

    def chosen(self) -> str:
        """Return the handle of the task or replica under the cursor."""
        cursor = self._rows.cursor
        if self.tasks is not None:
            return f"{self.handle}/{self.tasks.order[cursor]}" if cursor < len(self.tasks) else self.handle
        return self._target(self.replicas.found[cursor][0] if cursor < len(self.replicas) and not self._times else "")

    def _target(self, part: str) -> str:
        """Return the reference of a replica for commands. Replicas of a task are numbered across roles."""
        if not part:
            return self.handle
        if self.app.runs.get(self.handle) is not None:
            return f"{self.handle}/{part}"
        names = [name for name, *_ in self.replicas.found]
        return f"{self.handle}/{names.index(part)}" if len(names) > 1 else self.handle

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """Open the chosen task, or show only the log of the chosen replica."""
        event.stop()
        if self.tasks is not None:
            self.app.push_screen(Page(self.chosen()))
        elif not self._times:
            self.replicas.part = self.replicas.found[self._rows.cursor][0]
            self._follow()

    def action_all(self) -> None:
        self.replicas.part = ""
        self._follow()

    def action_log(self) -> None:
        """Toggles between the log alone and all panes."""
        shown = self._rows.display
        self._rows.display = not shown
        self._cause.display = not shown and bool(str(self._cause.render()))
        (self._log if shown else self._rows).focus()

    def action_times(self) -> None:
        """Toggles between the timeline and the replicas."""
        self._times = not self._times
        self._show_replicas()

    def action_back(self) -> None:
        self.app.pop_screen()

    def _follow(self) -> None:
        part = self.replicas.part
        self._log.clear()
        self._log.border_title = f"Log of {part}" if part else "Log"
        self._rows.refresh()
        self.run_worker(self._read_log(part), exclusive=True, group="log")

    async def _read_log(self, part: str) -> None:
        await self._refreshed.wait()  # to know whether it is a sweep, and the number of replicas
        if self.tasks is not None:
            return
        several = len(self.replicas) > 1 and not part
        async with contextlib.aclosing(log_lines(self._target(part), last=_LINES, stream=None)) as batches:
            async for batch in batches:
                for line in batch:
                    text = _SEQUENCE.sub("", str(line.get("error") or line.get("line")))
                    head = f"{line['role']}/{line['replica']} " if several and "error" not in line else ""
                    self._log.write_line(printable(head + text))
