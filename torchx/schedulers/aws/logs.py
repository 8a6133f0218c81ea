"""Reads and follows CloudWatch log streams.

https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchx.errors import NotFoundError, TorchXError
from torchx.schedulers.aws.client import call, call_if_there
from torchx.schedulers.kit.follow import Lines
from torchx.schedulers.kit.logs import LogQuery, not_started_again

Streams = Mapping[tuple[str, int], tuple[str, list[str]]]
"""(role, replica) -> log group, and names of the streams in it, oldest first."""
_Object = dict[str, Any]
_Seen = tuple[bool, Streams]
"""Whether a job has ended, and its log streams."""

MARK = "@torchx-order"
"""Begins the lines of ``batch/order_node.py``, which are not shown."""
_POLL_S = 2.0
_TAIL_EVENTS = 200
# CloudWatch shows the last lines some time after the end of a job.
_LATE_POLLS = 3
_DOING = "the log cannot be read"


class SharedLook:
    """Describes a job for all readers of its replicas' logs, which may run in several threads.

    ``job`` is its current description. ``again`` describes it again, None if it is gone; ``read`` reads a description.
    """

    def __init__(self, job: _Object, again: Callable[[], _Object | None], read: Callable[[_Object], _Seen]) -> None:
        self._job: _Object | None = job
        self._again = again
        self._read = read
        self._lock = threading.Lock()
        self._count = 0
        self._seen: _Seen = (False, {})

    def after(self, count: int) -> tuple[int, bool, Streams]:
        """Return the first description after number ``count``: its number, whether the job has ended,
        and its log streams.
        """
        with self._lock:
            if self._count <= count:
                job = self._again() if self._count else self._job
                self._seen = self._read(job) if job is not None else (True, self._seen[1])
                self._count += 1
            return self._count, *self._seen


class StreamReader:
    """Reads one log stream from its beginning; each event is read once."""

    def __init__(self, client: Any, group: str, stream: str, query: LogQuery) -> None:
        self._client = client
        self._params: dict[str, object] = {"logGroupName": group, "logStreamName": stream, "startFromHead": True}
        if query.since is not None:
            self._params["startTime"] = max(int(query.since * 1000), 0)
        if query.until is not None:
            self._params["endTime"] = max(int(query.until * 1000), 0)  # exclusive, as our `until`
        self._token: str | None = None

    def news(self) -> Iterator[_Object]:
        """Yield the events since the last call.

        At the end CloudWatch returns the same token; earlier pages may be empty.
        """
        while True:
            given = {"nextToken": self._token} if self._token else {}
            page = call_if_there(self._client, "get_log_events", _DOING, **self._params, **given)
            if page is None:  # not written yet, or removed
                return
            yield from page.get("events") or ()
            token = page.get("nextForwardToken")
            if not token or token == self._token:
                return
            self._token = token


class ReplicaLog(Lines):
    """The lines of a replica, of all attempts. Raises NotFoundError if the job has no such replica."""

    def __init__(
        self, client: Any, replica: tuple[str, int], job: SharedLook, query: LogQuery, *, sleep: Callable[[float], None]
    ) -> None:
        super().__init__(query)
        self._client = client
        self._replica = replica
        self._job = job
        self._sleep = sleep

    def _read(self, *, patient: bool) -> Iterator[tuple[str, bytes, int]]:  # noqa: ARG002  # it cannot be polled
        readers: dict[str, StreamReader] = {}
        quiet = looks = 0
        while True:
            looks, ended, streams = self._job.after(looks)  # before reading, so as to read the last lines
            seen = False
            for name, reader in self._readers(readers, streams):
                for event in reader.news():
                    seen = True
                    if MARK not in (line := _line(event)):
                        yield name, line.encode("utf-8", "replace"), int(event.get("timestamp") or 0) * 10**6
            if not self._query.follow:
                return
            quiet = 0 if seen or not ended else quiet + 1
            if quiet >= _LATE_POLLS:
                return
            self._sleep(_POLL_S)

    def _readers(self, readers: dict[str, StreamReader], streams: Streams) -> Iterable[tuple[str, StreamReader]]:
        if self._replica not in streams:
            raise NotFoundError(f"the job has no replica `{self._replica[0]}/{self._replica[1]}`")
        group, names = streams[self._replica]
        if self._query.previous:
            if len(names) < 2:
                raise not_started_again()
            names = names[-2:-1]
        return [
            (name, readers.setdefault(name, StreamReader(self._client, group, name, self._query))) for name in names
        ]


def tail(client: Any, group: str, stream: str) -> str:
    """Return the last lines of a stream; empty if it cannot be read."""
    try:
        params = {"logGroupName": group, "logStreamName": stream, "startFromHead": False, "limit": _TAIL_EVENTS}
        page = call(client, "get_log_events", _DOING, **params)
    except TorchXError:
        return ""
    return "".join(line for line in map(_line, page.get("events") or ()) if MARK not in line)


def _line(event: Mapping[str, Any]) -> str:
    return f"{event.get('message', '')}\n"
