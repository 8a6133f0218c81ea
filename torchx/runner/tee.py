"""Copies the logs of a whole job into a file while the caller goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from torchx.runner.wait import Waiter
from torchx.schedulers.kit.logs import LogQuery
from torchx.util.log_streams import FindsLastLines, LineFormat, Sink, copy_in_turn, copy_together
from torchx.util.term import is_tty

if TYPE_CHECKING:
    import threading

    class Tee(threading.Thread):
        """A thread that copies logs, and the exception that ended it, or None."""

        error: BaseException | None


RESET = "\033[0m"
# Bright enough on dark and light grounds, and distinct side by side. Red and green stay free for failed and done.
COLORS = ("\033[36m", "\033[35m", "\033[34m", "\033[33m", "\033[96m", "\033[95m", "\033[94m", "\033[93m")


def replica_formats(replicas: Iterable[tuple[str, int]], *, color: bool = False) -> dict[tuple[str, int], LineFormat]:
    """The prefix of each replica of a job, ``role/0``; its colour depends on its place in the job alone.

    >>> replica_formats([("trainer", 0)])["trainer", 0].chunk(b"loss: 1\\n")
    b'trainer/0 loss: 1\\n'
    """
    formats = {}
    for i, (role, k) in enumerate(replicas):
        name = f"{role}/{k}"
        formats[role, k] = LineFormat(f"{COLORS[i % len(COLORS)]}{name}{RESET} " if color else f"{name} ")
    return formats


def tee_logs(  # noqa: PLR0917  # public signature
    dst: TextIO,
    app_handle: str,
    regex: str | None,
    runner: Any,
    should_tail: bool = False,
    streams: Any = None,
    colorize: bool = False,
) -> Tee:
    """Starts a thread that copies the lines of all replicas of a job to ``dst``, each under its replica's name.

    Args:
        dst: where to.
        app_handle: of the job.
        regex: only lines that match this regular expression.
        runner: the :class:`~torchx.runner.Runner` to ask.
        should_tail: until the job has ended, instead of what there is now.
        streams: which output; the scheduler's usual one when None.
        colorize: colour the names.

    Returns:
        The thread, started. It ends with the logs: join it to see them all. Its attribute ``error`` is the
        exception that ended it, or None.
    """
    import threading

    def copy() -> None:
        query = LogQuery.of(regex=regex, since=None, until=None, should_tail=should_tail, streams=streams)
        wait_until_started(runner, app_handle)
        replicas = runner.log_replicas(app_handle)
        query = live_on(dst, query, replicas)
        formats = replica_formats(replicas, color=colorize)
        sources = list(zip(formats.values(), log_openers(runner, app_handle, replicas, query), strict=True))
        copy_together(sources, Sink(dst)) if should_tail and sources else copy_in_turn(sources, Sink(dst))

    class Copying(threading.Thread):
        error: BaseException | None = None

        def run(self) -> None:
            try:
                copy()
            except Exception as e:
                self.error = e

    thread: Tee = Copying(daemon=True, name="torchx-tee-logs")  # type: ignore[assignment]  # declared above for those who import no threads
    thread.start()
    return thread


def live_on(file: TextIO, query: LogQuery, replicas: Sequence[tuple[str, int]]) -> LogQuery:
    """A query that shows a progress bar as it grows, where one replica is followed on a terminal."""
    live = query.follow and query.regex is None and len(replicas) == 1 and is_tty(file)
    return LogQuery(**{**vars(query), "live": live})


def wait_until_started(runner: Any, app_handle: str, *, first_s: float = 0.02, most_s: float = 5.0) -> Any:
    """Waits while a job is queued. Returns its status once it runs, is over or gone; None when nobody knows it.

    Args:
        first_s, most_s: the pause after the first question, and the longest; each pause is twice the one before.

    Raises:
        BackendError: its scheduler cannot be asked, for ten minutes where that may pass.
    """
    waiter = Waiter()
    pause = first_s
    while True:
        status = runner.status(app_handle)
        if status is None or status.is_terminal() or status.gone:
            return status
        nap = waiter.retry_pause_s(app_handle, status)
        if not nap and str(status.state) == "RUNNING":
            return status
        time.sleep(nap or pause)
        pause = min(2 * pause, most_s)


def log_openers(
    runner: Any, app_handle: str, replicas: Sequence[tuple[str, int]], query: LogQuery
) -> list[Callable[[], Iterable[str]]]:
    """For each replica, in order, what opens its lines, those that the query wants: its ``last`` is honoured here.

    The scheduler is asked about the job once for all of them.
    """
    opened = runner.open_logs(app_handle, replicas, query)
    last = query.last
    if last is None:
        return [partial(_the_same, lines) for lines in opened]
    now = opened
    if query.follow and not all(isinstance(lines, FindsLastLines) for lines in opened):
        now = runner.open_logs(app_handle, replicas, LogQuery(**{**vars(query), "follow": False}))
    return [
        partial(_last_lines, lines, last, before if query.follow else None)
        for lines, before in zip(opened, now, strict=True)
    ]


def _the_same(lines: Iterable[str]) -> Iterable[str]:
    """Not an iterator of them: who copies whole pieces asks the source itself."""
    return lines


def _last_lines(lines: Any, count: int, now: Iterable[str] | None) -> Iterable[str]:
    """The last lines, and those that follow; a source that can find its own end is asked to.

    Args:
        now: what there is already, of a source that goes on; None of one that does not.
    """
    if isinstance(lines, FindsLastLines):
        return lines.last(count)
    if now is None:
        return deque(lines, maxlen=count)
    before = sum(1 for _ in now)
    return islice(iter(lines), max(before - count, 0), None)
