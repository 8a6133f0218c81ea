"""The pages of ``torchx status -w``, live in place on a terminal."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence

from torchx.cli.cmd_watch import change_document, print_changes
from torchx.cli.render import gray
from torchx.runner import Runner
from torchx.runner.changes import Watch
from torchx.specs import AppStatus
from torchx.util.term import fit, has_color, is_tty, text_width, width

_TICK_S = 1.0
_FAR_S = 15.0  # between two questions about a job that nobody polls
_FOOT = "live · Ctrl-C leaves the job alone"


def watch(
    runner: Runner,
    handles: Sequence[str],
    page: Callable[[str, AppStatus | None], str],
    *,
    as_json: bool,
    asks: bool = False,
) -> None:
    """Shows the pages until all of the jobs have ended: in place on a terminal, else a line for each change.

    Args:
        page: the page of a job, as whoever polls has seen it; None: of this moment.
        as_json: print a document for each change of a task of a sweep instead, and else nothing.
        asks: the page is made of answers of the job's own, whatever has been seen.
    """
    with runner.watch(*handles, tasks=as_json) as changes:
        if as_json:
            for change in changes:
                if change.handle not in handles:  # of the jobs themselves there is one document, in the end
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
                # On a cluster they are as whoever polls writes it down; what nobody does is asked for, now and then.
                status = None if asks else changes.status(handle)
                if status is not None or now - asked[handle] >= far_s:
                    pages[handle] = page(handle, status)
                    asked[handle] = now
            problems = "".join(f"\n{text}; it is asked again" for text in changes.problems().values())
            screen.show("\n\n".join(pages[h] for h in handles) + problems + f"\n{gray(_FOOT, color=color)}")
            shown = now
        try:
            if (change := changes.within(_TICK_S)) is not None:
                shown = asked[change.handle] = -far_s
        except StopIteration:
            return


class _Screen:
    """Some lines of the terminal that are written again and again: each time at once, so that nothing flickers.

    What is too long is cut, and what is too high, so that the lines can be counted. They are gone in the end.
    """

    def __init__(self) -> None:
        self._lines = 0

    def __enter__(self) -> _Screen:
        self._write("\033[?25l")  # no cursor
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end = "\n" if kind else f"{self._up()}\033[J"  # what was seen last stays on the terminal after Ctrl-C
        self._write(f"{end}\033[?25h")

    def show(self, text: str) -> None:
        """Writes the text in place of what was there."""
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
    r"""The line in so many columns, its colours left in.

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
