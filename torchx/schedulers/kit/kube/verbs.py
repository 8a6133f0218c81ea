"""What is done to a job on a cluster: it is made, looked for, cancelled, as several calls that belong together."""

from __future__ import annotations

import time

from torchx.errors import BackendError, NotFoundError, TorchXError, TransientError
from torchx.schedulers.kit.kube.api import ApiError, kind_of, path_of
from torchx.schedulers.kit.kube.kinds import APPWRAPPER, JOB, JOBSET, LABEL_QUEUE, OLD_APPWRAPPER, VOLCANO
from torchx.schedulers.kit.kube.pods import LABEL_ORGANIZATION, ORGANIZATION
from torchx.schedulers.kit.kube.status import ANNOTATION_CANCELLED, read_owner
from torchx.specs.api import AppState, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from torchx.schedulers.kit.kube.api import KubeApi

    _Object = dict[str, Any]

OWNERS = {
    JOB: "Job",
    JOBSET: "JobSet",
    VOLCANO: "VolcanoJob",
    APPWRAPPER: "AppWrapper",
    OLD_APPWRAPPER: "AppWrapperV1Beta1",
}
"""What owns the pods, of each kind of job."""

_OURS = f"{LABEL_ORGANIZATION}={ORGANIZATION}"


def create_all(api: KubeApi, objects: list[_Object]) -> None:
    """Makes all objects, the first of which becomes the owner of the others: whoever removes it removes them.

    Raises:
        BackendError: one was refused. Those made before it have been removed, or the message names what was left.
    """
    owner, *others = objects
    try:
        made = api.create(owner)
    except TransientError as e:  # it may be there all the same
        _undo(api, owner, e)
        raise
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": made["metadata"]["uid"],
    }
    try:
        for item in others:
            api.create({**item, "metadata": {**item["metadata"], "ownerReferences": [reference]}})
    except TorchXError as e:
        _undo(api, owner, e)
        raise


def _undo(api: KubeApi, owner: _Object, why: TorchXError) -> None:
    """Removes what a submission that failed has made; what may be left is named."""
    kind, name, namespace = owner["kind"], owner["metadata"]["name"], owner["metadata"]["namespace"]
    try:
        api.delete(path_of(kind_of(owner), namespace, name))
    except TorchXError as e:
        said = f"{why}; and what may have been made could not be removed: {e}"
        raise BackendError(said, hint=f"kubectl delete -n {namespace} {kind} {name}") from why


def owners_of(
    api: KubeApi, namespace: str, query: Mapping[str, object], found: list[_Object], choice: tuple[str, ...]
) -> tuple[str, Any]:
    """Kind and objects that own the pods of a job.

    Args:
        query: with the label selector of the job.
        found: its pods; they may say what made them. If not, it is the first kind that there is any of.
        choice: kinds to look for.
    """
    order = choice
    if found and JOBSET in choice:
        if "jobset.sigs.k8s.io/jobset-name" in (found[0]["metadata"].get("labels") or {}):
            order = (JOBSET,)
        elif any(str(ref.get("apiVersion")).startswith("batch.volcano.sh") for ref in owner_refs(found[0])):
            order = (VOLCANO,)
    for kind in order:
        try:
            items = [i for i in api.items(path_of(OWNERS[kind], namespace), query) if not in_jobset(i)]
        except NotFoundError:
            continue  # the cluster has no such kind
        if items:
            return kind, items
    return order[0], []


def all_jobs(api: KubeApi, namespace: str | None, choice: tuple[str, ...]) -> Iterator[tuple[str, _Object]]:
    """Kind and object of every job of torchx, of those kinds that the cluster has.

    Args:
        namespace: None: all that there are, or where we may not look into all, ``default``.
    """
    for kind in choice:
        plural = OWNERS[kind]
        try:
            try:
                found = list(api.items(path_of(plural, namespace), {"labelSelector": _OURS}))
            except ApiError as e:
                if e.status != 403 or namespace is not None:
                    raise
                found = list(api.items(path_of(plural, "default"), {"labelSelector": _OURS}))
        except NotFoundError:
            continue
        yield from ((kind, item) for item in found if not in_jobset(item))


