"""An animated SVG of a terminal, with input and output at their original pace, but shorter pauses.

No script runs in it: each piece of text has a CSS animation that shows it from one moment to another, so it also moves
where a page shows it as an image. Who has asked for reduced motion sees the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from xml.sax.saxutils import escape

from _site.terminal import Screen

WIDTH, HEIGHT = 8.4, 20.0  # of a cell, in pixels
MARGIN, BAR = 18.0, 34.0
LONGEST_PAUSE_S, THINK_S, KEY_S, READ_S, END_S = 0.6, 0.5, 0.045, 3.0, 6.0
PROMPT = "$ "
RED, GREEN, YELLOW, BLUE, PURPLE, CYAN = "#ff7b72", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea"
COLORS = dict(zip(["31", "32", "33", "34", "35", "36"], (RED, GREEN, YELLOW, BLUE, PURPLE, CYAN), strict=True))
COLORS |= {f"9{code[1]}": color for code, color in COLORS.items()} | {"1": "#ffffff", "90": "#8b949e"}
STYLE = """
.frame,.paper{fill:#0d1117}.frame{stroke:#30363d}.bar{fill:#161b22}.cursor{fill:#8b949e}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e6edf3;white-space:pre}
.title{fill:#8b949e;font-size:12px;text-anchor:middle}
@media (prefers-reduced-motion:reduce){*{animation:none!important}}
"""
FRAME = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" width="{{width}}" height="{{height}}"
 role="img" aria-label="{{title}}"><title>{{title}}</title>
<style>{{style}}</style>
<rect class="frame" width="{{width}}" height="{{height}}" rx="9"/>
<path class="bar" d="M1 {BAR:g}V10a9 9 0 0 1 9-9H{{right}}a9 9 0 0 1 9 9V{BAR:g}z"/>
<circle cx="20" cy="17" r="5.5" fill="#ff5f57"/><circle cx="38" cy="17" r="5.5" fill="#febc2e"/>
<circle cx="56" cy="17" r="5.5" fill="#28c840"/><text class="title" x="{{middle}}" y="21">{{title}}</text>
<svg x="{MARGIN:g}" y="{BAR + 6:g}" width="100%" height="{{inner}}"><g class="all">
{{body}}
</g></svg>
</svg>
"""

Cells = list[tuple[str, str]]


@dataclass
class Piece:
    """A line with its start and end time; ``until`` is None for a line that stays."""

    row: int
    cells: Cells
    since: float
    until: float | None = None


@dataclass
class Film:
    """The events on the screen, in seconds since the beginning."""

    columns: int
    rows: int
    now: float = 0.0
    begin: float = 0.0  # what is seen first: a frame that says something, where nothing moves
    pieces: list[Piece] = field(default_factory=list)
    typed: list[tuple[int, str, float]] = field(default_factory=list)
    scrolls: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.screen = Screen(self.columns)
        self._shown: dict[int, Piece] = {}

    def type(self, command: str) -> None:
        """Types a command after the prompt, key by key."""
        self.typed.append((self.screen.row, command, self.now))
        self.screen.feed(f"{PROMPT}\x1b[1m{command}\x1b[0m")
        self._look()
        self.now += THINK_S + KEY_S * len(command) + THINK_S
        self.screen.feed("\r\n")

    def write(self, chunks: Iterator[tuple[float, str]]) -> None:
        """Adds the output of the command."""
        before = 0.0
        for at, written in chunks:
            self.now += min(at - before, LONGEST_PAUSE_S)
            before = at
            self.screen.feed(written)
            self._look()
        self.now += READ_S

    def _look(self) -> None:
        for row, line in enumerate(self.screen.lines):
            cells = list(line)
            shown = self._shown.get(row)
            if shown is not None and shown.cells == cells:
                continue
            if shown is not None:
                shown.until = self.now
            if cells:
                self._shown[row] = Piece(row, cells, self.now)
                self.pieces.append(self._shown[row])
        below = max(0, len(self.screen.lines) - self.rows)
        if not self.scrolls or self.scrolls[-1][1] != below:
            self.scrolls.append((self.now, below))

    def svg(self, title: str) -> str:
        total = self.now + END_S
        rules: list[str] = []
        seen = [piece for piece in self.pieces if piece.until != piece.since]
        body = [_text(piece, _shown(rules, piece, total)) for piece in seen]
        body += [_cover(*typed, rules, total, self.columns) for typed in self.typed]
        moves = "".join(f"{_at(when, total)}{{transform:translateY(-{n * HEIGHT:g}px)}}" for when, n in self.scrolls)
        rules.append(f"@keyframes s{{0%{{transform:none}}{moves}}}")
        rules.append(f".all{{transform:translateY(-{self.scrolls[-1][1] * HEIGHT:g}px);{_runs('s', total)}}}")
        rules.append(f"*{{animation-delay:-{self.begin:.2f}s!important}}")
        inner = self.rows * HEIGHT
        size = {"width": self.columns * WIDTH + 2 * MARGIN, "height": BAR + inner + MARGIN}
        return FRAME.format(
            **{name: f"{value:g}" for name, value in size.items()},
            title=escape(title),
            style=STYLE + "".join(rules),
            middle=f"{size['width'] / 2:g}",
            right=f"{size['width'] - 10:g}",
            inner=f"{inner:g}",
            body="\n".join(body),
        )


def _at(moment: float, total: float) -> str:
    return f"{100 * moment / total:.3f}%"


def _runs(name: str, total: float) -> str:
    return f"animation:{name} {total:.2f}s step-end infinite"


def _shown(rules: list[str], piece: Piece, total: float) -> str:
    """Returns the CSS class for an element that is visible for a period."""
    name = f"k{len(rules)}"
    off = f"{_at(piece.until, total)}{{opacity:0}}" if piece.until else ""
    before = "0%{opacity:0}" if piece.since else ""
    rules.append(f"@keyframes {name}{{{before}{_at(piece.since, total)}{{opacity:1}}{off}}}")
    rules.append(f".{name}{{opacity:{0 if piece.until else 1};{_runs(name, total)}}}\n")
    return name


def _text(piece: Piece, name: str) -> str:
    """Renders a line; each run of one style has a fixed width, so that columns align in any font."""
    runs, column = [], 0
    for style, cells in groupby(piece.cells, key=lambda cell: cell[1]):
        words = "".join(char for char, _ in cells)
        start, bare = column + len(words) - len(words.lstrip()), words.strip()
        column += len(words)
        if bare:
            codes = style.split(";")
            color = next((f' style="fill:{COLORS[code]}"' for code in reversed(codes) if code in COLORS), "")
            bold = ' font-weight="bold"' if "1" in codes else ""
            place = f'x="{start * WIDTH:g}" textLength="{len(bare) * WIDTH:g}" lengthAdjust="spacingAndGlyphs"'
            runs.append(f"<tspan {place}{color}{bold}>{escape(bare)}</tspan>")
    return f'<text class="{name}" y="{piece.row * HEIGHT + 15:g}">{"".join(runs)}</text>'


def _cover(row: int, command: str, since: float, rules: list[str], total: float, columns: int) -> str:
    """Covers a command, and uncovers it key by key; its left edge is the cursor."""
    name, keys = f"c{len(rules)}", len(command)
    begin, moved = since + THINK_S, f"transform:translateX({keys * WIDTH:g}px)"
    end = begin + KEY_S * keys
    there = f"{_at(since, total)}{{opacity:1;transform:none}}"
    begins = f"{_at(begin, total)}{{opacity:1;transform:none;animation-timing-function:steps({keys})}}"
    ends = f"{_at(end, total)}{{opacity:1;{moved}}}{_at(end + THINK_S, total)}{{opacity:0;{moved}}}"
    before = "0%{opacity:0}" if since else ""
    rules.append(f"@keyframes {name}{{{before}{there}{begins}{ends}100%{{opacity:0}}}}")
    rules.append(f".{name}{{opacity:0;{_runs(name, total)}}}\n")
    left, top = len(PROMPT) * WIDTH, row * HEIGHT
    room = columns * WIDTH - left
    hidden = f'<rect class="paper" x="{left:g}" y="{top:g}" width="{room:g}" height="{HEIGHT:g}"/>'
    cursor = f'<rect class="cursor" x="{left:g}" y="{top + 2:g}" width="{WIDTH:g}" height="16"/>'
    return f'<g class="{name}">{hidden}{cursor}</g>'
