"""Reads the logs of containers: parses the frames of the engine's stream into lines with times.

A frame is a header of 8 bytes (stream, three zeros, length) and a text; with ``timestamps=1`` the text begins with a
time and a space. https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerAttach
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

from torchx.errors import NotFoundError, TransientError
from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.client import events, pause, stream
from torchx.schedulers.docker.containers import Container, Job
from torchx.schedulers.kit.follow import Lines
from torchx.schedulers.kit.logs import LogQuery, not_started_again
from torchx.schedulers.kit.logs import Stream as LogStream
from torchx.schedulers.kit.timed_lines import Piece, Seen, split_stamp, whole_lines, within
from torchx.util.notices import logger
from torchx.workspace.images.engine_errors import engine_errors

_RECONNECT = 60  # attempts, a second apart at most
# Podman 4.3 does not always end a log that it follows: after this long without a line, the state is checked again, and
# the log is opened again. Each time without a line doubles it, since an engine reads a large log from the beginning.
_SILENT_S, _SILENT_MAX_S = 60.0, 3600.0
_TAIL_BYTES = _PIECE_BYTES = 1 << 16
_EARLY_S = 0.05
_EVENTS_S = 10.0


def pieces_of(read: Callable[[int], bytes]) -> Iterator[Piece]:
    """Parse a log with ``timestamps=1``; ``read`` returns as many bytes as requested, and fewer at the end."""
    while len(header := read(8)) == 8:
        if header[0] > 3 or header[1:4] != b"\0\0\0":  # a container with a terminal has no frames, only stdout
            yield from _plain(header, read)
            return
        size = int.from_bytes(header[4:], "big")
        text = read(size)
        yield Piece(header[0] or 1, *split_stamp(text))
        if len(text) < size:
            return


class JobView:
    """A cached view of a job, which ``ask`` queries again, shared by the readers of its replicas' logs."""

    def __init__(self, job: Job, ask: Callable[[], Job | None]) -> None:
        self.first = job
        self._job: Job | None = job
        self._ask = ask
        self._asked = time.monotonic()
        self._lock = threading.Lock()

    def is_alive(self, role: str, k: int, since: float) -> bool:
        """Whether a replica may still write, as of ``since`` (``time.monotonic()``): it runs, or may be restarted."""
        with self._lock:
            if self._asked < since:
                asked = time.monotonic()
                self._job, self._asked = self._ask(), asked
            job = self._job
        container = job.find(role, k) if job else None
        return job is not None and container is not None and gangs.is_alive(job, container)


class ReplicaLog(Lines):
    """The lines of a replica's log, of all attempts. Queries the engine only when they are read.

    While following, it waits for a container or an engine that is being restarted. NotFoundError: the replica does not
    exist, or its container was removed.
    """

    def __init__(self, client: Any, view: JobView, role: str, k: int, query: LogQuery) -> None:
        super().__init__(query)
        self._client = client
        self._view = view
        self._replica = (role, k)

    def _read(self, *, patient: bool) -> Iterator[tuple[int, bytes, int]]:  # noqa: ARG002  # it cannot be polled
        container = self._view.first.need(*self._replica)
        query = self._query
        if query.previous:
            began, ended = _previous_run(self._client, container)
            until = ended if query.until is None else min(query.until, ended)
            query = LogQuery(**{**vars(query), "since": max(query.since or 0.0, began), "until": until})
        params: dict[str, object] = {
            "stdout": int(query.stream is not LogStream.STDERR),
            "stderr": int(query.stream is not LogStream.STDOUT),
            "timestamps": 1,
            "follow": int(query.follow),
            "tail": "all",
        }
        if query.since is not None:
            params["since"] = max(int(query.since), 0)  # `within` compares exactly: engines differ in fractions
        if query.until is not None:
            params["until"] = int(query.until) + 1
        pieces = _all_pieces(self._client, container.id, params, functools.partial(self._view.is_alive, *self._replica))
        for line in within(whole_lines(pieces, live=query.live), query):
            yield line.stream, line.text, line.time


