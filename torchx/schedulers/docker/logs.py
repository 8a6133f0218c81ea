"""The logs of containers: frames of the engine's stream as whole lines, with their times.

A frame is a header of 8 bytes (which stream, three zeros, length) and a text; with ``timestamps=1`` the text begins
with a time and a space. See https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerAttach
"""

from __future__ import annotations

import re
import time
from contextlib import closing

from torchx.errors import NotFoundError, TransientError
from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.client import Stream, pause
from torchx.schedulers.docker.errors import engine_errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from torchx.schedulers.docker.containers import Job
    from torchx.schedulers.kit.logs import LogQuery

_TIME = re.compile(rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")
_RECONNECT = 60  # attempts, a second apart at most
_TAIL_BYTES = 1 << 16


class Entry:
    """A piece of output: ``stream`` is 1 for stdout and 2 for stderr, ``time`` in nanoseconds since the epoch."""

    __slots__ = ("stream", "text", "time")

    def __init__(self, stream: int, time: int, text: bytes) -> None:
        self.stream = stream
        self.time = time
        self.text = text


def entries(read: Callable[[int], bytes]) -> Iterator[Entry]:
    """The pieces of a log that was asked for with ``timestamps=1``.

    Args:
        read: returns so many bytes; fewer at the end.
    """
    while len(header := read(8)) == 8:
        if header[0] > 3 or header[1:4] != b"\0\0\0":  # of a container with a terminal: no frames, and stdout only
            yield from _plain(header, read)
            return
        size = int.from_bytes(header[4:], "big")
        text = read(size)
        found = _TIME.match(text)
        yield Entry(header[0] or 1, _nanoseconds(found) if found else 0, text[found.end() :] if found else text)
        if len(text) < size:
            return


def whole_lines(pieces: Iterable[Entry]) -> Iterator[Entry]:
    r"""Pieces joined to lines, each with its line end and the time of its first piece; by stream, so that a long line
    of one is not torn by lines of the other. What has no line end is the last.

    >>> pieces = [Entry(1, 1, b"a"), Entry(2, 2, b"x\n"), Entry(1, 3, b"b\n"), Entry(1, 4, b"c")]
    >>> [(line.time, line.text) for line in whole_lines(pieces)]
    [(2, b'x\n'), (1, b'ab\n'), (4, b'c')]
    """
    begun: dict[int, Entry] = {}
    for piece in pieces:
        line = begun.pop(piece.stream, None)
        if line is None:
            line = piece
        else:
            line.text += piece.text
        if line.text.endswith(b"\n"):
            yield line
        else:
            begun[piece.stream] = line
    yield from sorted(begun.values(), key=lambda line: line.time)


class JobView:
    """A job as it was seen last, shared by all who read the logs of its replicas.

    Args:
        job: as it was seen just now.
        ask: asks the engine again; None when there is no such job any more.
    """

    def __init__(self, job: Job, ask: Callable[[], Job | None]) -> None:
        from threading import Lock

        self.first = job
        self._job: Job | None = job
        self._ask = ask
        self._asked = time.monotonic()
        self._lock = Lock()

    def goes_on(self, role: str, k: int, since: float) -> bool:
        """Whether a replica may still write: it runs, or is going to.

        Args:
            since: the answer may be as old as this; of ``time.monotonic()``.
        """
        with self._lock:
            if self._asked < since:
                asked = time.monotonic()
                self._job, self._asked = self._ask(), asked
            job = self._job
        container = job.find(role, k) if job else None
        return job is not None and container is not None and gangs.goes_on(job, container)


def replica_lines(client: Any, view: JobView, role: str, k: int, query: LogQuery) -> Iterator[str]:
    """The lines of a replica's log, all attempts, that the query asks for; nothing is asked of the engine before.

    While following, a container that is restarted and an engine that is restarted are waited for.

    Raises:
        NotFoundError: there is no such replica, or its container was removed.
    """
    container = view.first.need(role, k)
    stream = query.stream.value if query.stream else "combined"
    params: dict[str, object] = {
        "stdout": int(stream != "stderr"),
        "stderr": int(stream != "stdout"),
        "timestamps": 1,
        "follow": int(query.follow),
        "tail": "all",
    }
    if query.since is not None:
        params["since"] = max(int(query.since), 0)  # the exact comparison is ours: engines differ in fractions
    if query.until is not None:
        params["until"] = int(query.until) + 1
    pieces = _all_entries(client, container.id, params, lambda since: view.goes_on(role, k, since))
    yield from query.matching(_between(whole_lines(pieces), query))


def _between(lines: Iterable[Entry], query: LogQuery) -> Iterator[str]:
    """The texts of lines of the times that are asked for."""
    since = None if query.since is None else int(query.since * 1e9)
    until = None if query.until is None else int(query.until * 1e9)
    for line in lines:
        if since is not None and line.time < since:
            continue
        if until is not None and line.time >= until:
            if query.follow:
                return
            continue
        yield line.text.decode("utf-8", "replace")


def tail(client: Any, container_id: str, stream: str, *, lines: int = 200) -> str:
    """The end of what a container has written to one stream."""
    params: dict[str, object] = {"stdout": 0, "stderr": 0, "timestamps": 1, "follow": 0, "tail": lines, stream: 1}
    number = 2 if stream == "stderr" else 1
    with closing(Stream(client, f"/containers/{container_id}/logs", params, read_s=30)) as answer:
        text = b"".join(entry.text for entry in entries(answer.read) if entry.stream == number)
    return text[-_TAIL_BYTES:].decode("utf-8", "replace")


def _all_entries(
    client: Any, container_id: str, params: dict[str, object], goes_on: Callable[[float], bool]
) -> Iterator[Entry]:
    seen = _Seen()
    attempt = 0
    since = 0.0  # the first time, what was seen when the logs were opened is good enough
    while True:
        may_come = bool(params["follow"])
        try:
            with engine_errors("the log cannot be read"):
                may_come = may_come and goes_on(since)  # before reading: what was written by then is still read
                # Podman follows the log of a container that has ended for a quarter of a second, read or not.
                asked = {**params, "follow": int(may_come)}
                with closing(Stream(client, f"/containers/{container_id}/logs", asked, read_s=None)) as stream:
                    for entry in seen.news(entries(stream.read)):
                        attempt = 0
                        yield entry
        except NotFoundError:
            if seen.last:
                return  # removed while it was read
            raise
        except TransientError:
            if not params["follow"] or attempt >= _RECONNECT:
                raise
            may_come = True
        if not may_come:
            return
        since = time.monotonic()
        if seen.last:
            # Some engines leave out what was written at `since` itself: from a second before.
            params = {**params, "since": seen.last // 10**9 - 1, "tail": "all"}
        pause(attempt)
        attempt += 1


class _Seen:
    """Knows what was read of a log by time, and how much of the last time: some engines tell whole seconds only."""

    def __init__(self) -> None:
        self.last = 0
        self._count = 0

    def news(self, pieces: Iterable[Entry]) -> Iterator[Entry]:
        """The pieces that were not read in an earlier pass."""
        last, skip = self.last, self._count
        for piece in pieces:
            if last and piece.time < last:
                continue
            if last and piece.time == last and skip:
                skip -= 1
                continue
            if piece.time > self.last:
                self.last, self._count = piece.time, 0
            if piece.time == self.last:
                self._count += 1
            yield piece


def _plain(begin: bytes, read: Callable[[int], bytes]) -> Iterator[Entry]:
    rest = begin
    while block := read(1):
        rest += block
        if block == b"\n":
            yield _plain_entry(rest)
            rest = b""
    if rest:
        yield _plain_entry(rest)


def _plain_entry(text: bytes) -> Entry:
    found = _TIME.match(text)
    return Entry(1, _nanoseconds(found) if found else 0, text[found.end() :] if found else text)


def seconds(text: str) -> float:
    """A time as the engine writes it, as Unix time; 0 for what is none.

    >>> seconds("1970-01-01T00:00:10.5Z"), seconds("never")
    (10.5, 0.0)
    """
    found = _TIME.match(text.encode())
    return max(_nanoseconds(found) / 1e9, 0.0) if found else 0.0


def _nanoseconds(found: re.Match[bytes]) -> int:
    import calendar

    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    zone = found[8]
    if zone != b"Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds += offset if zone[:1] == b"-" else -offset
    return seconds * 10**9 + int((found[7] or b"").ljust(9, b"0"))
