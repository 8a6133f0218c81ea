"""Converts pods of the API, of any version of Kubernetes, to facts of replicas.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.failures.reader import Evidence, read_failure, signal_name
from torchx.schedulers.kubernetes import names, reasons
from torchx.schedulers.kubernetes.names import Object
from torchx.specs.api import AppState
from torchx.specs.failures import Failure
from torchx.util.records import dataclass, replace

_CUT = 2000
"""Kubernetes keeps 2 KiB of a log in a pod's status. A longer message may lack its beginning."""
_MAIN = (names.MAIN_CONTAINER, names.PYTORCH_CONTAINER, names.NODE)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A parsed pod.

    Attributes:
        facts: facts of its replica; the caller sets the name of the role.
        role_index: index of its role.
        role: label of the role, which is its name if that is a valid label.
        container: the container whose end is the pod's end.
        init: whether that is an init container, so that the program did not start.
        left: termination message: torchelastic's error file, or the end of the log.
        starting: its containers are being created; if this takes long, events have the reason.
        failures: failures of the replica; disruptions by the cluster do not count.
        restarts: restarts of its containers; in the result of :func:`read_pods`, also those of replaced pods.
        image: digest of the image that the node used; empty if unknown.
        ready: Unix time since when it is ready; 0 if it never was; if it has ended, some time at which it was.
        began: Unix time of the start of its container; 0 if it has not started.
        age: sort key for the pods of one replica; see :func:`by_age`.
    """

    facts: ReplicaFacts
    name: str
    role_index: int
    role: str = ""
    container: str = names.MAIN_CONTAINER
    init: bool = False
    left: str = ""
    starting: bool = False
    failures: int = 0
    restarts: int = 0
    image: str = ""
    ready: float = 0.0
    began: float = 0.0
    age: tuple[str, bool, float, str] = ("", False, 0, "")

    def evidence(self, log: str = "") -> Evidence:
        """Return the error file and the last lines of its program,
        from ``log`` (the end of its log) if that was read.
        """
        file = _error_file(self.left)
        reason = f"init container `{self.container}` failed" if self.init else ""
        return Evidence(error_file=file, stderr=log or ("" if file else self.left), reason=reason)

    def says_enough(self) -> bool:
        """Whether its status is sufficient to explain the failure, so that its log need not be read."""
        if self.facts.reason or _error_file(self.left):
            return True
        read = read_failure(self.evidence(), exit_code=self.facts.exit_code, signal=self.facts.signal)
        whole = len(self.left.encode()) < _CUT or "Traceback (most recent call last)" in read.traceback
        return bool(read.message) and whole

    def failure(self) -> Failure:
        """Why it failed, without the name of the replica."""
        facts = self.facts
        read = read_failure(self.evidence(), exit_code=facts.exit_code, signal=facts.signal, ended=facts.ended)
        return replace(read, message=facts.reason, kind=facts.kind) if facts.reason else read


def read_pods(items: Iterable[Object]) -> list[Pod]:
    """Return the newest pod of each replica, in the order of roles and replicas.

    Its restarts include the pods that it replaced.
    """
    found = []
    for pods in by_replica(items):
        *older, newest = pods
        facts = newest.facts
        if older and older[-1].facts.state is AppState.FAILED:
            earlier = older[-1].failure()
            facts = replace(facts, before=earlier.summary(), earlier=earlier)
        failures, restarts = sum(pod.failures for pod in pods), sum(pod.restarts for pod in pods)
        found.append(replace(newest, facts=facts, failures=failures, restarts=restarts + len(older)))
    return found


def by_replica(items: Iterable[Object]) -> list[list[Pod]]:
    """Return the pods of each replica, oldest first, in the order of roles and replicas."""
    of: dict[tuple[int, int], list[Pod]] = {}
    for pod in sorted(map(read_pod, items), key=lambda pod: pod.age):
        of.setdefault((pod.role_index, pod.facts.replica), []).append(pod)
    return [of[key] for key in sorted(of)]


def read_pod(item: Object) -> Pod:
    """Parse a pod. Tolerates missing and malformed fields."""
    metadata, status = _dict(item, "metadata"), _dict(item, "status")
    containers = _list(status, "containerStatuses")
    main = main_container(containers)
    state = reasons.POD_PHASES.get(str(status.get("phase")), AppState.UNKNOWN)
    restarts = sum(_number(c.get("restartCount")) for c in containers)
    facts = ReplicaFacts(
        role="",
        replica=replica_of(metadata),
        state=state,
        native=str(status.get("phase") or ""),
        host=str(_dict(item, "spec").get("nodeName") or ""),
        started=unix_time(status.get("startTime")),
    )
    current = _terminated(main) or _dict(_dict(main, "state"), "running")
    began = unix_time(current.get("startedAt"))
    pod = Pod(
        facts=facts,
        ready=_ready(status, began),
        began=began,
        name=str(metadata.get("name", "")),
        role_index=_number(_dict(metadata, "labels").get(names.LABEL_ROLE_INDEX)),
        role=str(_dict(metadata, "labels").get(names.LABEL_ROLE_NAME) or ""),
        container=str(main.get("name") or names.MAIN_CONTAINER),
        failures=restarts + (state is AppState.FAILED and not _disrupted(status)),
        restarts=restarts,
        age=by_age(item),
        image=str(main.get("imageID") or "").rpartition("://")[2],  # `docker-pullable://repo@sha256:...`
    )
    if state is AppState.FAILED:
        return _failed(pod, item)
    if state is AppState.SUCCEEDED:
        ended = unix_time(_terminated(main).get("finishedAt"))
        return replace(pod, facts=replace(facts, ended=ended, exit_code=0))
    if state is AppState.UNKNOWN:
        why = status.get("message") or status.get("reason") or f"its phase is `{status.get('phase')}`"
        return replace(pod, facts=replace(facts, reason=str(why)))
    return _active(pod, item)


def _active(pod: Pod, item: Object) -> Pod:
    """Complete the facts of a pod that waits or runs."""
    status = _dict(item, "status")
    why, stuck = _waits(status)
    if pod.facts.state is AppState.RUNNING:
        why = _taken_away(item) or why
    elif not why and pod.facts.host and not _list(status, "containerStatuses"):
        why = f"it waits for its node `{pod.facts.host}` to start it"
    last = _dict(_dict(main_container(_list(status, "containerStatuses")), "lastState"), "terminated")
    earlier = _ended_by(pod, status, last).failure() if last.get("exitCode") else None
    if not why and earlier is None:
        return pod
    before = earlier.summary() if earlier is not None and stuck else ""  # its container is restarted repeatedly
    return replace(
        pod,
        facts=replace(pod.facts, reason=why, stuck=stuck, before=before, earlier=earlier),
        starting=f"({reasons.CREATING})" in why and not stuck,
    )


def _failed(pod: Pod, item: Object) -> Pod:
    """Complete the facts of a pod that failed because of its main container or an init container."""
    metadata, status = _dict(item, "metadata"), _dict(item, "status")
    container = main_container(_list(status, "containerStatuses"))
    if not _terminated(container).get("exitCode"):
        started = _list(status, "initContainerStatuses")
        failed = next((c for c in started if _terminated(c).get("exitCode")), None)
        container, pod = failed or container, replace(pod, init=failed is not None)
    last = _terminated(container)
    pod = _ended_by(pod, status, last)
    pod = replace(pod, container=str(container.get("name") or pod.container))
    asked = unix_time(metadata.get("deletionTimestamp")) - _number(metadata.get("deletionGracePeriodSeconds"))
    deleted = bool(metadata.get("deletionTimestamp")) and not pod.facts.kind
    stopped = deleted and (pod.facts.ended > asked or (bool(pod.facts.signal) and pod.facts.ended >= asked))
    return replace(pod, facts=replace(pod.facts, stopped=stopped))


def _ended_by(pod: Pod, status: Object, last: Object) -> Pod:
    """Add how its container ended: exit code or signal, and the reason if the cluster ended it."""
    code = last.get("exitCode")
    code = code if type(code) is int else None
    signal = signal_name(_number(last.get("signal"))) if last.get("signal") else ""
    if not signal and code is not None and code > _SHELL:
        signal = signal_name(code)
    word = _reason(status, last)
    said = status.get("message") or (last.get("message") if word in reasons.NOT_STARTED else "")
    kind, why = reasons.ended(word, str(said or "")) if word else ("", "")
    facts = replace(
        pod.facts,
        exit_code=None if signal else code,
        signal=signal,
        ended=unix_time(last.get("finishedAt")),
        reason=why,
        kind=kind,
    )
    return replace(pod, facts=facts, left=str(last.get("message") or "").strip())


_SHELL = 128


def by_age(pod: Object) -> tuple[str, bool, float, str]:
    """Sort key for the pods of one replica, oldest first.

    Times of the API are in whole seconds. Of two pods created in the same second, the one that has ended is older.
    """
    metadata, status = _dict(pod, "metadata"), _dict(pod, "status")
    active = reasons.POD_PHASES.get(str(status.get("phase"))) not in (AppState.SUCCEEDED, AppState.FAILED)
    ended = unix_time(_terminated(main_container(_list(status, "containerStatuses"))).get("finishedAt"))
    return str(metadata.get("creationTimestamp") or ""), active, ended, str(metadata.get("name") or "")


def replica_of(metadata: Object) -> int:
    """Return the replica of a pod, from torchx's label, or from the index that its Job gave it."""
    labels, annotations = _dict(metadata, "labels"), _dict(metadata, "annotations")
    by_controller = annotations.get(names.INDEX_ANNOTATION, labels.get(names.INDEX_LABEL))
    return _number(labels.get(names.LABEL_REPLICA_ID, by_controller))


