"""Reads the log of a container of a pod across restarts and broken connections, without gaps or repeated lines."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from datetime import datetime, timezone

from torchx.errors import BackendError, NotFoundError, TransientError
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.timed_lines import split_stamp
from torchx.schedulers.kubernetes.client import KubeApi, path_to
from torchx.schedulers.kubernetes.names import Object

_SILENCE_S = 300.0
"""A stream without data for so long is requested again, because a connection may die unnoticed."""
_SECOND = 10**9
_MAX_SKIPPED = 7
_ATTEMPTS = 3
_PIECE = 1 << 14
"""Bytes of one record of a container's log. Before Kubernetes 1.27, each record of a longer line has a timestamp."""


class ContainerLog:
    """The log of one container, with a prefix on each line.

    Lines are requested with timestamps (nanoseconds), by which an interrupted stream is resumed after the last line
    read. Lines with the same timestamp are counted.
    """

    def __init__(self, api: KubeApi, pod: Object, name: str, query: LogQuery, *, prefix: str = "") -> None:
        self._api = api
        self._path = f"{path_to('Pod', pod)}/log"
        self._name = name
        self._prefix = prefix.encode()
        self._query = query
        self._since = None if query.since is None else int(query.since * _SECOND)
        self._until = None if query.until is None else int(query.until * _SECOND)
        self._place = (0, 0)  # time of the last line read, and the number of lines with this time
        self._place_before = (0, 0)  # before the last call of `lines`
        self._place_after: tuple[int, int] | None = None  # while the previous run is read late
        self._runs = 0
        self._ended = False
        self._empty_polls = self._polls_to_skip = 0

    def lines(self, status: Object, *, follow: bool) -> Iterator[tuple[int, bytes]]:
        """Time (ns) and text of new lines; with ``follow``, until the container of this status ends.

        The log of a crashed container is read while it waits for its next run, which may never come.
        """
        state = status.get("state") or {}
        restarts = int(status.get("restartCount") or 0)
        if restarts > self._runs:
            # Kubernetes keeps the log of one previous run only.
            yield from self._read_previous()
            self._runs, self._ended = restarts, False
        # While a container waits for its next run, its current log is that of the last one.
        over = "terminated" in state or ("waiting" in state and "terminated" in (status.get("lastState") or {}))
        if self._ended or not (over or "running" in state):
            return
        if not over and follow:
            # After a stream that ended at once, the pod's status is about to show the end of the container.
            self._polls_to_skip -= 1
            if self._polls_to_skip >= 0:
                return
        self._place_before = self._place
        if follow and not over:
            yield from self._read(previous=False, follow=True)  # the next call resumes an interrupted stream
        else:
            yield from self.read_all(previous=False)
        self._empty_polls = 0 if self._place_before != self._place else min(2 * self._empty_polls + 1, _MAX_SKIPPED)
        self._polls_to_skip = self._empty_polls
        self._ended = over

    @property
    def found(self) -> bool:
        """Whether anything was read."""
        return self._place[0] > 0

    def _read_previous(self) -> Iterator[tuple[int, bytes]]:
        """Yield the unread lines of the previous run.

        If that run ended after the pod's status was read and before the last read, the last read returned lines of the
        current run. In this case the rest of the previous run is read late, from the place before.
        """
        if self._place_after is None and 0 < self._end_of_previous() < self._place[0]:
            self._place_after, self._place = self._place, self._place_before
        yield from self.read_all(previous=True)
        if self._place_after is not None:
            self._place, self._place_after = self._place_after, None

    def _end_of_previous(self) -> int:
        """Time (ns) of the last line of the previous run; 0 if there is none."""
        if not self.found:
            return 0
        query = {"container": self._name, "timestamps": "true", "previous": "true", "tailLines": "1"}
        try:
            text = self._api.text(self._path, query)
        except TransientError:
            raise
        except (NotFoundError, BackendError):
            return 0
        return max(split_stamp(line)[0] for line in text.encode().split(b"\n"))

    def read_all(self, *, previous: bool) -> Iterator[tuple[int, bytes]]:
        """All unread lines of the current or the previous run. Broken connections are resumed if they make progress."""
        vain = 0
        while vain < _ATTEMPTS:
            before = self._place
            if (yield from self._read(previous=previous, follow=False)):
                return
            vain = 0 if before != self._place else vain + 1
        raise TransientError(f"the log of `{self._name}` breaks off repeatedly at the same line")

    def _read(self, *, previous: bool, follow: bool) -> Generator[tuple[int, bytes], None, bool]:
        """Yield the unread lines. Returns True after all of them, False if the connection broke."""
        import urllib3

        query = {
            "container": self._name,
            "timestamps": "true",
            "sinceTime": self._from(),
            "follow": "true" if follow else "",
            "previous": "true" if previous else "",
        }
        try:
            response = self._api.stream(self._path, query, timeout_s=_SILENCE_S)
        except NotFoundError:
            return True  # the pod was deleted, or the log of its previous run was
        except BackendError as e:
            if previous and not isinstance(e, TransientError):
                return True
            raise
        try:
            yield from self._new(response, previous=previous)
        except urllib3.exceptions.HTTPError:
            return False
        else:
            return True
        finally:
            response.close()
            response.release_conn()

    def _new(self, lines: Iterable[bytes], *, previous: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the unread lines within the time range of the query."""
        known, repeated = self._place
        for raw in lines:
            stamp, line = split_stamp(raw)
            if not stamp:  # a message of the node, which no longer has the log
                if not previous and not self.found:
                    yield 0, self._prefix + line.rstrip() + b"\n"
                continue
            if stamp < known:
                continue
            if stamp == known and repeated:
                repeated -= 1
                continue
            if self._until is not None and stamp >= self._until:
                return
            last, count = self._place
            self._place = (stamp, count + 1 if stamp == last else 1)
            if self._since is None or stamp >= self._since:
                yield stamp, self._prefix + _joined(line)

    def _from(self) -> str:
        """Return the time to resume at. The API has whole seconds; :meth:`_new` skips the lines before."""
        begin = self._place[0] or self._since
        if begin is None:
            return ""
        return datetime.fromtimestamp(begin // _SECOND, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _joined(text: bytes) -> bytes:
    """Return a long line without the timestamps between its records."""
    pieces = []
    while len(text) > _PIECE and (rest := split_stamp(text[_PIECE:]))[0]:
        pieces.append(text[:_PIECE])
        text = rest[1]
    return b"".join([*pieces, text]) if pieces else text