def tail(client: Any, container_id: str, name: str, *, lines: int = 200, since: float = 0.0) -> str:
    """Return the last lines that a container has written to ``stdout`` or ``stderr`` since a Unix time."""
    params: dict[str, object] = {"stdout": 0, "stderr": 0, "timestamps": 1, "follow": 0, "tail": lines, name: 1}
    number = 2 if name == "stderr" else 1
    with closing(stream(client, f"/containers/{container_id}/logs", params, read_s=30)) as answer:
        pieces = [piece for piece in pieces_of(answer.read) if piece.stream == number]
    # Podman's timestamps are whole seconds.
    begin = int(since) * 10**9 if all(piece.time % 10**9 == 0 for piece in pieces) else since * 1e9
    text = b"".join(piece.text for piece in pieces if piece.time >= begin)
    return text[-_TAIL_BYTES:].decode("utf-8", "replace")


def _all_pieces(
    client: Any, container_id: str, params: dict[str, object], is_alive: Callable[[float], bool]
) -> Iterator[Piece]:
    from urllib3.exceptions import ReadTimeoutError

    seen = Seen()
    attempt = 0
    silent_s = _SILENT_S
    since = 0.0  # at first, the state from when the logs were opened is recent enough
    while True:
        may_come = bool(params["follow"])
        recent_s = 0.0
        try:
            with engine_errors("the log cannot be read"):
                may_come = may_come and is_alive(since)  # check before reading, so that the last lines are still read
                # Podman follows the log of an exited container for a quarter of a second, whether all was read or not.
                current = {**params, "follow": int(may_come)}
                limit = silent_s if may_come else None
                with closing(stream(client, f"/containers/{container_id}/logs", current, read_s=limit)) as answer:
                    try:
                        for piece in seen.news(pieces_of(answer.read)):
                            attempt, silent_s = 0, _SILENT_S
                            yield piece
                    except ReadTimeoutError:
                        attempt, silent_s = 0, min(silent_s * 2, _SILENT_MAX_S)
                        recent_s = _SILENT_S / 2  # one query for all replicas
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
        since = time.monotonic() - recent_s
        if seen.last:
            # Some engines leave out lines written at `since` itself: start a second earlier.
            params = {**params, "since": seen.last // 10**9 - 1, "tail": "all"}
        pause(attempt)
        attempt += 1


def _previous_run(client: Any, container: Container) -> tuple[float, float]:
    """Start and end of a container's previous run, Unix times; NotFoundError if it was not started again.

    The engine keeps only recent events. If the end of the run before that is gone, earlier runs are included.
    """
    mark = container.mark
    with engine_errors("the log cannot be read"):
        details = client.api.inspect_container(container.id)
        restarts = int(details.get("RestartCount") or 0) + mark.app + mark.role - mark.due
        if restarts < 1:
            raise not_started_again()
        started = seconds(str(details["State"]["StartedAt"]))
        of = {"container": [container.id]}
        found = events(client, ["die", "died"], of, since=container.created, until=started, read_s=_EVENTS_S)
        ends = sorted(float(event.get("timeNano") or 0) / 1e9 for event in found)
    if len(ends) < 2 <= restarts:
        logger("torchx.schedulers").warning(
            "the engine no longer knows when earlier runs ended: the output includes them"
        )
    # The first lines of a run may be older than its reported start; the engine pauses at least 100 ms before a start.
    return ends[-2] if len(ends) > 1 else 0.0, max(started - _EARLY_S, *ends[-1:], 0.0)


def _plain(begin: bytes, read: Callable[[int], bytes]) -> Iterator[Piece]:
    """Lines of a terminal, long ones in several pieces of the same time."""
    text, at, begun = bytearray(begin), 0, False
    for byte in chain(iter(lambda: read(1), b""), [b""]):
        text += byte
        if text and (byte in (b"", b"\n") or len(text) == _PIECE_BYTES):
            at, piece = (at, bytes(text)) if begun else split_stamp(bytes(text))
            yield Piece(1, at, piece)
            begun = byte != b"\n"
            text.clear()


def seconds(text: str) -> float:
    """Parse a time of the engine as Unix time; 0 if it is not a time.

    >>> seconds("1970-01-01T00:00:10.5Z"), seconds("never")
    (10.5, 0.0)
    """
    return max(split_stamp(text.encode())[0] / 1e9, 0.0)
