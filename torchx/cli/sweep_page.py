"""The status page of a sweep: progress, pace, and causes of failures, on one screen for any number of tasks."""

from __future__ import annotations

import sys
import time

from torchx.cli.render import gray
from torchx.runner import Runner
from torchx.runs import default_registry
from torchx.specs.api import AppState, AppStatus
from torchx.specs.handles import JobId
from torchx.specs.states import COLORS, RESET, state_text
from torchx.specs.tasks import TaskTable, is_terminal_task
from torchx.util.datetime import duration
from torchx.util.term import fit, has_color, is_tty, printable, width

_BAR = 30  # characters
_GROUPS = 12
_NUMBERS = 3
_WINDOW_S = 60.0


def lines(
    runner: Runner, handle: str, status: AppStatus, table: TaskTable, *, launched: float | None = None
) -> list[str]:
    """Return the lines of the page below the times; ``launched`` is the Unix time of the launch, if known."""
    color, tty = has_color(sys.stdout), is_tty(sys.stdout)
    found = [f"state:    {state_text(status.state, color=color)}"]
    done = sum(n for state, n in table.counts().items() if is_terminal_task(state))
    if tty:
        found.append(f"progress: {_bar(table, color=color)} {done * 100 // len(table.states)} %")
    words = [f"{done:,} of {len(table.states):,} ended", *_counts(table, color=color)]
    found.append(f"tasks:    {' · '.join(words)}")
    if not status.is_terminal():
        found.append(f"pace:     {_pace(table, done, time.time(), launched)}")
    groups = runner.sweep_failures(handle, table)
    if groups:
        found.append("failed:")
        room = width(sys.stdout) if tty else 10_000
        given = default_registry().tasks(runner.recorded(handle))
        for group in groups[:_GROUPS]:
            head = f"  {len(group.tasks):>6,}  {group.kind:<10} "
            some = [f"{k} ({given.text(k)})" if given else str(k) for k in group.tasks[:_NUMBERS]]
            numbers = ", ".join(some) + (", ..." if len(group.tasks) > _NUMBERS else "")
            for text, start in ((printable(group.cause), head), (f"task {printable(numbers)}", " " * len(head))):
                found.append(start + fit(text, max(room - len(head), 20)).rstrip())
        if len(groups) > _GROUPS:
            found.append(gray(f"          and {len(groups) - _GROUPS:,} more causes", color=color))
    return found


def values_line(runner: Runner, handle: str, app_id: str) -> list[str]:
    """Return a line with the values of a task; none for other jobs."""
    task = JobId.of(app_id).task
    given = default_registry().tasks(runner.recorded(JobId.of(handle).job)) if task is not None else None
    return [f"values:   {printable(given.text(task))}"] if given and task is not None else []


def next_steps(app_id: str, status: AppStatus, table: TaskTable) -> list[str]:
    failed = table.failed()
    steps = [f"torchx log {app_id}/{failed[0] if failed else 0}"]
    if failed:
        steps.append(f"torchx status {app_id}/{failed[0]}")
    if status.is_terminal():
        return [*steps, f"torchx sweep --retry-failed {app_id}"] if failed else steps
    return [*steps, f"torchx cancel {app_id}"]


def _counts(table: TaskTable, *, color: bool) -> list[str]:
    words = []
    for state, n in sorted(table.counts().items(), key=lambda item: item[0] is not AppState.SUCCEEDED):
        words.append(state_text(state, color=color, text=f"{n:,} {state.name.lower()}"))
    return words


def _bar(table: TaskTable, *, color: bool) -> str:
    """Draws a bar of succeeded, failed and running tasks.

    >>> from torchx.specs.tasks import TaskTable
    >>> _bar(TaskTable(states=[AppState.SUCCEEDED] * 2 + [AppState.PENDING], exit_codes=[], ended=[]), color=False)
    '━━━━━━━━━━━━━━━━━━━━──────────'
    """
    total, parts, used = len(table.states), "", 0
    for states, start in (
        ((AppState.SUCCEEDED,), COLORS["SUCCEEDED"]),
        ((AppState.FAILED, AppState.UNKNOWN, AppState.CANCELLED), COLORS["FAILED"]),
        ((AppState.RUNNING,), COLORS["RUNNING"]),
    ):
        n = sum(table.counts().get(state, 0) for state in states)
        cells = min(max(round(n / total * _BAR), 1) if n else 0, _BAR - used)
        used += cells
        sign = "━" if AppState.RUNNING not in states else "╸"
        parts += f"{start}{sign * cells}{RESET}" if color and cells else sign * cells
    return parts + gray("─" * (_BAR - used), color=color)


def _pace(table: TaskTable, done: int, now: float, started: float | None) -> str:
    """Describe how many tasks end per second or minute, and the estimated time left."""
    window = min(_WINDOW_S, max(now - (started or now), 0.0))
    recent = sum(now - ended < window for ended in table.ended if ended) if window else 0
    parallel = f"at most {table.max_parallel:,} at a time" if table.max_parallel else "no limit on how many at a time"
    if not recent:
        return f"none has ended in the last minute, {parallel}" if done else f"none has ended yet, {parallel}"
    rate = recent / window
    shown = f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
    return f"{shown}, about {duration((len(table.states) - done) / rate)} left, {parallel}"
