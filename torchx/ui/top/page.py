"""What the pages of a run, of a task and of a sweep have in common: they look again when there may be something new."""

from __future__ import annotations

import asyncio
import contextlib
import time

from rich.text import Text
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Static

from torchx.errors import TorchXError
from torchx.ui.top.rows import BAD, MUTED, STYLES, marked
from torchx.util.datetime import ago, duration
from torchx.util.term import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import ClassVar

    from torchx.specs.api import AppStatus
    from torchx.ui.top.app import Top
    from torchx.ui.top.runs import Row

_NEAR_S, _FAR_S = 2.0, 15.0


class JobPage(Screen[None]):
    """The page of one job; Esc leads back."""

    BINDINGS: ClassVar = [
        Binding("escape,q", "back", "back"),
        Binding("s", "app.shell", "shell"),
        Binding("c", "app.cancel", "cancel"),
        Binding("r", "app.rerun", "rerun"),
        Binding("question_mark", "app.help", "help"),
    ]
    IS_SWEEP: ClassVar = False
    app: Top  # it is shown by no other

    def __init__(self, handle: str) -> None:
        super().__init__()
        self.handle = handle
        self._status: AppStatus | None = None
        self._news = asyncio.Event()
        self.looked = asyncio.Event()  # once at least
        self._near = False  # looking costs nothing worth mentioning

    def on_mount(self) -> None:
        """Begins to look."""
        self._title()
        self.run_worker(self._keep_looking(), group="look")
        self.set_interval(1.0, self._title)

    def changed(self) -> None:
        """Something is new of this run on record."""
        self._title()
        self._news.set()

    async def found(self, status: AppStatus | None) -> None:
        """Shows what the scheduler says; None: it does not know the job."""

    def chosen(self) -> str:
        """The handle of the part of the job that the cursor is on."""
        return self.handle

    def row(self) -> Row | None:
        """What is on record of it. A task has no record of its own: that of its sweep, and what its scheduler says."""
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

    async def _keep_looking(self) -> None:
        while True:
            self._news.clear()
            await self._look()
            self.looked.set()
            over = self._status is not None and self._status.is_terminal()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), None if over else _NEAR_S if self._near else _FAR_S)

    async def _look(self) -> None:
        """Asks the scheduler of this one job: replicas, tasks and what they use are on no record."""
        aio = self.app.runner.aio
        try:
            self._near = await aio.is_near(self.handle)
            self._status = status = await aio.status(self.handle)
        except TorchXError as e:
            self.say([printable(str(e))], BAD)
            return
        if status is not None and (status.tasks is not None) is not self.IS_SWEEP and self.is_current:
            self.app.switch_screen(self.app.page_of(self.handle, sweep=not self.IS_SWEEP))
        else:
            await self.found(status)
            self._title()

    def say(self, lines: Sequence[str], style: str) -> None:
        """Says below the title why, or how far."""
        cause = self.query_one("#cause", Static)
        cause.update(Text("\n".join(lines), style=style, overflow="ellipsis"))
        cause.display = bool(lines and lines[0])

    def about(self) -> str:
        """More about it, for the second line of the title."""
        restarts = self._status.num_restarts if self._status is not None else 0
        return f", restarts: {restarts}" if restarts > 0 else ""

    def _title(self) -> None:
        row = self.row()
        if row is None:
            return
        state = row["state"] if self._status is None else str(self._status.state)
        took = duration((row["ended"] or time.time()) - row["created"])
        text = Text.assemble(
            (marked(state), STYLES.get(state, "")),
            ("  " + printable(row["name"]), "bold"),
            (f"  {self.handle}\n", MUTED),
            (f"launched {ago(row['created'])}, {'took' if row['ended'] else 'for'} {took}{self.about()}", MUTED),
        )
        self.query_one("#title", Static).update(text, layout=False)

    def action_back(self) -> None:
        """Leads back to where it was opened."""
        self.app.pop_screen()
