"""Live pages on a terminal, for ``torchx status -w`` and ``torchx metrics -w``."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence

from torchx.cli.cmd_watch import change_document, print_changes
from torchx.cli.render import gray
from torchx.runner import Runner
from torchx.runner.watching.changes import Watch
from torchx.specs import AppStatus
from torchx.util.term import fit, has_color, is_tty, text_width, width

_TICK_S = 1.0
_FAR_S = 15.0  # interval at which to ask for a job that no poller watches
_FOOT = "live · Ctrl-C stops, the job continues"


def watch(
    runner: Runner,
    handles: Sequence[str],
    page: Callable[[str, AppStatus | None], str],
    *,
    as_json: bool,
    asks: bool = False,
) -> None:
    """Show pages until all jobs have ended: updated in place on a terminal, otherwise a line for each change.

    Args:
        page: formats the page of a job from the polled status; None: ask for the status.
        as_json: instead print a document for each change of a sweep's task.
        asks: always call ``page`` with None.
    """
    with runner.watch(*handles, tasks=as_json) as changes:
        if as_json:
            for change in changes:
                if change.handle not in handles:  # the caller prints the document of the job itself
                    print(change_document(change), flush=True)
        elif is_tty(sys.stdout) and os.environ.get("TERM") != "dumb":
            with _Screen() as screen:
                near = all(map(runner.is_near, handles))
                _show(screen, changes, handles, page, far_s=_TICK_S if near else _FAR_S, asks=asks)
        else:
            print_changes(changes)


def _show(
    screen: _Screen,
    changes: Watch,
    handles: Sequence[str],
    page: Callable[[str, AppStatus | None], str],
    *,
    far_s: float,
    asks: bool,
) -> None:
    color = has_color(sys.stdout)
    shown = -_TICK_S
    asked = dict.fromkeys(handles, -far_s)
    pages: dict[str, str] = {}
    while True:
        now = time.monotonic()
        if now - shown >= _TICK_S:
            for handle in handles:
                # Use the polled status; ask for a job that no poller watches, less often on a cluster.
                status = None if asks else changes.status(handle)
                if status is not None or now - asked[handle] >= far_s:
                    pages[handle] = page(handle, status)
                    asked[handle] = now
            problems = "".join(f"\n{text}; retrying" for text in changes.problems().values())
            screen.show("\n\n".join(pages[h] for h in handles) + problems + f"\n{gray(_FOOT, color=color)}")
            shown = now
        try:
            if (change := changes.within(_TICK_S)) is not None:
                shown = asked[change.handle] = -far_s
        except StopIteration:
            return


class _Screen:
    """Lines of the terminal that are rewritten in place, with one write each time to avoid flicker.

    Cuts long lines and surplus lines, because the cursor moves up by the number of lines. Clears them at the end.
    """

    def __init__(self) -> None:
        self._lines = 0

    def __enter__(self) -> _Screen:
        self._write("\033[?25l")  # no cursor
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end = "\n" if kind else f"{self._up()}\033[J"  # after Ctrl-C, the last page stays
        self._write(f"{end}\033[?25h")

    def show(self, text: str) -> None:
        lines = text.split("\n")
        high = _height()
        if len(lines) > high:
            lines = [*lines[: high - 2], f"... {len(lines) - high + 1} more lines", lines[-1]]
        room = width(sys.stdout)
        body = "\n".join(f"{_cut(line, room)}\033[K" for line in lines)
        self._write(f"{self._up()}{body}\033[J")
        self._lines = len(lines)

    def _up(self) -> str:
        return "\r" + (f"\033[{self._lines - 1}A" if self._lines > 1 else "")

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _cut(line: str, room: int) -> str:
    r"""Cuts a line to ``room`` columns, not counting colour codes.

    >>> _cut("state: \033[31mFAILED\033[0m", 10)
    'state: \x1b[31mFA\u2026\x1b[0m'
    """
    kept = []
    for part in re.split(r"(\033\[[0-9;]*m)", line):
        if part.startswith("\033"):
            kept.append(part)
        elif room > 0:
            kept.append(fit(part, room, pad=False))
            room -= text_width(part)
    return "".join(kept)


def _height() -> int:
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).lines, 4)
    except (OSError, ValueError):
        return 24
