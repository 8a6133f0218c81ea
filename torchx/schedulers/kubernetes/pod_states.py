"""What a pod's status says: its state, and why, as a sentence.

Reads pods as the API answers them (plain dicts); see
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ for the words in the tables below.
"""

from __future__ import annotations

import re

from torchx.schedulers.kubernetes import pods as names
from torchx.schedulers.kubernetes.kinds import INDEX_ANNOTATION
from torchx.specs.api import NONE, AppState, ReplicaStatus
from torchx.specs.failures import Failure, parse_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from dataclasses import dataclass
    from typing import Any

    _Object = dict[str, Any]
else:
    from torchx.util.records import dataclass

PHASES = {
    "Pending": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Unknown": AppState.UNKNOWN,
}

WAITING = {
    "ContainerCreating": "its container is being made",
    "PodInitializing": "its init containers run",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and may not be pulled",
    "InvalidImageName": "the name of its image is malformed",
    "RegistryUnavailable": "the registry of its image does not answer",
    "SignatureValidationFailed": "the signature of its image is not valid",
    "CrashLoopBackOff": "its container fails again and again, and is waited with",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
    "PostStartHookError": "its postStart hook failed",
}
"""Reason of a waiting container -> what is the matter."""

_CREATING = "ContainerCreating"
# These do not pass by themselves: somebody has to act.
STUCK = frozenset(WAITING) - {_CREATING, "PodInitializing"}

ENDED = {
    "OOMKilled": "used more memory than its limit, and was killed",
    "ContainerCannotRun": "its program could not be started",
    "StartError": "its program could not be started",
    "ContainerStatusUnknown": "nobody knows how its container ended: its node was lost or restarted",
    "DeadlineExceeded": "ran longer than its deadline",
    "Evicted": "was evicted from its node",
    "NodeLost": "its node was lost",
    "NodeAffinity": "no longer fits the labels of its node",
    "NodeShutdown": "its node was shut down",
    "Shutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "Preempting": "gave way to a pod of the node itself",
    "Preempted": "gave way to a pod of higher priority",
    "UnexpectedAdmissionError": "its node did not take it",
    "OutOfcpu": "its node had no CPU left for it",
    "OutOfmemory": "its node had no memory left for it",
    "OutOfpods": "its node had room for no more pods",
    # of the condition DisruptionTarget
    "PreemptionByScheduler": "gave way to a pod of higher priority",
    "DeletionByTaintManager": "was taken off its node, which became unfit",
    "EvictionByEvictionAPI": "was evicted, as in the draining of its node",
    "DeletionByPodGC": "its node no longer exists",
    "TerminationByKubelet": "was ended by its node: shut down, or short of something",
}
"""Reason of a failed pod or of a terminated container -> what happened."""


@dataclass(frozen=True)
class PodView:
    """One pod, read.

    Attributes:
        replica: its number within the role.
        why: what it waits for or why it failed, as the rest of a sentence; empty when there is nothing to say.
        stuck: it will not go on unless somebody acts.
        starting: its containers are being made; should that take long, events say why.
        failure: of a failed one.
        before: why the pod that it replaces failed.
        started, ended: Unix times; 0 when not known.
        image: digest of the image that the node really used; empty when not known.
        age: for sorting the pods of one replica; see :func:`by_age`.
    """

    name: str
    role_index: int
    replica: int
    state: AppState
    why: str = ""
    stuck: bool = False
    starting: bool = False
    failure: Failure | None = None
    restarts: int = 0
    node: str = ""
    started: float = 0
    ended: float = 0
    age: tuple[str, bool, float, str] = ("", False, 0, "")
    image: str = ""
    before: str = ""

    def status(self, role: str) -> ReplicaStatus:
        """As a line of the app's status."""
        error = self.failure.to_structured_msg() if self.failure else NONE
        return ReplicaStatus(self.replica, self.state, role, self.node, error)


def read_pods(items: Iterable[_Object]) -> list[PodView]:
    """The pods that count: of each replica the newest, in the order of roles and replicas.

    Its restarts are those of its containers, and the pods that it replaced.
    """
    newest: dict[tuple[int, int], PodView] = {}
    replaced: dict[tuple[int, int], list[PodView]] = {}
    for item in items:
        view = read_pod(item)
        key = (view.role_index, view.replica)
        other = newest.get(key)
        if other is None or view.age > other.age:
            newest[key], view = view, other  # type: ignore[assignment]  # None where there was none
        if view is not None:
            replaced.setdefault(key, []).append(view)
    found = []
    for key in sorted(newest):
        fields = dict(vars(newest[key]))
        older = sorted(replaced.get(key, ()), key=lambda view: view.age)
        fields["restarts"] += len(older)
        fields["before"] = older[-1].why if older and older[-1].failure else ""
        found.append(PodView(**fields))
    return found


