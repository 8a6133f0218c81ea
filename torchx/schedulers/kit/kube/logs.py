"""The log of one replica on Kubernetes: followed from pod to pod and across restarts of its container.

Kubernetes keeps one log for stdout and stderr together:
https://kubernetes.io/docs/concepts/cluster-administration/logging/
"""

from __future__ import annotations

from torchx.errors import BackendError, NotFoundError, NotSupportedError
from torchx.schedulers.kit.kube import pods as names
from torchx.schedulers.kit.kube.api import path_of
from torchx.schedulers.kit.kube.pod_states import read_pod, unix_time
from torchx.specs.api import is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from torchx.schedulers.kit.kube.api import KubeApi
    from torchx.schedulers.kit.logs import LogQuery

    _Object = dict[str, Any]

_CHUNK = 1 << 16
_SILENCE_S = 300.0
"""A stream that says nothing for so long is asked for again: a connection may die without a word."""


def replica_log(
    api: KubeApi,
    find_pods: Callable[[], list[_Object]],
    query: LogQuery,
    *,
    over: Callable[[], bool],
    sleep: Callable[[float], None],
) -> Iterator[str]:
    """Lines of a replica, each with its line end.

    Args:
        find_pods: the replica's pods, oldest first, those that were replaced among them.
        over: whether the app has ended, so that no further pod will come.
        sleep: called with seconds between two looks.

    Raises:
        NotFoundError: the pods are gone, and their logs with them.
        NotSupportedError: stdout or stderr alone was asked for.
    """
    from torchx.schedulers.api import Stream

    if query.stream not in (None, Stream.COMBINED):
        raise NotSupportedError(
            f"Kubernetes keeps one log of stdout and stderr, and cannot show `{query.stream.value}` alone",
            hint="leave out `--streams`",
        )
    read: dict[str, ContainerLog] = {}
    while True:
        ended = over()  # before the pods are asked for: one that is made in between is not missed
        pods = find_pods()
        if not pods and not read and (ended or not query.follow):
            raise NotFoundError("the pods of this replica are gone, and their logs with them")
        for pod in pods:
            log = read.setdefault(str(pod["metadata"].get("uid")), ContainerLog(api, pod, query))
            yield from log.lines(pod)
        if not query.follow or (ended and all(log.done for log in read.values())):
            return
        sleep(1.0)


class ContainerLog:
    """The log of one pod's main container, each of its runs once.

    The API is asked for time stamps (nanoseconds, of fixed width), so that a stream that broke off goes on after the
    last line that was read; lines that share its stamp are counted.
    """

    def __init__(self, api: KubeApi, pod: _Object, query: LogQuery) -> None:
        self._api = api
        self._path = f"{path_of('Pod', pod['metadata']['namespace'], pod['metadata']['name'])}/log"
        self._query = query
        self._last = ""
        self._same = 0
        self._runs = 0
        self.done = False

    def lines(self, pod: _Object) -> Iterator[str]:
        """What the container has written since the last call; with ``follow``, until it ends or the stream does."""
        container = _main(pod)
        state = container.get("state") or {}
        restarts = int(container.get("restartCount") or 0)
        over = is_terminal(read_pod(pod).state)
        if restarts > self._runs:
            # The run before the present one is kept; what an older one wrote is not.
            self._runs = restarts
            yield from self._read(pod, previous=True, follow=False)
        if not self.done and ("running" in state or "terminated" in state):
            yield from self._read(pod, previous=False, follow=self._query.follow and not over)
        # A pod that never got so far as to run has no log.
        self.done = over

    def _read(self, pod: _Object, *, previous: bool, follow: bool) -> Iterator[str]:
        query = {
            "container": _main(pod).get("name", ""),
            "timestamps": "true",
            "sinceTime": self._since(),
            "follow": "true" if follow else "",
            "previous": "true" if previous else "",
        }
        try:
            response = self._api.stream(self._path, query, timeout_s=_SILENCE_S)
        except NotFoundError:
            return  # removed meanwhile, or its previous run is no longer kept
        except BackendError:
            if previous:
                return
            raise
        try:
            known, repeated = self._last, self._same
            for raw in _lines(response):
                stamp, _, line = raw.partition(" ")
                if stamp < known:
                    continue
                if stamp == known and repeated:
                    repeated -= 1
                    continue
                self._same = self._same + 1 if stamp == self._last else 1
                self._last = stamp
                if _within(stamp, self._query):
                    yield line
        finally:
            response.close()
            response.release_conn()

    def _since(self) -> str:
        """The API goes back to whole seconds only; :meth:`_read` does the rest."""
        if self._last:
            return self._last[:19] + "Z"
        if self._query.since is None:
            return ""
        from datetime import datetime, timezone

        return datetime.fromtimestamp(int(self._query.since), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _lines(response: Any) -> Iterator[str]:
    """Whole lines of a stream; a stream that breaks off ends."""
    import urllib3

    rest = b""
    try:
        for chunk in response.stream(_CHUNK, decode_content=False):
            head, newline, tail = (rest + chunk).rpartition(b"\n")
            rest = tail if newline else rest + chunk
            if newline:
                for line in head.split(b"\n"):
                    yield line.decode("utf-8", "replace") + "\n"
    except urllib3.exceptions.HTTPError:
        return
    if rest:
        yield rest.decode("utf-8", "replace")


def _within(stamp: str, query: LogQuery) -> bool:
    if query.since is None and query.until is None:
        return True
    written = unix_time(f"{stamp[:26]}Z")  # to microseconds
    return (query.since is None or written >= query.since) and (query.until is None or written < query.until)


def _main(pod: _Object) -> _Object:
    """Status of the container of the role: by its name, else the first, for pods of other makers."""
    found = [c for c in (pod.get("status") or {}).get("containerStatuses") or () if isinstance(c, dict)]
    named = [c for c in found if c.get("name") == names.MAIN_CONTAINER]
    return (named or found or [{}])[0]
