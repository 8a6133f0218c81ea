"""The log of one container of a pod, each of its runs once, read in pieces that neither overlap nor leave a gap."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import datetime, timezone
from typing import Any

from torchx.errors import BackendError, NotFoundError, TransientError
from torchx.schedulers.kit.follow import split_stamp
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.names import Object

_CHUNK = 1 << 16
_SILENCE_S = 300.0
"""A stream that says nothing for so long is asked for again: a connection may die without a word."""
_SECOND = 10**9
_MOST_SKIPPED = 7
_ATTEMPTS = 3
_PIECE = 1 << 14
"""Bytes of one record of a container's log: a longer line is several, each with a stamp before Kubernetes 1.27."""


class ContainerLog:
    """The log of one container.

    The API is asked for time stamps (nanoseconds), so that a stream that broke off goes on after the last line that
    was read; lines that share its stamp are counted.

    Args:
        prefix: before each line.
    """

    def __init__(self, api: KubeApi, pod: Object, name: str, query: LogQuery, *, prefix: str = "") -> None:
        self._api = api
        self._path = f"{path_of('Pod', pod['metadata']['namespace'], pod['metadata']['name'])}/log"
        self._name = name
        self._prefix = prefix.encode()
        self._query = query
        self._since = None if query.since is None else int(query.since * _SECOND)
        self._until = None if query.until is None else int(query.until * _SECOND)
        self._last = 0
        self._same = 0
        self._begun = (0, 0)
        self._later: tuple[int, int] | None = None
        self._runs = 0
        self._ended = False
        self._vain = self._skip = 0

    def lines(self, status: Object, *, follow: bool) -> Iterator[tuple[int, bytes]]:
        """Time (ns) and text of what was written since the last call; with ``follow``, until the container ends.

        Args:
            status: of the container, as its pod has it.
        """
        state = status.get("state") or {}
        restarts = int(status.get("restartCount") or 0)
        if restarts > self._runs:
            # The run before the present one is kept; what an older one wrote is not.
            yield from self._read_previous()
            self._runs, self._ended = restarts, False
        over = "terminated" in state
        if self._ended or not (over or "running" in state):
            return
        if not over and follow:
            # A stream that ends at once is one whose end the cluster is about to show.
            self._skip -= 1
            if self._skip >= 0:
                return
        self._begun = before = (self._last, self._same)
        if follow and not over:
            yield from self._read(previous=False, follow=True)  # what breaks off goes on at the next look
        else:
            yield from self._read_all(previous=False)
        self._vain = 0 if before != (self._last, self._same) else min(2 * self._vain + 1, _MOST_SKIPPED)
        self._skip = self._vain
        self._ended = over

    @property
    def found(self) -> bool:
        """Whether anything was read."""
        return self._last > 0

    def run(self, *, previous: bool) -> Iterator[tuple[int, bytes]]:
        """What one run of the container wrote: the present one, or the one before."""
        return self._read_all(previous=previous)

    def _read_previous(self) -> Iterator[tuple[int, bytes]]:
        """What the run before the present one wrote, and was not read.

        Should it have ended between the look at the pod and the last read, then that read the present run in its place,
        and all that was read is later than anything of the run before: it comes late, but it comes.
        """
        if self._later is None and 0 < self._end_of_previous() < self._last:
            self._later = (self._last, self._same)
            self._last, self._same = self._begun
        yield from self._read_all(previous=True)
        if self._later is not None:
            self._last, self._same = self._later
            self._later = None

    def _end_of_previous(self) -> int:
        """Time (ns) of the last line of the run before the present one; 0: there is none."""
        if not self._last:
            return 0
        query = {"container": self._name, "timestamps": "true", "previous": "true", "tailLines": "1"}
        try:
            text = self._api.text(self._path, query)
        except TransientError:
            raise
        except (NotFoundError, BackendError):
            return 0
        return max(split_stamp(line)[0] for line in text.encode().split(b"\n"))

    def _read_all(self, *, previous: bool) -> Iterator[tuple[int, bytes]]:
        """All there is now, however often the connection breaks off, as long as each gets any further."""
        vain = 0
        while vain < _ATTEMPTS:
            before = (self._last, self._same)
            if (yield from self._read(previous=previous, follow=False)):
                return
            vain = 0 if before != (self._last, self._same) else vain + 1
        raise TransientError(f"the log of `{self._name}` breaks off repeatedly at the same line")

    def _read(self, *, previous: bool, follow: bool) -> Generator[tuple[int, bytes], None, bool]:
        """Those lines that were not read before. Returns whether that is all; False: the connection broke off."""
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
            return True  # removed meanwhile, or its previous run is no longer kept
        except BackendError as e:
            if previous and not isinstance(e, TransientError):
                return True
            raise
        try:
            yield from self._new(_lines(response), previous=previous)
        except urllib3.exceptions.HTTPError:
            return False
        else:
            return True
        finally:
            response.close()
            response.release_conn()

    def _new(self, lines: Iterator[bytes], *, previous: bool) -> Iterator[tuple[int, bytes]]:
        """Those that were not read before, of the time that is asked for."""
        known, repeated = self._last, self._same
        for raw in lines:
            stamp, line = split_stamp(raw)
            if not stamp:  # the node speaks: it has no such log any more
                if not previous and not self._last:
                    yield 0, self._prefix + line.rstrip() + b"\n"
                continue
            if stamp < known:
                continue
            if stamp == known and repeated:
                repeated -= 1
                continue
            if self._until is not None and stamp >= self._until:
                return
            self._same = self._same + 1 if stamp == self._last else 1
            self._last = stamp
            if self._since is None or stamp >= self._since:
                yield stamp, self._prefix + _joined(line)

    def _from(self) -> str:
        """The API goes back to whole seconds only; :meth:`_new` does the rest."""
        begin = self._last or self._since
        if begin is None:
            return ""
        return datetime.fromtimestamp(begin // _SECOND, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _joined(text: bytes) -> bytes:
    """A long line without the stamps between its pieces."""
    pieces = []
    while len(text) > _PIECE and (rest := split_stamp(text[_PIECE:]))[0]:
        pieces.append(text[:_PIECE])
        text = rest[1]
    return b"".join([*pieces, text]) if pieces else text


def _lines(response: Any) -> Iterator[bytes]:
    """Whole lines of a stream. The last piece of one that breaks off is not among them: it is asked for again.

    Raises:
        urllib3.exceptions.HTTPError: it breaks off.
    """
    rest = b""
    for chunk in response.stream(_CHUNK, decode_content=False):
        head, newline, tail = (rest + chunk).rpartition(b"\n")
        rest = tail if newline else rest + chunk
        if newline:
            for line in head.split(b"\n"):
                yield line + b"\n"
    if rest:
        yield rest
