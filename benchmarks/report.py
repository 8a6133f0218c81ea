"""The table: figures to Markdown, into its page, and a few rows of it into the README."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping

from benchmarks.contestants import OURS, PEERS, ROOT, Contestant
from benchmarks.rows import FLOOR, Row
from benchmarks.timing import Samples

BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"


def header() -> list[str]:
    names = [OURS, *PEERS]
    return [f"| what | bound | {' | '.join(names)} | compared with |", f"|---|---|{'---|' * len(names)}---|"]


def line(row: Row, samples: Samples, sizes: Mapping[str, int]) -> str:
    """One row: the ratio, and in brackets the figure itself."""
    what = title(row, sizes)
    bound = "" if row.bound is None else f"{'>=' if row.rate else '<='} {row.bound:g}x"
    cells = [what, bound, *(cell(row, samples, name) for name in [OURS, *PEERS]), base(row, samples)]
    return f"| {' | '.join(cells)} |"


def title(row: Row, sizes: Mapping[str, int]) -> str:
    return row.what.format(**{key: f"{value:,}" for key, value in sizes.items()})


def cell(row: Row, samples: Samples, name: str) -> str:
    if name in samples.problems:
        return "cannot" if name != OURS else f"failed: {samples.problems[name]}"
    if name not in samples.values:
        return "not measured"
    figure = amount(row, samples.median(name))
    ratio = samples.ratio(name, row.base)
    if ratio is None:
        return f"({figure})"
    if row.rate:
        ratio = 1 / ratio
    text = f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.2g}x" if ratio < 1 else f"{ratio:.1f}x"
    text = f"{text} ({figure})"
    return f"**{text}**" if name == OURS and within(row, ratio) else text


def within(row: Row, ratio: float) -> bool:
    if row.bound is None:
        return False
    return ratio >= row.bound if row.rate else ratio <= row.bound


def base(row: Row, samples: Samples) -> str:
    if row.base != FLOOR:
        return row.base
    return f"{row.floor_is} ({amount(row, samples.median(FLOOR))})"


def amount(row: Row, value: float | None) -> str:
    if value is None:
        return "?"
    if row.unit == "MB":
        return f"{value:.1f} MB"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"


def notes(contestants: list[Contestant], rounds: int) -> list[str]:
    said = [
        "",
        f"A ratio of times (`<=`) or of rates (`>=`); in brackets the figure itself. Bold: within the bound. "
        f"Medians of up to {rounds} interleaved rounds, {machine()}.",
        '"cannot": the command ends with an error there. Made by `make bench`.',
    ]
    return said + [f"{c.name}: {c.problem}." for c in contestants if c.problem]


def machine() -> str:
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            found = re.search(r"model name\s*:\s*(.+)", file.read())
        model = found.group(1) if found else model
    except OSError:
        pass
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}"


def write(table: list[str], front: list[str]) -> None:
    """Puts the table into its page, and those rows of it into the README, without their bounds."""
    put("benchmarks/README.md", table)
    put("README.md", [without_bound(row) for row in [*table[:2], *front]])


def without_bound(row: str) -> str:
    """
    >>> without_bound("| what | <= 3x | 2x | 14x |")
    '| what | 2x | 14x |'
    """
    cells = row.split("|")
    return "|".join(cells[:2] + cells[3:])


def put(page: str, lines: list[str]) -> None:
    """Replaces what is between the markers of a page."""
    path = os.path.join(ROOT, page)
    with open(path) as file:
        text = file.read()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no markers {BEGIN} and {END}")
    body = "\n".join(lines)
    with open(path, "w") as file:
        file.write(f"{before}{BEGIN}\n{body}\n{END}{after}")