def main_container(containers: Sequence[Object]) -> Object:
    """Return the container of the role, by its name; the first one in pods that torchx did not create."""
    by_name = {c.get("name"): c for c in containers}
    return next((by_name[name] for name in _MAIN if name in by_name), next(iter(containers), {}))


def shorten(message: str) -> str:
    """Return the scheduler's message on a pod that fits no node, without its attempts of preemption and, since 1.34,
    others.

    >>> shorten("0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: none.")
    '0/1 nodes are available: 1 Insufficient cpu'
    """
    return re.split(r"\. (?:[^.]*, )?preemption:|,? preemption:", message.strip())[0].rstrip(". ")


def unix_time(text: object) -> float:
    """Return a time of the API as Unix time; 0 if missing or invalid.

    >>> unix_time("1970-01-01T00:01:00Z"), unix_time(None)
    (60.0, 0.0)
    """
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _ready(status: Object, began: float) -> float:
    """Since when a pod is ready, or was: the condition of a pod that never was changes once only, before it starts."""
    condition = next((c for c in _list(status, "conditions") if c.get("type") == "Ready"), {})
    changed = unix_time(condition.get("lastTransitionTime"))
    return changed if condition.get("status") == "True" or (began and changed > began) else 0.0


def _waits(status: Object) -> tuple[str, bool]:
    """Why a pod waits, and whether this requires an action of the user. Empty for one that waits for other roles."""
    for condition in _list(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = shorten(str(condition.get("message") or "it waits for a node"))
            gated = condition.get("reason") == "SchedulingGated"
            return ("it is held back by a scheduling gate" if gated else f"no node fits: {message}"), False
    first = _list(status, "initContainerStatuses")
    if any(c.get("name") == names.WAITER and "running" in _dict(c, "state") for c in first):
        return "", False
    for container in (*first, *_list(status, "containerStatuses")):
        waiting = _dict(_dict(container, "state"), "waiting")
        reason = str(waiting.get("reason") or "")
        if reason:
            which = f"init container `{container.get('name')}`: " if container in first else ""
            return which + reasons.waiting(reason, str(waiting.get("message") or "")), reason in reasons.STUCK
    return "", False


def _taken_away(pod: Object) -> str:
    """Why a pod with the phase ``Running`` may not be running; empty if it is.

    If a node does not respond, the node controller sets its pods to not ready, without changing their containers. It
    later deletes the pods, which remain until the node responds or is removed.
    https://kubernetes.io/docs/concepts/architecture/nodes/#node-status
    """
    status = _dict(pod, "status")
    disrupted = _disrupted(status)
    if _dict(pod, "metadata").get("deletionTimestamp"):
        reason = disrupted or ("NodeLost" if status.get("reason") == "NodeLost" else "")
        if reason:
            return reasons.ended(reason, "")[1]
    is_ = {str(c.get("type")): c.get("status") for c in _list(status, "conditions")}
    gated = _list(_dict(pod, "spec"), "readinessGates")
    if is_.get("Ready") == "False" and is_.get("ContainersReady") == "True" and not gated:
        return f"its node `{_dict(pod, 'spec').get('nodeName')}` does not answer"
    return ""


def kill_in_s(pods: Iterable[Object], now: float) -> float | None:
    """Return the seconds until the last pod that is being deleted is killed; None if there is none."""
    times = [unix_time(_dict(pod, "metadata").get("deletionTimestamp")) for pod in pods]  # it includes the grace period
    return max(times) - now if any(times) else None


def _disrupted(status: Object) -> str:
    """Return the reason for which the cluster disrupted a pod, from its condition (since 1.26); empty if it did not."""
    for condition in _list(status, "conditions"):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason") or "")
    return ""


def _reason(status: Object, terminated: Object) -> str:
    """Return the cluster's reason for the end of a pod; empty if the program ended by itself."""
    disrupted, reason = _disrupted(status), status.get("reason")
    # The kubelet's reason is more specific than `TerminationByKubelet`.
    first = (reason, disrupted) if disrupted == "TerminationByKubelet" else (disrupted, reason)
    for reason in (*first, terminated.get("reason")):
        if reason and reason not in ("Error", "Completed"):
            return str(reason)
    return ""


def _error_file(left: str) -> str | None:
    """Torchelastic's error file. Kubernetes truncates it to 4 KiB, which still contain the message."""
    if not left.startswith("{"):
        return None
    try:
        json.loads(left)
    except (ValueError, RecursionError):
        # one line was truncated; several lines are the log of a program that writes JSON
        cut = re.fullmatch(r'\{"message": (?:\{"message": )?("(?:[^"\\]|\\.)*").*', left)
        with contextlib.suppress(ValueError):
            return json.dumps({"message": json.loads(cut[1])}) if cut else None
        return None
    return left


def _terminated(container: Object) -> Object:
    return _dict(_dict(container, "state"), "terminated")


def _dict(parent: Object, key: str) -> Object:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _list(parent: Object, key: str) -> list[Object]:
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0
