"""What a cluster has of a job: the objects that own its pods, its pods, and what is said of them elsewhere."""

from __future__ import annotations

import time

from torchx.errors import NotFoundError, TorchXError
from torchx.schedulers.kubernetes.api import ApiError, path_of
from torchx.schedulers.kubernetes.kinds import APPWRAPPER, JOB, JOBSET, LABEL_QUEUE, OLD_APPWRAPPER, VOLCANO
from torchx.schedulers.kubernetes.pods import LABEL_ORGANIZATION, LABEL_UNIQUE_NAME, ORGANIZATION
from torchx.schedulers.kubernetes.status import read_owner
from torchx.specs.api import AppState, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from dataclasses import dataclass, field
    from typing import Any

    from torchx.schedulers.kubernetes.api import KubeApi

    _Object = dict[str, Any]
else:
    from torchx.util.records import dataclass, field

OWNERS = {
    JOB: "Job",
    JOBSET: "JobSet",
    VOLCANO: "VolcanoJob",
    APPWRAPPER: "AppWrapper",
    OLD_APPWRAPPER: "AppWrapperV1Beta1",
}
"""What owns the pods, of each kind of job."""

_OURS = f"{LABEL_ORGANIZATION}={ORGANIZATION}"
_FORBIDDEN = 403
_GONE = 410
_PAUSE_S = 2.0


@dataclass
class Found:
    """What the cluster has of one job.

    Attributes:
        kind: of the owners, a key of :data:`OWNERS`.
        version: of the list of owners: a watch goes on from it.
    """

    kind: str
    owners: list[_Object] = field(default_factory=list)
    pods: list[_Object] = field(default_factory=list)
    version: str = ""


def look(
    api: KubeApi, namespace: str, names: Iterable[str], choice: Iterable[str], *, pods: bool = True
) -> dict[str, Found]:
    """Jobs of one namespace by name, however many: one list for each kind of owners, and one of their pods.

    The owners are asked for first: when they say that they have ended, there will be no other pods.

    Args:
        choice: kinds to look for, the likeliest first.

    Raises:
        BackendError: the cluster does not answer, or lets us see none of the kinds.
    """
    wanted = list(names)
    query = selector(wanted)
    found: dict[str, Found] = {}
    refused: ApiError | None = None
    allowed = False
    for kind in choice:
        try:
            items, version = api.listed(path_of(OWNERS[kind], namespace), query)
        except NotFoundError:
            continue  # the cluster has no such kind
        except ApiError as e:
            if e.status != _FORBIDDEN:
                raise
            refused = refused or e  # so it says of kinds that it has not, too
            continue
        allowed = True
        for item in items:
            if not in_jobset(item):
                found.setdefault(name_of(item), Found(kind, version=version)).owners.append(item)
        if found.keys() >= set(wanted):
            break
    if refused is not None and not allowed:
        raise refused
    for pod in api.items(path_of("Pod", namespace), query) if pods else ():
        found.setdefault(name_of(pod), Found(next(iter(choice)))).pods.append(pod)
    return found


def selector(names: list[str]) -> dict[str, object]:
    """A query for what belongs to these jobs."""
    one = f"={names[0]}" if len(names) == 1 else f" in ({','.join(names)})"
    return {"labelSelector": LABEL_UNIQUE_NAME + one}


def name_of(item: _Object) -> str:
    """Which job an object belongs to."""
    metadata = item.get("metadata") or {}
    return str((metadata.get("labels") or {}).get(LABEL_UNIQUE_NAME) or metadata.get("name", ""))


def all_jobs(api: KubeApi, namespace: str | None, choice: Iterable[str]) -> Iterator[tuple[str, _Object]]:
    """Kind and object of every job of torchx, of those kinds that the cluster has, and that we may see.

    Args:
        namespace: None: all that there are, or where we may not look into all, that of kubeconfig.

    Raises:
        BackendError: the cluster does not answer, or lets us see none of the kinds.
    """
    refused: ApiError | None = None
    allowed = False
    spaces = [namespace] if namespace is not None else [None, api.namespace()]
    for kind in choice:
        for space in spaces:
            try:
                found = list(api.items(path_of(OWNERS[kind], space), {"labelSelector": _OURS}))
            except NotFoundError:
                break
            except ApiError as e:
                if e.status != _FORBIDDEN:
                    raise
                refused = e
                continue
            allowed = True
            yield from ((kind, item) for item in found if not in_jobset(item))
            break
    if refused is not None and not allowed:
        raise refused


