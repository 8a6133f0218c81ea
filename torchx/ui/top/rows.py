"""A table widget that draws only its visible lines, so that it can have any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from torchx.util.term import fit, printable

Cells = Sequence[tuple[str, str]]
"""The cells of a line: text and colour (empty: that of the table)."""
MUTED = "#a29e97"
BAD = "#ff8d84"
WARN = "#e5b454"
KEY = "bold #ff8a6b"
STYLES = {
    "RUNNING": "#7fb2ff",
    "SUCCEEDED": "#6fce8d",
    "FAILED": "bold #ff8d84",
    "PENDING": WARN,
    "SUBMITTED": WARN,
    "UNSUBMITTED": WARN,
    "CANCELLED": MUTED,
    "UNKNOWN": MUTED,
}
MARKS = {"RUNNING": "●", "SUCCEEDED": "✓", "FAILED": "✗", "CANCELLED": "⊘", "UNKNOWN": "?"}
STATE = 11  # columns


def marked(state: str) -> tuple[str, str]:
    """Return the state with a sign, which distinguishes it without colours, and its colour."""
    return f"{MARKS.get(state, '○')} {state.lower()}", STYLES.get(state, "")


class Table:
    """The content of :class:`Rows`."""

    title = ""

    def __len__(self) -> int:
        raise NotImplementedError

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Return heading and width of each column; hides columns of width 0. Two blanks separate the others."""
        raise NotImplementedError

    def cells(self, i: int) -> Cells:
        """Return the cells of a line."""
        raise NotImplementedError


class Rows(ScrollView):
    """A list of lines, one of which is chosen."""

    can_focus = True
    BINDINGS: ClassVar = [
        Binding("down,j", "move(1)", "down", show=False),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("home,g", "choose(0)", "first", show=False),
        Binding("end,G", "choose(-1)", "last", show=False),
        Binding("enter", "open", "open"),
    ]

    class Chosen(Message):
        """The user has chosen another line."""

    class Opened(Message):
        """The user has pressed Enter, or clicked the chosen line."""

    def __init__(self, table: Table, *, id: str) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self.table = table

    def show(self, table: Table, cursor: int | None = None) -> None:
        """Replace the table; ``cursor`` is the line to choose, by default the same one."""
        self.table = table
        self.border_title = table.title
        self.virtual_size = Size(0, len(table) + 1)
        self._move_to(self.cursor if cursor is None else cursor, notify=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render a line of the screen. The first one holds the headings and does not scroll."""
        width, style = self.size.width, self.rich_style
        columns = self.table.columns(width)
        rooms = [room for _, room in columns]
        if y == 0:
            return _strip([(word, "") for word, _ in columns], rooms, width, style + Style.parse(f"bold {MUTED}"))
        i = self.scroll_offset.y + y - 1
        if i >= len(self.table):
            return Strip.blank(width, style)
        if i == self.cursor:
            style += Style(bgcolor="#3a3a44" if self.has_focus else "#2a2a30", bold=True)
        return _strip(self.table.cells(i), rooms, width, style)

    def action_move(self, by: int) -> None:
        self._move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self._move_to(self.cursor + by * max(self.size.height - 2, 1))

    def action_choose(self, i: int) -> None:
        self._move_to(i if i >= 0 else len(self.table) - 1)

    def action_open(self) -> None:
        if len(self.table):
            self.post_message(self.Opened())

    def on_click(self, event: object) -> None:
        """Chooses a line, or opens it if it is already chosen."""
        i = self.scroll_offset.y + int(getattr(event, "y", 0)) - 1
        if i == self.cursor:
            self.action_open()
        elif 0 <= i < len(self.table):
            self._move_to(i)

    def _move_to(self, i: int, *, notify: bool = True) -> None:
        before, self.cursor = self.cursor, max(min(i, len(self.table) - 1), 0)
        seen = max(self.size.height - 1, 1)
        top = self.scroll_offset.y
        if not top <= self.cursor < top + seen:
            to = self.cursor if self.cursor < top else self.cursor - seen + 1
            self.scroll_to(y=to, animate=False, immediate=True)
            self.refresh()
        else:
            self.refresh(*(Region(0, at - top + 1, self.size.width, 1) for at in (before, self.cursor)))
        if notify:
            self.post_message(self.Chosen())


def _strip(cells: Cells, rooms: Sequence[int], width: int, style: Style) -> Strip:
    segments = [Segment(" ", style)]
    for (text, colour), room in zip(cells, rooms, strict=True):
        if room > 0:
            own = style + Style.parse(colour) if colour else style
            segments += [Segment(fit(printable(text), room), own), Segment("  ", style)]
    return Strip(segments).adjust_cell_length(width, style)
