"""``torchx diff``: compare two runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import note
from torchx.cli.log_targets import JOB_HELP, job_reference
from torchx.cli.render import BOLD, bold, document, fields, gray, value_text
from torchx.runner import Runner
from torchx.runner.capsule.differences import Comparison, Difference
from torchx.runs import Run
from torchx.specs.states import RESET
from torchx.util.datetime import ago, duration
from torchx.util.secrets import mask_text
from torchx.util.term import has_color, printable, text_width

_MAX_LINES = 40
_MAX_WIDTH = 40  # of a column; a longer value is followed by the other one on the next line
_HELP = """\
Compares the recorded code, images, arguments, options and their sources, resources, environment, metadata and
outcome. The code is the commit plus the uncommitted changes, compared by git.

  torchx diff @last~1 @last
  torchx diff --full @last~1 @last | less          with the whole patch

Masked values count as equal. What cannot be compared is reported on stderr."""


class CmdDiff(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        subparser.add_argument("app_handle", type=job_reference, metavar="A", help=JOB_HELP)
        subparser.add_argument("more", type=job_reference, metavar="B", help="the other run")
        subparser.add_argument("--full", action="store_true", help="show the whole patch of the code")
        subparser.add_argument("--json", action="store_true", help="one JSON document, for programs")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        found = runner.compare(args.app_handle, args.more)
        if args.json:
            _print_json(found)
        else:
            _print_page(found, full=args.full)


def _print_json(found: Comparison) -> None:
    rows = [{"section": r.section, "role": r.role or None, "name": r.name, "a": r.a, "b": r.b} for r in found.rows]
    sides = {"a": _side(found.a), "b": _side(found.b)}
    print(document({**sides, "differences": rows, "patch": mask_text(found.patch) or None, "unknown": found.unknown}))


def _side(run: Run) -> dict[str, Any]:
    took = round(run.ended_at - run.created_at, 3) if run.ended_at else None
    return {"handle": run.handle, "state": run.state.name, "took_s": took}


def _print_page(found: Comparison, *, full: bool) -> None:
    color = has_color(sys.stdout)
    heads = []
    for label, run in (("a", found.a), ("b", found.b)):
        took = f" in {duration(run.ended_at - run.created_at)}" if run.ended_at else ""
        heads.append((label, f"{run.handle}  {run.state.name}{took}, launched {ago(run.created_at)}"))
    parts = [fields(heads, color=color), *_sections(found.rows, color=color)]
    if not found.rows:
        parts.append("the recorded runs do not differ")
    print("\n\n".join(parts))
    lines = mask_text(found.patch).splitlines()
    shown = lines if full else lines[:_MAX_LINES]
    if shown:
        print()
        print("\n".join(_coloured(printable(line.expandtabs(4)), color=color) for line in shown))
    if len(shown) < len(lines):
        print(gray(f"... {len(lines) - len(shown)} more lines; --full shows them", color=color))
    for text in found.unknown:
        note(f"cannot be compared: {text}")


def _sections(rows: Iterable[Difference], *, color: bool) -> list[str]:
    blocks: dict[str, list[Difference]] = {}
    for row in rows:
        blocks.setdefault(_title(row), []).append(row)
    parts = []
    for title, block in blocks.items():
        lines = [bold(title, color=color)]
        texts = [(row.name, "" if _is_file(row) else value_text(row.a), value_text(row.b)) for row in block]
        first, second = (
            max((n for text in column if (n := text_width(text)) <= _MAX_WIDTH), default=0)
            for column in ([name for name, _, _ in texts], [a for _, a, _ in texts])
        )
        for (name, a, b), row in zip(texts, block, strict=True):
            space = " " * max(first - text_width(name), 0)
            if _is_file(row):
                lines.append(f"  {name}{space}  {b}")
            else:
                arrow = gray("→", color=color)
                too_long = text_width(a) > second or text_width(name) > first
                gap = f"\n{' ' * (first + second + 4)}" if too_long else " " * (second - text_width(a))
                lines.append(f"  {name}{space}  {a}{gap}  {arrow}  {b}")
        parts.append("\n".join(lines))
    return parts


def _title(row: Difference) -> str:
    title = "where options come from" if row.section == "origin" else row.section
    return f"{title} of {row.role}" if row.role else title


def _is_file(row: Difference) -> bool:
    """Whether the row is a changed file: it has one text, not two values."""
    return row.section == "code" and row.a is None and not row.role and row.name != "commit"


def _coloured(line: str, *, color: bool) -> str:
    if not color or not line:
        return line
    if line.startswith(("diff ", "+++", "---")):
        return f"{BOLD}{line}{RESET}"
    start = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}.get(line[0], "")
    return f"{start}{line}{RESET}" if start else line
