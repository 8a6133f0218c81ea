"""Where the lines of a replica are: followed from pod to pod and across restarts of its containers.

Kubernetes keeps one log for stdout and stderr together, for each container:
https://kubernetes.io/docs/concepts/cluster-administration/logging/
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter

from torchx.errors import NotFoundError, NotSupportedError, TorchXError, TransientError
from torchx.schedulers.api import Stream
from torchx.schedulers.failures.reader import Evidence
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.follow import Lines
from torchx.schedulers.kit.logs import LogQuery, not_started_again
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.container_logs import ContainerLog
from torchx.schedulers.kubernetes.kept_logs import KeptLog, gone
from torchx.schedulers.kubernetes.names import LABEL_ROLE_NAME, Object, label_value
from torchx.schedulers.kubernetes.pod_answers import Pod, by_age, main_container, read_pod, replica_of
from torchx.specs.api import is_terminal
from torchx.util.notices import logger
from torchx.util.outages import Outage

_Lines = Iterator[tuple[int, bytes]]
"""Times, nanoseconds since the epoch, and lines, each with its line end."""

_EVERY_S = 1.0
_SHARE = 10
"""At most one part in ten of the time is spent on looking: in a large job, a look takes seconds."""
_SELDOM_S = 15.0
"""The longest time between two looks: one also takes long when the cluster is away, or we are stopped."""
_MOST_TAILS = 4
"""The most logs that are read to explain a failure, of replicas whose pods' status does not say enough."""
_TAIL_LINES = 400
_TAIL_BYTES = 1 << 16


class Seen:
    """What a look at a job has shown.

    Args:
        pods: of all replicas, those that were replaced among them.
        ended: the job has ended: there will be no other pods.
    """

    def __init__(self, pods: Iterable[Object], *, ended: bool = False) -> None:
        self.ended = ended
        self._pods: dict[tuple[str, int], list[Object]] = {}
        for pod in sorted(pods, key=by_age):
            labels = pod["metadata"].get("labels") or {}
            place = (str(labels.get(LABEL_ROLE_NAME) or ""), replica_of(pod["metadata"]))
            self._pods.setdefault(place, []).append(pod)

    def pods_of(self, role: str, replica: int) -> list[Object]:
        """The pods of one replica, oldest first."""
        return self._pods.get((label_value(role), replica), [])


class Glance:
    """What the cluster has of one job, asked for on behalf of all who read its replicas' logs.

    Args:
        look: asks.
        once: what was seen first is good for all; else it is looked again after a second.
        outage: bears those of the cluster; None: they are raised.
    """

    def __init__(self, look: Callable[[], Seen], *, once: bool = False, outage: Outage | None = None) -> None:
        self._outage = outage
        self._warned = False
        self._ask = look
        self._once = once
        self._lock = threading.Lock()
        self._due = 0.0
        self._seen: Seen | None = None

    def warn(self, message: str) -> None:
        """Says that a log cannot be read just now, of the first one alone."""
        if not self._warned:
            self._warned = True
            logger("torchx.schedulers").warning(message)

    def now(self) -> Seen:
        """What there is now, or was a second ago."""
        with self._lock:
            begun = time.monotonic()
            if self._seen is None or (begun >= self._due and not self._once):
                self._seen = self._answer()
                now = time.monotonic()
                self._due = max(begun + _EVERY_S, now + min((now - begun) * (_SHARE - 1), _SELDOM_S))
            return self._seen

    def _answer(self) -> Seen:
        while True:
            try:
                seen = self._ask()
            except TransientError as e:
                if self._outage is None:
                    raise
                time.sleep(self._outage.bear(e))  # whoever else wants to know waits at the lock
                continue
            if self._outage is not None:
                self._outage.over()
            return seen