def read_pod(pod: _Object) -> PodView:
    """One pod. Total: whatever is missing in the answer is left open."""
    metadata, status = _dict(pod, "metadata"), _dict(pod, "status")
    labels = _dict(metadata, "labels")
    containers = _list(status, "containerStatuses")
    ended = _terminated(main_container(containers))
    state = PHASES.get(str(status.get("phase")), AppState.UNKNOWN)
    why, stuck = _waits(status) if state in (AppState.PENDING, AppState.RUNNING) else ("", False)
    node = str(_dict(pod, "spec").get("nodeName") or "")
    if state is AppState.RUNNING:
        why = _taken_away(pod) or why
    if state is AppState.PENDING and not why and node and not containers:
        why = f"it waits for its node `{node}` to start it"
    failure = None
    if state is AppState.FAILED:
        failure = _failure(status)
        why = failure.summary()
    elif state is AppState.UNKNOWN:
        why = str(status.get("message") or status.get("reason") or f"its phase is `{status.get('phase')}`")
    return PodView(
        name=str(metadata.get("name", "")),
        role_index=_number(labels.get(names.LABEL_ROLE_INDEX)),
        replica=replica_of(metadata),
        state=state,
        why=why,
        stuck=stuck,
        starting=f"({_CREATING})" in why and not stuck,
        failure=failure,
        restarts=sum(_number(c.get("restartCount")) for c in containers),
        node=node,
        started=unix_time(status.get("startTime")),
        ended=unix_time(ended.get("finishedAt")) if state in (AppState.SUCCEEDED, AppState.FAILED) else 0,
        age=by_age(pod),
        image=_digest(str(main_container(containers).get("imageID") or "")),
    )


def by_age(pod: _Object) -> tuple[str, bool, float, str]:
    """For sorting the pods of one replica, oldest first. The API's times are in whole seconds: of two that were made in
    the same one, the one that has ended is the one that was replaced."""
    metadata, status = _dict(pod, "metadata"), _dict(pod, "status")
    goes_on = PHASES.get(str(status.get("phase"))) not in (AppState.SUCCEEDED, AppState.FAILED)
    ended = unix_time(_terminated(main_container(_list(status, "containerStatuses"))).get("finishedAt"))
    return str(metadata.get("creationTimestamp") or ""), goes_on, ended, str(metadata.get("name") or "")


def replica_of(metadata: _Object) -> int:
    """Which replica a pod is: by our label, or by the number that its Job gave it."""
    labels, annotations = _dict(metadata, "labels"), _dict(metadata, "annotations")
    return _number(labels.get(names.LABEL_REPLICA_ID, annotations.get(INDEX_ANNOTATION)))


def shorten(message: str) -> str:
    """The scheduler's own words on a pod that fits nowhere, less what it tried in vain.

    >>> shorten("0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: 3 No preemption.")
    '0/3 nodes are available: 3 Insufficient cpu'

    Since 1.34 other plugins say before it what they tried:

    >>> shorten("0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: none.")
    '0/1 nodes are available: 1 Insufficient cpu'
    """
    return re.split(r"\. (?:[^.]*, )?preemption:|,? preemption:", message.strip())[0].rstrip(". ")


