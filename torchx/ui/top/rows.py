"""A list of any length on a terminal: only the lines that are seen are drawn."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from torchx.util.term import fit, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import ClassVar

    Cells = Sequence[tuple[str, int, str]]
    """Of one line: text, columns, colour (empty: that of the list)."""

STYLES = {
    "RUNNING": "#7fb2ff",
    "SUCCEEDED": "#6fce8d",
    "FAILED": "bold #ff8d84",
    "PENDING": "#e5b454",
    "SUBMITTED": "#e5b454",
    "UNSUBMITTED": "#e5b454",
    "CANCELLED": "#a29e97",
    "UNKNOWN": "#a29e97",
}
MARKS = {"RUNNING": "●", "SUCCEEDED": "✓", "FAILED": "✗", "CANCELLED": "⊘", "UNKNOWN": "?"}
MUTED = "#a29e97"
BAD = "#ff8d84"


def marked(state: str) -> str:
    """The state with its sign, so that it can be told without colours, too."""
    return f"{MARKS.get(state, '○')} {state.lower()}"


class Rows(ScrollView):
    """Lines, one of which is chosen.

    Args:
        draw: the cells of a line, for so many columns.
        heading: the cells above all lines.
    """

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
        """Another line was chosen."""

    class Opened(Message):
        """Enter, or a click on the line that was chosen."""

    def __init__(self, draw: Callable[[int, int], Cells], heading: Callable[[int], Cells], *, id: str) -> None:
        super().__init__(id=id)
        self._draw = draw
        self._heading = heading
        self.count = 0
        self.cursor = 0

    def show(self, count: int, cursor: int | None = None) -> None:
        """There are so many lines now, and any of them may be another one."""
        self.count = count
        self.virtual_size = Size(0, count + 1)
        self._move_to(self.cursor if cursor is None else cursor, told=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """A line of the screen; the first one is the heading, which stays."""
        width, style = self.size.width, self.rich_style
        if y == 0:
            return self._strip(self._heading(width), width, style + Style.parse(f"bold {MUTED}"))
        i = self.scroll_offset.y + y - 1
        if i >= self.count:
            return Strip.blank(width, style)
        if i == self.cursor:
            style += Style(bgcolor="#3a3a44" if self.has_focus else "#2a2a30", bold=True)
        return self._strip(self._draw(i, width), width, style)

    @staticmethod
    def _strip(cells: Cells, width: int, style: Style) -> Strip:
        segments = [Segment(" ", style)]
        for text, room, colour in cells:
            own = style + Style.parse(colour) if colour else style
            segments += [Segment(fit(printable(text), room), own), Segment("  ", style)]
        return Strip(segments).adjust_cell_length(width, style)

    def action_move(self, by: int) -> None:
        """Chooses the line that is ``by`` lines below."""
        self._move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Chooses the line that is ``by`` screens below."""
        self._move_to(self.cursor + by * max(self.size.height - 2, 1))

    def action_choose(self, i: int) -> None:
        """The first, or the last line."""
        self._move_to(i if i >= 0 else self.count - 1)

    def action_open(self) -> None:
        """What Enter does."""
        if self.count:
            self.post_message(self.Opened())

    def on_click(self, event: object) -> None:
        """Chooses a line; the chosen one is opened."""
        i = self.scroll_offset.y + int(getattr(event, "y", 0)) - 1
        if i == self.cursor:
            self.action_open()
        elif 0 <= i < self.count:
            self._move_to(i)

    def _move_to(self, i: int, *, told: bool = True) -> None:
        before, self.cursor = self.cursor, max(min(i, self.count - 1), 0)
        seen = max(self.size.height - 1, 1)
        top = self.scroll_offset.y
        if not top <= self.cursor < top + seen:
            self.scroll_to(
                y=self.cursor if self.cursor < top else self.cursor - seen + 1, animate=False, immediate=True
            )
            self.refresh()
        else:
            self.refresh(*(Region(0, at - top + 1, self.size.width, 1) for at in (before, self.cursor)))
        if told:
            self.post_message(self.Chosen())
