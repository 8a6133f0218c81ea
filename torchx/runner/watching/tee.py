"""Copies the logs of a job to a file in a background thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from torchx.runner.watching.wait import Waiter
from torchx.schedulers.kit.logs import LogQuery
from torchx.util.log_streams import FindsLastLines, LineFormat, Sink, copy_in_turn, copy_together
from torchx.util.records import replace
from torchx.util.term import is_tty

if TYPE_CHECKING:
    import threading

    class Tee(threading.Thread):
        """A thread that copies logs; ``error`` is the exception that ended it, or None."""

        error: BaseException | None


RESET = "\033[0m"
# Readable on dark and light backgrounds, and easy to tell apart. Red and green are reserved for failed and succeeded.
COLORS = ("\033[36m", "\033[35m", "\033[34m", "\033[33m", "\033[96m", "\033[95m", "\033[94m", "\033[93m")


def replica_formats(replicas: Iterable[tuple[str, int]], *, color: bool = False) -> dict[tuple[str, int], LineFormat]:
    """Return the line prefix of each replica of a job, ``role/0``; its colour depends only on its position in the job.

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
    """Start a thread that copies the log lines of all replicas of a job to ``dst``, prefixed with the replica's name.

    Args:
        dst: the file to write to.
        app_handle: app handle of the job.
        regex: only lines that match this regular expression.
        runner: the :class:`~torchx.runner.Runner` to use.
        should_tail: follow the logs until the job ends; otherwise copy only the existing lines.
        streams: stdout, stderr or both combined; None: the scheduler's default.
        colorize: colour the prefixes.

    Returns:
        The running thread. Join it to wait for all lines. Its attribute ``error`` is the exception that ended it, or
        None.
    """
    import threading

    def copy() -> None:
        try:
            copy_all()
        except Exception as e:
            thread.error = e

    def copy_all() -> None:
        query = LogQuery.of(regex=regex, since=None, until=None, should_tail=should_tail, streams=streams)
        wait_until_started(runner, app_handle)
        replicas = runner.log_replicas(app_handle)
        query = live_on(dst, query, replicas)
        formats = replica_formats(replicas, color=colorize)
        sources = list(zip(formats.values(), log_openers(runner, app_handle, replicas, query), strict=True))
        copy_together(sources, Sink(dst)) if should_tail and sources else copy_in_turn(sources, Sink(dst))

    thread: Tee = threading.Thread(target=copy, daemon=True, name="torchx-tee-logs")  # type: ignore[assignment]  # `error` is set below
    thread.error = None
    thread.start()
    return thread


def live_on(file: TextIO, query: LogQuery, replicas: Sequence[tuple[str, int]]) -> LogQuery:
    """Make a query show incomplete lines, such as progress bars, if one replica is followed on a terminal."""
    live = query.follow and query.regex is None and len(replicas) == 1 and is_tty(file)
    return replace(query, live=live)


def wait_until_started(runner: Any, app_handle: str, *, first_s: float = 0.02, most_s: float = 5.0) -> Any:
    """Wait while a job is queued. Returns its status once it runs, has ended or is gone; None for an unknown job.

    Args:
        first_s, most_s: the first and the longest pause between two polls; each pause is twice the previous one.

    Raises:
        BackendError: its scheduler cannot be queried; transient failures are retried for ten minutes.
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
    """For each replica, in order, a function that opens the lines that match the query; implements ``query.last``.

    The scheduler is queried once for all replicas.
    """
    opened = runner.open_logs(app_handle, replicas, query)
    last = query.last
    if last is None:
        return [partial(_unchanged, lines) for lines in opened]
    now = opened
    if query.follow and not all(isinstance(lines, FindsLastLines) for lines in opened):
        now = runner.open_logs(app_handle, replicas, replace(query, follow=False))
    return [
        partial(_last_lines, lines, last, before if query.follow else None)
        for lines, before in zip(opened, now, strict=True)
    ]


def _unchanged(lines: Iterable[str]) -> Iterable[str]:
    """Return the source itself, not an iterator: it may also offer whole chunks, see ``copy_together``."""
    return lines


def _last_lines(lines: Any, count: int, now: Iterable[str] | None) -> Iterable[str]:
    """Return the last ``count`` lines and those that follow; uses :class:`FindsLastLines` if the source implements it.

    ``now`` are the existing lines, if the source follows the log.
    """
    if isinstance(lines, FindsLastLines):
        return lines.last(count)
    if now is None:
        return deque(lines, maxlen=count)
    before = sum(1 for _ in now)
    return islice(iter(lines), max(before - count, 0), None)
