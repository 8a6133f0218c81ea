"""Logs of replicas, followed across replaced pods and restarted containers.

Kubernetes has one log per container, for stdout and stderr together:
https://kubernetes.io/docs/concepts/cluster-administration/logging/
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter

from torchx.errors import NotFoundError, TorchXError, TransientError
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.follow import Lines
from torchx.schedulers.kit.logs import LogQuery, not_started_again
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.names import LABEL_ROLE_NAME, WAITER, Object, labels_of, role_label
from torchx.schedulers.kubernetes.pods.container_logs import ContainerLog
from torchx.schedulers.kubernetes.pods.events import last_probe
from torchx.schedulers.kubernetes.pods.facts import Pod, by_age, main_container, read_pod, replica_of
from torchx.schedulers.kubernetes.pods.kept_logs import KeptLog, gone
from torchx.specs.api import is_terminal
from torchx.util.notices import logger
from torchx.util.outages import Outage

_Lines = Iterator[tuple[int, bytes]]
"""Nanoseconds since the epoch, and lines with their line ends."""

_EVERY_S = 1.0
_SHARE = 10
"""Polling takes at most one part in so many of the time: in a large job, one poll takes seconds."""
_MAX_PAUSE_S = 15.0
"""The longest pause between two polls; a poll also takes long during an outage, or if this process was stopped."""
_MAX_TAILS = 4
"""How many logs are read at most to explain a failure, if the status of the pods is not sufficient."""
_TAIL_LINES = 400
_TAIL_BYTES = 1 << 16


class Snapshot:
    """The result of one poll of a job: its pods, also replaced ones; if it has ``ended``, there will be no others."""

    def __init__(self, pods: Iterable[Object], *, ended: bool = False) -> None:
        self.ended = ended
        self._pods: dict[tuple[str, int], list[Object]] = {}
        for pod in sorted(pods, key=by_age):
            role = str(labels_of(pod).get(LABEL_ROLE_NAME) or "")
            self._pods.setdefault((role, replica_of(pod["metadata"])), []).append(pod)

    def pods_of(self, role: str, replica: int) -> list[Object]:
        """Return the pods of one replica, oldest first."""
        return self._pods.get((role_label(role), replica), [])


class JobPoller:
    """Polls one job on behalf of all readers of its replicas' logs: only ``once``, or at most once a second.

    ``outage`` handles transient errors of ``poll``; None to raise them.
    """

    def __init__(self, poll: Callable[[], Snapshot], *, once: bool = False, outage: Outage | None = None) -> None:
        self._outage = outage
        self._warned = False
        self._poll = poll
        self._once = once
        self._lock = threading.Lock()
        self._due = 0.0
        self._seen: Snapshot | None = None

    def warn(self, message: str) -> None:
        """Log that a log cannot be read now; only the first such message is logged."""
        if not self._warned:
            self._warned = True
            logger("torchx.schedulers").warning(message)

    def now(self) -> Snapshot:
        """Return the current state, at most a second old."""
        with self._lock:
            begun = time.monotonic()
            if self._seen is None or (begun >= self._due and not self._once):
                self._seen = self._poll_through_outages()
                now = time.monotonic()
                self._due = max(begun + _EVERY_S, now + min((now - begun) * (_SHARE - 1), _MAX_PAUSE_S))
            return self._seen

    def _poll_through_outages(self) -> Snapshot:
        while True:
            try:
                seen = self._poll()
            except TransientError as e:
                if self._outage is None:
                    raise
                time.sleep(self._outage.retry_delay_s(e))  # other threads wait for the lock
                continue
            if self._outage is not None:
                self._outage.recovered()
            return seen


class ReplicaLog(Lines):
    """Lines of a replica. Lines of containers other than the role's are prefixed with ``[<container>]``.

    After the pods were deleted, they are the lines ``kept`` on this machine; NotFoundError if there are none.
    """

    def __init__(
        self, api: KubeApi, poller: JobPoller, replica: tuple[str, int], query: LogQuery, *, kept: KeptLog
    ) -> None:
        super().__init__(query)
        self._api = api
        self._poller = poller
        self._replica = replica
        self._kept = kept

    def _read(self, *, patient: bool) -> Iterator[tuple[int, bytes, int]]:  # noqa: ARG002  # it cannot be polled
        if self._query.previous:
            found = previous_run(self._api, self._poller.now().pods_of(*self._replica), self._query)
        else:
            found = self._live_or_last()
            if self._query.keep:
                found = self._kept.archive(found)
            elif self._query.follow:
                found = self._kept.keep(found)
        for time_ns, line in found:
            yield 0, line, time_ns

    def _live_or_last(self) -> _Lines:
        query = self._query
        logs: dict[str, PodLog] = {}
        outage = Outage("the log of {}/{}".format(*self._replica), self._poller.warn)
        while True:
            seen = self._poller.now()
            pods = seen.pods_of(*self._replica)
            if not pods and not logs and (seen.ended or not query.follow):
                yield from self._kept.lines(query)
                return
            try:
                for pod in pods:
                    log = logs.setdefault(str(pod["metadata"].get("uid")), PodLog(self._api, query))
                    yield from log.lines(pod)
            except TransientError as e:
                if not query.follow:
                    raise
                time.sleep(outage.retry_delay_s(e))
                continue
            outage.recovered()
            there = {str(pod["metadata"].get("uid")) for pod in pods}
            if not query.follow or (seen.ended and all(log.done or uid not in there for uid, log in logs.items())):
                return
            time.sleep(_EVERY_S)


def previous_run(api: KubeApi, pods: Sequence[Object], query: LogQuery) -> _Lines:
    """Return the log of the role's container before its last restart, or of the previous one of ``pods`` (oldest
    first).

    NotFoundError if the replica was not restarted, or that log was deleted.
    """
    if not pods:
        raise gone()
    for pod, restarted in ((pods[-1], True), *((pod, False) for pod in pods[-2:-1])):
        container = main_container((pod.get("status") or {}).get("containerStatuses") or [])
        if not restarted or int(container.get("restartCount") or 0):
            log = ContainerLog(api, pod, str(container.get("name", "")), query)
            yield from log.read_all(previous=restarted)
            if not log.found:
                raise NotFoundError("the cluster no longer has the log from before the last restart")
            return
    raise not_started_again()


class PodLog:
    """The logs of one pod's containers, merged.

    The log of a single container is streamed. Several containers are polled in turn, so that their lines can be sorted
    by time, and a replica uses one connection however many sidecars it has.
    """

    def __init__(self, api: KubeApi, query: LogQuery) -> None:
        self._api = api
        self._query = query
        self._logs: dict[str, ContainerLog] = {}
        self.done = False

    def lines(self, pod: Object) -> _Lines:
        """Lines written since the last call; with ``follow``, a single container is read until its end."""
        if self.done:
            return
        status = pod.get("status") or {}
        own = main_container(status.get("containerStatuses") or []).get("name")
        before = [c for c in status.get("initContainerStatuses") or () if c.get("name") != WAITER]  # it says nothing
        containers = [*before, *(status.get("containerStatuses") or ())]
        over = is_terminal(read_pod(pod).facts.state)
        if len(containers) == 1:
            log = self._log(pod, containers[0], "")
            yield from log.lines(containers[0], follow=self._query.follow and not over)
        else:
            batches: list[list[tuple[int, bytes]]] = []
            outage = None
            for c in containers:
                batches.append([])
                log = self._log(pod, c, "" if c.get("name") == own else f"[{c.get('name')}] ")
                try:
                    for pair in log.lines(c, follow=False):
                        batches[-1].append(pair)
                except TransientError as e:
                    outage = e
            yield from merge(*batches, key=itemgetter(0))
            if outage is not None:  # after the lines that were read, which are not read again
                raise outage
        self.done = over

    def _log(self, pod: Object, container: Object, prefix: str) -> ContainerLog:
        name = str(container.get("name", ""))
        if name not in self._logs:
            self._logs[name] = ContainerLog(self._api, pod, name, self._query, prefix=prefix)
        return self._logs[name]


class EvidenceReader:
    """Reads why replicas failed: from the status of their pods, and if necessary, from the ends of a few logs."""

    def __init__(self, api: KubeApi, namespace: str, pods: Mapping[tuple[str, int], Pod]) -> None:
        self._api = api
        self._namespace = namespace
        self._pods = pods
        self._tails = _MAX_TAILS

    def __call__(self, replicas: Sequence[ReplicaFacts], /) -> list[Evidence]:
        found = []
        for replica in replicas:
            pod = self._pods.get((replica.role, replica.replica))
            found.append(pod.evidence(self._tail(pod)) if pod is not None else Evidence())
        return found

    def _tail(self, pod: Pod) -> str:
        if self._tails == 0 or pod.says_enough():
            return ""
        self._tails -= 1
        query = {"container": pod.container, "tailLines": _TAIL_LINES, "limitBytes": 16 * _TAIL_BYTES}
        try:
            text = self._api.text(f"{path_of('Pod', self._namespace, pod.name)}/log", query)
        except TorchXError:  # for example, its node is gone, or we may not read logs
            return ""
        return text[-_TAIL_BYTES:]


def what_it_left(api: KubeApi, namespace: str, pod: Pod) -> tuple[str, str]:
    """Return what the last startup probe of a pod saw, and the end of its log; empty if unknown."""
    query = {"container": pod.container, "tailLines": 1, "limitBytes": _TAIL_BYTES}
    try:
        said = pod.left or api.text(f"{path_of('Pod', namespace, pod.name)}/log", query)
    except TorchXError:
        said = ""
    return last_probe(api, namespace, pod.name), said
