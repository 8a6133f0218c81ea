"""Hears of jobs that change, where a system says so by a stream of events: nobody has to ask again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


class Ear:
    """Streams of app ids, each read by a thread of its own.

    >>> ear = Ear()
    >>> ear.take({"all": lambda: iter(["job-1"])}, most_s=10) in ({"job-1"}, None)
    True
    """

    def __init__(self) -> None:
        import threading

        self._changed: set[str] = set()
        self._heard = threading.Event()
        self._streams: dict[str, threading.Thread] = {}
        self._deaf = False

    def take(self, streams: Mapping[str, Callable[[], Iterable[str]]], most_s: float) -> set[str] | None:
        """The jobs that have changed since the last call, once there are any; none when the time is over.

        Args:
            streams: by name; each is opened by its thread, and again when it has ended.

        Returns:
            None: something may have been missed, as a stream begins or has ended. Ask for all, then call again.
        """
        import threading

        missing = [name for name in streams if name not in self._streams or not self._streams[name].is_alive()]
        for name in missing:
            thread = threading.Thread(target=self._listen, args=(streams[name],), name=f"hears {name}", daemon=True)
            self._streams[name] = thread
            thread.start()
        self._heard.wait(most_s)
        self._heard.clear()
        if self._deaf or missing:
            self._deaf = False
            return None
        changed, self._changed = self._changed, set()
        return changed

    def _listen(self, stream: Callable[[], Iterable[str]]) -> None:
        try:
            for app_id in stream():
                self._changed.add(app_id)
                self._heard.set()
        except Exception:  # noqa: S110  # whatever went wrong, who asks the system hears of it
            pass
        self._deaf = True
        self._heard.set()
