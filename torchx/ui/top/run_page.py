"""One run: what became of it and why, its replicas with what they use, and its log."""

from __future__ import annotations

import contextlib
import re

from rich.cells import cell_len
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Footer, Log, Static

from torchx.errors import TorchXError
from torchx.schedulers.metrics import ReplicaMetrics
from torchx.ui.follow import log_lines
from torchx.ui.top.page import JobPage
from torchx.ui.top.rows import BAD, MUTED, STYLES, Rows, marked
from torchx.util.strings import size_text, sparkline
from torchx.util.term import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

    from textual.app import ComposeResult

    from torchx.specs.api import AppStatus
    from torchx.ui.top.rows import Cells

_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")  # colours and the like
_LINES = 2_000
_MOST_LINES = 50_000
_CAUSE_LINES = 8
_STATE, _BARS, _LEAST_BARS = 11, 16, 4


class Lines(Log):
    """The log. Textual measures new lines in a thread; where that outlives the page, the program ends."""

    def _update_size(self, updates: int, lines: list[str]) -> None:
        if lines:
            self._update_maximum_width(updates, max(cell_len(self._process_line(line)) for line in lines))


class RunPage(JobPage):
    """The page of a run, or of a task of a sweep."""

    BINDINGS: ClassVar = [
        Binding("l", "toggle_log", "full log"),
        Binding("a", "all", "all logs"),
        Binding("tab", "app.focus_next", "other pane", show=False),
    ]

    def __init__(self, handle: str) -> None:
        super().__init__(handle)
        self.replicas: list[tuple[str, int, str, str]] = []
        self._used: dict[tuple[str, int], ReplicaMetrics] = {}
        self.part = ""  # of which replica the log is; empty: of all

    def compose(self) -> ComposeResult:
        """What is on the screen."""
        yield Static(id="title")
        yield Static(id="cause")
        with Vertical(id="panes"):
            yield Rows(self._cells, self._heading, id="replicas")
            yield Lines(id="log", max_lines=_MOST_LINES)
        yield Footer()

    def on_mount(self) -> None:
        """Begins to look, and to follow the log."""
        self.query_one("#replicas", Rows).border_title = "Replicas"
        self.query_one("#log", Lines).border_title = "Log"
        self.query_one("#replicas", Rows).focus()
        self._follow()

    async def found(self, status: AppStatus | None) -> None:
        """Shows the replicas, what they use, and why it failed."""
        with contextlib.suppress(TorchXError):
            self._used = {(one.role, one.replica): one for one in await self.app.runner.aio.metrics(self.handle)}
        if status is not None:
            found = [replica for role in status.roles for replica in role.replicas]
            self.replicas = [(r.role, r.id, str(r.state), r.hostname or r.hostaddr or "") for r in found]
            self._cause(status)
        rows = self.query_one("#replicas", Rows)
        rows.show(len(self.replicas))
        rows.styles.height = min(max(len(self.replicas), 1) + 3, max(self.size.height // 3, 6))

    def _cause(self, status: AppStatus) -> None:
        from torchx.specs.failures import parse_failure

        said = "" if status.msg == "<NONE>" else printable(status.msg, lines=True)
        failure = parse_failure(status.structured_error_msg) if str(status.state) == "FAILED" else None
        lines = [said or (printable(failure.summary()) if failure else "")]
        if failure is not None and failure.traceback:
            trace = printable(failure.traceback.strip(), lines=True).splitlines()
            lines += [f"  {line}" for line in trace[-_CAUSE_LINES:] if line.strip(" ^~") and line.strip() not in said]
        self.say(lines, BAD if failure else MUTED)

    # -- replicas --------------------------------------------------------------------------------

    def _columns(self, width: int) -> list[tuple[str, int]]:
        """Headings and columns: lines of bars get what the others leave, the host what they leave."""
        name = min(max([len(f"{role}/{k}") for role, k, *_ in self.replicas] + [7]), 28)
        gpus = any(s.gpus for one in self._used.values() for s in one.samples[-1:])
        kinds = 3 if gpus else 2
        left = width - 1 - (name + _STATE + 5 + 8 + 8 + 7 + 14) - (7 if gpus else 0)
        bars = min(max(left // kinds - 2, 0), _BARS)
        bars = bars if bars >= _LEAST_BARS else 0
        host = max(left - kinds * (bars + 2) - 2, 0)
        return [
            *(("REPLICA", name), ("  STATE", _STATE), ("CPU", 5), ("", bars), ("MEMORY", 8), ("", bars)),
            *(("PEAK", 8), ("LIMIT", 7), ("GPU", 5 if gpus else 0), ("", bars if gpus else 0)),
            ("HOST", min(host, 40) if host >= 9 else 0),
        ]

    def _heading(self, width: int) -> Cells:
        return [(word, room, "") for word, room in self._columns(width) if room]

    def _cells(self, i: int, width: int) -> Cells:
        role, k, state, host = self.replicas[i]
        rooms = [room for _, room in self._columns(width)]
        used = self._used.get((role, k))
        samples = used.samples if used else []
        last = samples[-1] if samples else None
        peak = used.memory_peak() if used else None
        busy = [sum(g.percent for g in s.gpus) / len(s.gpus) if s.gpus else 0.0 for s in samples]
        cells = [
            (f"{role}/{k}", "bold" if self.part == f"{role}/{k}" else ""),
            (marked(state), STYLES.get(state, "")),
            (f"{last.cpu:.1f}" if last and last.cpu is not None else "-", ""),
            (sparkline([s.cpu or 0.0 for s in samples], rooms[3]), "#7fb2ff"),
            (size_text(last.memory) if last else "-", ""),
            (sparkline([float(s.memory) for s in samples], rooms[5]), "#d9a3ee"),
            (size_text(peak) if peak else "-", ""),
            (size_text(used.memory_limit) if used and used.memory_limit else "-", MUTED),
            (f"{busy[-1]:.0f} %" if last and last.gpus else "-", ""),
            (sparkline(busy, rooms[9], most=100.0), "#6fce8d"),
            (host, MUTED),
        ]
        return [(text, room, colour) for (text, colour), room in zip(cells, rooms, strict=True) if room]

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """The log of the chosen replica alone."""
        event.stop()
        role, k, *_ = self.replicas[self.query_one("#replicas", Rows).cursor]
        self.part = f"{role}/{k}"
        self._follow()

    def chosen(self) -> str:
        """The replica that the cursor is on, or the job."""
        rows = self.query_one("#replicas", Rows)
        if rows.cursor >= len(self.replicas):
            return self.handle
        role, k, *_ = self.replicas[rows.cursor]
        return self._target(f"{role}/{k}")

    def _target(self, part: str) -> str:
        """How commands call a replica; those of a task are counted through."""
        if not part:
            return self.handle
        if self.app.runs.get(self.handle) is not None:
            return f"{self.handle}/{part}"
        names = [f"{role}/{k}" for role, k, *_ in self.replicas]
        return f"{self.handle}/{names.index(part)}" if len(names) > 1 else self.handle

    # -- the log ---------------------------------------------------------------------------------

    def action_all(self) -> None:
        """The log of all replicas."""
        self.part = ""
        self._follow()

    def _follow(self) -> None:
        log = self.query_one("#log", Lines)
        log.clear()
        log.border_title = f"Log of {self.part}" if self.part else "Log"
        self.query_one("#replicas", Rows).refresh()
        self.run_worker(self._read_log(self.part), exclusive=True, group="log")

    async def _read_log(self, part: str) -> None:
        log = self.query_one("#log", Lines)
        await self.looked.wait()  # how many replicas there are
        async with contextlib.aclosing(log_lines(self._target(part), last=_LINES, stream=None)) as batches:
            async for batch in batches:
                several = len(self.replicas) > 1 and not part
                for line in batch:
                    text = _SEQUENCE.sub("", str(line.get("error") or line.get("line")))
                    head = f"{line['role']}/{line['replica']} " if several and "error" not in line else ""
                    log.write_line(printable(head + text))

    def action_toggle_log(self) -> None:
        """The log alone, or all panes."""
        shown = self.query_one("#replicas").display
        for name in ("#replicas", "#cause"):
            self.query_one(name).display = not shown
        self.query_one("#log" if shown else "#replicas").focus()