class ReplicaLog(Lines):
    """Lines of a replica; those of other containers than the role's after ``[<container>]``.

    Args:
        replica: role, and number within it.
        kept: has the lines that were archived or followed here, for when the pods are gone.
        sleep: called with seconds between two looks.

    Raises:
        NotFoundError: the pods are gone, and their logs with them.
    """

    def __init__(
        self,
        api: KubeApi,
        glance: Glance,
        replica: tuple[str, int],
        query: LogQuery,
        *,
        kept: KeptLog,
        sleep: Callable[[float], None],
    ) -> None:
        super().__init__(query)
        self._api = api
        self._glance = glance
        self._replica = replica
        self._kept = kept
        self._sleep = sleep

    def _read(self, *, patient: bool) -> Iterator[tuple[int, bytes, int]]:  # noqa: ARG002  # it cannot be polled
        if self._query.previous:
            found = previous_run(self._api, self._glance.now().pods_of(*self._replica), self._query)
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
        outage = Outage("the log of {}/{}".format(*self._replica), self._glance.warn)
        while True:
            seen = self._glance.now()
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
                self._sleep(outage.bear(e))
                continue
            outage.over()
            there = {str(pod["metadata"].get("uid")) for pod in pods}
            if not query.follow or (seen.ended and all(log.done or uid not in there for uid, log in logs.items())):
                return
            self._sleep(_EVERY_S)


def refuse_streams(query: LogQuery) -> None:
    """Raises NotSupportedError when stdout or stderr alone is asked for: a container has one log of both."""
    if query.stream not in (None, Stream.COMBINED):
        raise NotSupportedError(
            f"Kubernetes keeps one log of stdout and stderr, and cannot show `{query.stream.value}` alone",
            hint="omit `--streams`",
        )


def previous_run(api: KubeApi, pods: Sequence[Object], query: LogQuery) -> _Lines:
    """What the role's container wrote before it was started again, or the pod before the present one.

    Args:
        pods: of the replica, oldest first.

    Raises:
        NotFoundError: the replica was not started again, or that log is gone.
    """
    if not pods:
        raise gone()
    for pod, restarted in ((pods[-1], True), *((pod, False) for pod in pods[-2:-1])):
        container = main_container((pod.get("status") or {}).get("containerStatuses") or [])
        if not restarted or int(container.get("restartCount") or 0):
            log = ContainerLog(api, pod, str(container.get("name", "")), query)
            yield from log.run(previous=restarted)
            if not log.found:
                raise NotFoundError("the cluster no longer has what was written before the last restart")
            return
    raise not_started_again()


class PodLog:
    """The logs of one pod's containers as one.

    That of a lone container is a stream that is held open. Several are asked for in turn, so that their lines can be
    put in the order of their times, and a replica holds one connection however many sidecars it has.
    """

    def __init__(self, api: KubeApi, query: LogQuery) -> None:
        self._api = api
        self._query = query
        self._logs: dict[str, ContainerLog] = {}
        self.done = False

    def lines(self, pod: Object) -> _Lines:
        """What the containers have written since the last call; with ``follow``, of a lone one until its end."""
        if self.done:
            return
        status = pod.get("status") or {}
        own = main_container(status.get("containerStatuses") or []).get("name")
        containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
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
            if outage is not None:  # what was read is not read again
                raise outage
        # A pod that never got so far as to run has no log.
        self.done = over

    def _log(self, pod: Object, container: Object, prefix: str) -> ContainerLog:
        name = str(container.get("name", ""))
        if name not in self._logs:
            self._logs[name] = ContainerLog(self._api, pod, name, self._query, prefix=prefix)
        return self._logs[name]


class LastWords:
    """What failed replicas left behind: in the status of their pods, and where that says little, in few of their logs.

    Args:
        pods: by role and number of the replica.
    """

    def __init__(self, api: KubeApi, namespace: str, pods: Mapping[tuple[str, int], Pod]) -> None:
        self._api = api
        self._namespace = namespace
        self._pods = pods
        self._tails = _MOST_TAILS

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
        except TorchXError:  # its node is gone, or we may not see it
            return ""
        return text[-_TAIL_BYTES:]
