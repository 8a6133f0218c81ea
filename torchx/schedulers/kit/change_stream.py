"""Collects changes of jobs from event streams, so that callers need not poll."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


class ChangeStream:
    """Reads streams of app ids, each in a thread of its own.

    >>> ear = ChangeStream()
    >>> ear.take({"all": lambda: iter(["job-1"])}, most_s=10) in ({"job-1"}, None)
    True
    """

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._news: Any = None  # an Event from the first call on, because a scheduler with one cannot be copied
        self._streams: dict[str, Any] = {}
        self._missed = False

    def take(self, streams: Mapping[str, Callable[[], Iterable[str]]], most_s: float) -> set[str] | None:
        """Wait up to ``most_s`` seconds for changes, and return the jobs that have changed since the last call.

        Each stream is opened in a thread, and reopened by the next call after it has ended. None: events may have been
        missed, because a stream was just opened or has ended, so query all jobs.
        """
        import threading

        self._news = self._news or threading.Event()
        missing = [name for name in streams if name not in self._streams or not self._streams[name].is_alive()]
        for name in missing:
            thread = threading.Thread(target=self._read, args=(streams[name],), name=f"events of {name}", daemon=True)
            self._streams[name] = thread
            thread.start()
        self._news.wait(most_s)
        self._news.clear()
        if self._missed or missing:
            self._missed = False
            return None
        changed, self._changed = self._changed, set()
        return changed

    def _read(self, stream: Callable[[], Iterable[str]]) -> None:
        try:
            for app_id in stream():
                self._changed.add(app_id)
                self._news.set()
        except Exception:  # noqa: S110  # the caller meets the same error when it queries the system
            pass
        self._missed = True
        self._news.set()
