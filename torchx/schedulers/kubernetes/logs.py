"""The log of one replica on Kubernetes: followed from pod to pod and across restarts of its containers.

Kubernetes keeps one log for stdout and stderr together, for each container:
https://kubernetes.io/docs/concepts/cluster-administration/logging/
"""

from __future__ import annotations

import time

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.kubernetes.container_logs import ContainerLog
from torchx.schedulers.kubernetes.pod_states import by_age, main_container, read_pod, replica_of
from torchx.schedulers.kubernetes.pods import LABEL_ROLE_NAME, label_value
from torchx.specs.api import is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from torchx.schedulers.kit.logs import LogQuery
    from torchx.schedulers.kubernetes.api import KubeApi
    from torchx.schedulers.kubernetes.kept import Kept

    _Object = dict[str, Any]
    _Look = tuple[list[_Object], bool]

_EVERY_S = 1.0
_SHARE = 10
"""Of a large job, the looks take one part in so many of the time."""
_SELDOM_S = 15.0
"""But for no longer is nobody told of new pods: a look takes long, too, when the cluster is away, or we are stopped."""


class Glance:
    """What the cluster has of one job, asked for on behalf of all who follow its replicas.

    Args:
        look: returns the pods, and whether the job has ended.
    """

    def __init__(self, look: Callable[[], _Look]) -> None:
        import threading

        self._ask = look
        self._lock = threading.Lock()
        self._due = 0.0
        self._seen: _Look = ([], False)

    def now(self, *, anew: bool = False) -> _Look:
        """What there is now, or was a second ago; asked ``anew``, now."""
        with self._lock:
            begun = time.monotonic()
            if anew or begun >= self._due:
                self._seen = self._ask()
                now = time.monotonic()
                self._due = max(begun + _EVERY_S, now + min((now - begun) * (_SHARE - 1), _SELDOM_S))
            return self._seen


def replica_log(
    api: KubeApi,
    glance: Glance,
    replica: tuple[str, int],
    query: LogQuery,
    *,
    kept: Kept,
    sleep: Callable[[float], None],
) -> Iterator[str]:
    """Lines of a replica, each with its line end; those of other containers than the role's after ``[<container>]``.

    Args:
        replica: role, and number within it.
        kept: has the last lines that were followed from here, for when the pods are gone.
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
    lines = _live_or_last(api, glance, replica, query, kept=kept, sleep=sleep)
    return kept.keep(lines) if query.follow else lines


def _live_or_last(
    api: KubeApi,
    glance: Glance,
    replica: tuple[str, int],
    query: LogQuery,
    *,
    kept: Kept,
    sleep: Callable[[float], None],
) -> Iterator[str]:
    logs: dict[str, PodLog] = {}
    while True:
        items, ended = glance.now()
        pods = pods_of(items, replica)
        if not pods and not logs and not query.follow:
            items, ended = glance.now(anew=True)  # before it is said that there are none
            pods = pods_of(items, replica)
        if not pods and not logs and (ended or not query.follow):
            yield from kept.last()
            return
        for pod in pods:
            log = logs.setdefault(str(pod["metadata"].get("uid")), PodLog(api, query))
            yield from log.lines(pod)
        there = {str(pod["metadata"].get("uid")) for pod in pods}
        if not query.follow or (ended and all(log.done or uid not in there for uid, log in logs.items())):
            return
        sleep(_EVERY_S)


def pods_of(items: list[_Object], replica: tuple[str, int]) -> list[_Object]:
    """The pods of a replica, oldest first, those that were replaced among them."""
    role, k = replica
    mine = [
        pod
        for pod in items
        if replica_of(pod["metadata"]) == k
        and (pod["metadata"].get("labels") or {}).get(LABEL_ROLE_NAME) == label_value(role)
    ]
    return sorted(mine, key=by_age)


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

    def lines(self, pod: _Object) -> Iterator[str]:
        """What the containers have written since the last call; with ``follow``, of a lone one until its end."""
        if self.done:
            return
        status = pod.get("status") or {}
        own = main_container(status.get("containerStatuses") or []).get("name")
        containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        over = is_terminal(read_pod(pod).state)
        if len(containers) == 1:
            log = self._log(pod, containers[0], "")
            for _, line in log.lines(containers[0], follow=self._query.follow and not over):
                yield line
        else:
            from heapq import merge

            batches = [
                list(self._log(pod, c, "" if c.get("name") == own else f"[{c.get('name')}] ").lines(c, follow=False))
                for c in containers
            ]
            for _, line in merge(*batches, key=lambda pair: pair[0]):
                yield line
        # A pod that never got so far as to run has no log.
        self.done = over

    def _log(self, pod: _Object, container: _Object, prefix: str) -> ContainerLog:
        name = str(container.get("name", ""))
        if name not in self._logs:
            self._logs[name] = ContainerLog(self._api, pod, name, self._query, prefix=prefix)
        return self._logs[name]


def gone() -> NotFoundError:
    """The pods are no longer there."""
    return NotFoundError(
        "the pods of this replica are gone, and their logs with them",
        hint="`torchx log --tail` while a job runs keeps the last lines",
    )