def watch_for_the_end(api: KubeApi, namespace: str, name: str, found: Found, timeout_s: float) -> None:
    """Returns when a job ends or is removed, when nothing more is heard of it, or when the time is over.

    The watch begins at what ``found`` shows, so that nothing is missed in between.
    https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
    """
    deadline = time.monotonic() + timeout_s
    going = {i["metadata"]["name"] for i in found.owners if not _over(found.kind, i)}
    if not going:  # it has ended as far as its owners know, or has none
        time.sleep(min(_PAUSE_S, timeout_s))
        return
    watch = {
        **selector([name]),
        "watch": "true",
        "resourceVersion": found.version,
        "timeoutSeconds": int(timeout_s) + 1,
    }
    try:
        for event in api.events(path_of(OWNERS[found.kind], namespace), watch, timeout_s=timeout_s):
            item = event.get("object") or {}
            if event.get("type") == "ERROR":
                if item.get("code") == _GONE:
                    return  # the next look starts afresh
                break
            removed = event.get("type") == "DELETED"
            state = read_owner(found.kind, item).state
            if not removed and (state is None or not is_terminal(state)):
                continue
            going.discard(item["metadata"]["name"])
            if removed or state is not AppState.SUCCEEDED or not going:
                return
            if time.monotonic() > deadline:
                return
    except TorchXError:
        pass  # who waits will ask for the status, and be told
    time.sleep(max(min(deadline - time.monotonic(), _PAUSE_S), 0))


def _over(kind: str, item: _Object) -> bool:
    state = read_owner(kind, item).state
    return state is not None and is_terminal(state)


# -- what is said elsewhere ---------------------------------------------------------------------------

_NO_PODS = ("FailedCreate", "FailedCreatePod", "FailedJobCreation", "PodGroupError")
_NO_START = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "FailedPostStartHook")


def why_it_waits(api: KubeApi, namespace: str, found: Found) -> str:
    """Why a job has no pods: what its queue says, or why they could not be made. Empty when nobody says."""
    queued = [i for i in found.owners if queue_of(i)]
    try:
        said = _admission(api, namespace, queued[0]) if queued else ""
        for item in () if said else found.owners:
            message = _warning(api, namespace, item, _NO_PODS)
            if message:
                return f"its pods cannot be made: {message}"
    except ApiError as e:
        if e.status != _FORBIDDEN:
            raise
        return ""  # to see no events is no reason to tell nothing
    return said


def why_it_does_not_start(api: KubeApi, namespace: str, pod: _Object) -> str:
    """Why a pod's containers are not made: a volume or a network that it cannot get. Empty when nobody says."""
    try:
        return _warning(api, namespace, pod, _NO_START)
    except ApiError as e:
        if e.status != _FORBIDDEN:
            raise
        return ""


def _warning(api: KubeApi, namespace: str, item: _Object, reasons: tuple[str, ...]) -> str:
    query = {"fieldSelector": f"involvedObject.uid={item['metadata'].get('uid')},type=Warning"}
    for event in api.items(path_of("Event", namespace), query):
        if event.get("reason") in reasons:
            return str(event.get("message", "")).strip().partition("\n")[0]
    return ""


def _admission(api: KubeApi, namespace: str, item: _Object) -> str:
    """What Kueue says of a job that waits."""
    queue = queue_of(item)
    try:
        for workload in workloads(api, namespace, item):
            for condition in (workload.get("status") or {}).get("conditions") or ():
                if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
                    return f"it waits in the queue `{queue}`: {str(condition.get('message', '')).strip()}"
    except NotFoundError:
        return f"it waits in the queue `{queue}`, and this cluster has no Kueue"
    return ""


def workloads(api: KubeApi, namespace: str, item: _Object) -> list[_Object]:
    """Kueue's own object for a job: https://kueue.sigs.k8s.io/docs/concepts/workload/

    Raises:
        NotFoundError: the cluster has no Kueue.
    """
    query = {"labelSelector": f"kueue.x-k8s.io/job-uid={item['metadata'].get('uid')}"}
    try:
        return api.listed(path_of("Workload", namespace), query)[0]
    except NotFoundError:
        return api.listed(path_of("WorkloadV1Beta2", namespace), query)[0]


def queue_of(item: _Object) -> str:
    """The queue of Kueue that a job was given to; empty: none."""
    return str((item["metadata"].get("labels") or {}).get(LABEL_QUEUE) or "")


def in_jobset(item: _Object) -> bool:
    """Whether a Job is part of a JobSet, which speaks for it."""
    references = item.get("metadata", {}).get("ownerReferences") or ()
    return any(ref.get("kind") == "JobSet" for ref in references)