def unix_time(text: object) -> float:
    """A time of the API as Unix time; 0 when it is none.

    >>> unix_time("1970-01-01T00:01:00Z"), unix_time(None)
    (60.0, 0.0)
    """
    from datetime import datetime

    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _waits(status: _Object) -> tuple[str, bool]:
    for condition in _list(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = shorten(str(condition.get("message") or "it waits for a node"))
            gated = condition.get("reason") == "SchedulingGated"
            return ("it is held back by a scheduling gate" if gated else f"no node fits: {message}"), False
    for container in (*_list(status, "initContainerStatuses"), *_list(status, "containerStatuses")):
        waiting = _dict(_dict(container, "state"), "waiting")
        reason = str(waiting.get("reason") or "")
        if reason:
            return _sentence(reason, WAITING, str(waiting.get("message") or "")), reason in STUCK
    return "", False


def _taken_away(pod: _Object) -> str:
    """What happens to a pod that runs as far as anybody knows; empty: nothing.

    The node controller of a node that has fallen silent writes that its pods are not ready, and nothing of their
    containers; later the pods are to go, and stay until the node answers or is removed.
    https://kubernetes.io/docs/concepts/architecture/nodes/#node-status
    """
    status = _dict(pod, "status")
    disrupted = _disrupted(status)
    if _dict(pod, "metadata").get("deletionTimestamp"):
        reason = disrupted or ("NodeLost" if status.get("reason") == "NodeLost" else "")
        if reason:
            return f"{ENDED.get(reason, 'is being taken away')} ({reason})"
    is_ = {str(c.get("type")): c.get("status") for c in _list(status, "conditions")}
    gated = _list(_dict(pod, "spec"), "readinessGates")
    if is_.get("Ready") == "False" and is_.get("ContainersReady") == "True" and not gated:
        return f"its node `{_dict(pod, 'spec').get('nodeName')}` does not answer"
    return ""


def _disrupted(status: _Object) -> str:
    """Who took the pod away, by the condition that says so since 1.26; empty: nobody."""
    for condition in _list(status, "conditions"):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason") or "")
    return ""


def _failure(status: _Object) -> Failure:
    """Why a pod failed: what its program left, and what the cluster says of its end."""
    main = _terminated(main_container(_list(status, "containerStatuses")))
    if not main or not main.get("exitCode"):
        failed = [t for c in _list(status, "initContainerStatuses") if (t := _terminated(c)).get("exitCode")]
        main = failed[0] if failed else main
    left = _last_words(str(main.get("message") or ""))
    reason = _reason(status, main)
    message = _sentence(reason, ENDED, str(status.get("message") or "")) if reason else left.message
    code = main.get("exitCode")
    signal = _signal(main, code if isinstance(code, int) else None)
    exit_code = code if isinstance(code, int) and not signal else None
    return Failure(message, exit_code, signal, left.traceback, left.timestamp or unix_time(main.get("finishedAt")))


def _reason(status: _Object, terminated: _Object) -> str:
    """The cluster's word for the end, when it was not the program's own doing."""
    for reason in (_disrupted(status), status.get("reason"), terminated.get("reason")):
        if reason and reason not in ("Error", "Completed"):
            return str(reason)
    return ""


def _signal(terminated: _Object, code: int | None) -> str:
    # A runtime reports death by signal n as n, or as exit code 128 + n, as a shell does.
    import signal

    number = _number(terminated.get("signal")) or (code - 128 if code and 128 < code < 160 else 0)
    try:
        return signal.Signals(number).name if number else ""
    except ValueError:
        return ""


def _last_words(message: str) -> Failure:
    """What the program left: torchelastic's error file, of which 4 KiB are kept, or the end of its log."""
    text = message.strip()
    reported = parse_failure(text) if text.startswith("{") else None
    if reported is not None and reported.message != text:
        return reported
    cut = re.match(r'\{"message": \{"message": "((?:[^"\\]|\\.)*)"', text)
    if cut:
        import json

        return Failure(str(json.loads(f'"{cut[1]}"')))
    lines = [line for line in text.splitlines() if line.strip()]
    return Failure(lines[-1].strip() if lines else "", traceback=text)


def _sentence(reason: str, table: dict[str, str], message: str) -> str:
    known = table.get(reason, "")
    said = message.strip().partition("\n")[0].rpartition(" desc = ")[2]  # of an error that gRPC has wrapped
    return f"{known or 'reason'} ({reason}){f': {said}' if said else ''}"


def _digest(image_id: str) -> str:
    """`docker-pullable://repo@sha256:...`, `docker://sha256:...`, or without scheme, as a digest."""
    return image_id.rpartition("://")[2]


def main_container(containers: list[_Object]) -> _Object:
    """The container of the role: by its name, else the first, for pods of other makers."""
    named = [c for c in containers if c.get("name") == names.MAIN_CONTAINER]
    return (named or containers or [{}])[0]


def _terminated(container: _Object) -> _Object:
    return _dict(_dict(container, "state"), "terminated")


def _dict(parent: _Object, key: str) -> _Object:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _list(parent: _Object, key: str) -> list[_Object]:
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0