def counted(item: _Object) -> AppState:
    """The state of a Job or JobSet that has not ended, by its own count of pods: good enough for a list."""
    status = item.get("status") or {}
    return AppState.RUNNING if status.get("active") or status.get("ready") else AppState.PENDING


def cancel(api: KubeApi, kind: str, owners: list[_Object]) -> None:
    """Ends a job and keeps what can be looked at: its objects, and the pods that had ended.

    A Job is suspended, and one of a cluster before 1.22 is given no pods any more; a Volcano job is aborted.
    """
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for item in owners:
        metadata = item["metadata"]
        state = read_owner(kind, item).state
        if state is not None and is_terminal(state):
            continue
        path = path_of(OWNERS[kind], metadata["namespace"], metadata["name"])
        if kind == VOLCANO:
            api.create(_abort_command(item))
            continue
        if kind == OLD_APPWRAPPER:
            api.delete(path)  # it cannot be held
            continue
        mark = {"metadata": {"annotations": {ANNOTATION_CANCELLED: now}}}
        done = api.patch(path, {**mark, "spec": {"suspend": True}})
        if not (done.get("spec") or {}).get("suspend"):
            api.patch(path, {"spec": {"parallelism": 0}})


def delete(api: KubeApi, kind: str, owners: list[_Object], name: str) -> None:
    """Removes a job and all that belongs to it.

    Args:
        name: of the job.
    """
    for item in owners:
        metadata = item["metadata"]
        api.delete(path_of(OWNERS[kind], metadata["namespace"], metadata["name"]))
    if kind == JOB and owners:
        api.delete(path_of("Service", owners[0]["metadata"]["namespace"], name))


def _abort_command(item: _Object) -> _Object:
    """How Volcano is told to abort a job: https://volcano.sh/en/docs/vcjob/"""
    metadata = item["metadata"]
    reference = {
        "apiVersion": item["apiVersion"],
        "kind": "Job",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {
            "name": f"{metadata['name']}-abort",
            "namespace": metadata["namespace"],
            "ownerReferences": [reference],
            "annotations": {ANNOTATION_CANCELLED: metadata["uid"]},
        },
        "target": reference,
        "action": "AbortJob",
    }


def why_no_pods(api: KubeApi, namespace: str, owners: list[_Object]) -> str:
    """Why a job has no pods: what its queue says, or why they could not be made. Empty when nobody says."""
    queued = [i for i in owners if (i["metadata"].get("labels") or {}).get(LABEL_QUEUE)]
    if queued:
        said = _admission(api, namespace, queued[0])
        if said:
            return said
    for item in owners:
        query = {"fieldSelector": f"involvedObject.uid={item['metadata'].get('uid')},type=Warning"}
        for event in api.items(path_of("Event", namespace), query):
            if event.get("reason") in ("FailedCreate", "FailedCreatePod", "FailedJobCreation", "PodGroupError"):
                return f"its pods cannot be made: {str(event.get('message', '')).strip()}"
    return ""


def _admission(api: KubeApi, namespace: str, item: _Object) -> str:
    """What Kueue says of a job that waits: https://kueue.sigs.k8s.io/docs/concepts/workload/"""
    query = {"labelSelector": f"kueue.x-k8s.io/job-uid={item['metadata'].get('uid')}"}
    queue = item["metadata"]["labels"][LABEL_QUEUE]
    try:
        for workload in api.items(path_of("Workload", namespace), query):
            for condition in (workload.get("status") or {}).get("conditions") or ():
                if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
                    return f"it waits in the queue `{queue}`: {str(condition.get('message', '')).strip()}"
    except NotFoundError:
        return f"it waits in the queue `{queue}`, and this cluster has no Kueue"
    return ""


def owner_refs(item: _Object) -> list[_Object]:
    """Who owns an object."""
    return list(item.get("metadata", {}).get("ownerReferences") or ())


def in_jobset(item: _Object) -> bool:
    """Whether a Job is part of a JobSet, which speaks for it."""
    return any(ref.get("kind") == "JobSet" for ref in owner_refs(item))
