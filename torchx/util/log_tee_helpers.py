"""Copies the logs of a whole job into a file while the caller goes on."""

from __future__ import annotations

from torchx.util.log_streams import LineFormat, Sink, copy_in_turn, copy_together

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable
    from typing import Any, TextIO

RESET = "\033[0m"
# Bright enough on dark and light grounds, and distinct side by side. Red and green stay free for failed and done.
COLORS = ("\033[36m", "\033[35m", "\033[34m", "\033[33m", "\033[96m", "\033[95m", "\033[94m", "\033[93m")


def replica_formats(replicas: Iterable[tuple[str, int]], *, color: bool = False) -> dict[tuple[str, int], LineFormat]:
    """The prefix of each replica of a job, ``role/0``; its colour depends on its place in the job alone.

    >>> replica_formats([("trainer", 0)])["trainer", 0].line("loss: 1\\n")
    'trainer/0 loss: 1\\n'
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
) -> threading.Thread:
    """Starts a thread that copies the lines of all replicas of a job to ``dst``, each under its replica's name.

    Args:
        dst: where to.
        app_handle: of the job.
        regex: only lines in which it is found.
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
        wait_until_started(runner, app_handle)
        app = runner.describe(app_handle)
        replicas = [(role.name, k) for role in (app.roles if app else ()) for k in range(role.num_replicas)]
        formats = replica_formats(replicas, color=colorize)
        sources = [
            (
                formats[role, k],
                _opener(runner, app_handle, role, k, regex=regex, should_tail=should_tail, streams=streams),
            )
            for role, k in replicas
        ]
        copy_together(sources, Sink(dst)) if should_tail and sources else copy_in_turn(sources, Sink(dst))

    class Tee(threading.Thread):
        error: BaseException | None = None

        def run(self) -> None:
            try:
                copy()
            except Exception as e:
                self.error = e

    thread = Tee(daemon=True, name="torchx-tee-logs")
    thread.start()
    return thread


def wait_until_started(runner: Any, app_handle: str, *, first_s: float = 0.02, most_s: float = 5.0) -> Any:
    """Waits while a job is queued. Returns its status once it runs, or is over; None when nobody knows it.

    Args:
        first_s, most_s: the pause after the first question, and the longest; each pause is twice the one before.

    Raises:
        BackendError: its scheduler cannot be asked.
    """
    import time

    pause = first_s
    while True:
        status = runner.status(app_handle)
        if status is None or status.is_terminal() or str(status.state) == "RUNNING":
            return status
        if status.error is not None:  # the last state on record: its scheduler cannot be asked
            raise status.error
        time.sleep(pause)
        pause = min(2 * pause, most_s)


def _opener(runner: Any, app_handle: str, role: str, k: int, **query: Any) -> Callable[[], Iterable[str]]:
    def open_lines() -> Iterable[str]:
        lines: Iterable[str] = runner.log_lines(app_handle, role, k, **query)
        return lines

    return open_lines
