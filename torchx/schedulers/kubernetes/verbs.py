"""What is done to a job on a cluster: it is made, cancelled, removed, as several calls that belong together."""

from __future__ import annotations

import time

from torchx.errors import BackendError, NotFoundError, TorchXError, TransientError
from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.answers import Found, is_suspended
from torchx.schedulers.kubernetes.client import KubeApi, kind_of, path_of
from torchx.schedulers.kubernetes.events import queue_of, workloads
from torchx.schedulers.kubernetes.names import JOB, OWNERS, PYTORCH, VOLCANO, Object

_QUEUED_S = 4
"""Seconds within which Kueue has seen a new job."""


def create_all(api: KubeApi, objects: list[Object], *, mutual: bool = False) -> None:
    """Makes all objects, the first of which becomes the owner of the others: whoever removes it removes them.

    Args:
        mutual: the others own the first, too: it goes when the last of them has gone, as a TTL makes them go.

    Raises:
        BackendError: one was refused. Those made before it have been removed, or the message names what was left.
    """
    owner, *others = objects
    try:
        made = api.create(owner)
    except TransientError as e:  # it may be there all the same
        _undo(api, owner, e)
        raise
    references = []
    try:
        for item in others:
            child = {**item, "metadata": {**item["metadata"], "ownerReferences": [_reference(owner, made)]}}
            reference = _reference(item, api.create(child))
            if item["kind"] not in ("Secret", "ConfigMap"):  # they never go by themselves
                references.append(reference)
        if mutual and references:
            metadata = owner["metadata"]
            path = path_of(kind_of(owner), metadata["namespace"], metadata["name"])
            api.patch(path, {"metadata": {"ownerReferences": references}})
    except TorchXError as e:
        _undo(api, owner, e)
        raise


def _reference(item: Object, made: Object) -> Object:
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "uid": made["metadata"]["uid"],
    }


def _undo(api: KubeApi, owner: Object, why: TorchXError) -> None:
    """Removes what a submission that failed has made; what may be left is named."""
    kind, name, namespace = owner["kind"], owner["metadata"]["name"], owner["metadata"]["namespace"]
    try:
        api.delete(path_of(kind_of(owner), namespace, name))
    except TorchXError as e:
        said = f"{why}; and what may have been made could not be removed: {e}"
        raise BackendError(said, hint=f"kubectl delete -n {namespace} {kind} {name}") from why


def cancel(api: KubeApi, found: Found) -> None:
    """Ends a job and keeps what can be looked at: its objects, and the pods that had ended.

    A Job is suspended, and one of a cluster before 1.22 is given no pods any more; a Volcano job is aborted. Kueue
    would start a suspended job again: it is taken out of its queue first.

    Raises:
        BackendError: a part of it was refused; the others are done all the same.
    """
    refused = None
    for item in found.going():
        try:
            _cancel(api, found.kind, item)
        except TorchXError as e:
            refused = refused or e
    if refused is not None:
        raise refused


def _cancel(api: KubeApi, kind: str, item: Object) -> None:
    metadata = item["metadata"]
    path = path_of(OWNERS[kind], metadata["namespace"], metadata["name"])
    if kind == VOLCANO:
        api.patch(path, mark(names.ANNOTATION_CANCELLED))  # its phase would be the same where a pod had failed
        api.create(_abort_command(item))
    elif kind == names.OLD_APPWRAPPER:
        api.delete(path)  # it cannot be held
    elif queue_of(item) and _leave_queue(api, item):
        api.patch(path, mark(names.ANNOTATION_CANCELLED))
    else:
        _suspend(api, kind, path, names.ANNOTATION_CANCELLED)


def stop_the_others(api: KubeApi, found: Found) -> None:
    """Ends the Jobs of a job of which another has failed: plain Jobs know nothing of one another.

    Whoever waits for the job does it; nothing is said where the rights are missing.
    """
    if found.kind != JOB or not found.failed:
        return
    for item in found.going():
        metadata = item["metadata"]
        try:
            _suspend(api, JOB, path_of(OWNERS[JOB], metadata["namespace"], metadata["name"]), names.ANNOTATION_STOPPED)
        except TorchXError:
            return


def _suspend(api: KubeApi, kind: str, path: str, annotation: str) -> None:
    held: Object = {"suspend": True}
    done = api.patch(path, {**mark(annotation), "spec": {"runPolicy": held} if kind == PYTORCH else held})
    if is_suspended(done.get("spec") or {}):
        return
    if kind == PYTORCH:
        raise BackendError(
            "the cluster's Training Operator cannot suspend a job; this needs 1.7", hint="torchx delete --force JOB"
        )
    api.patch(path, {"spec": {"parallelism": 0}})


def mark(annotation: str) -> Object:
    """A patch that notes the time on an object."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"metadata": {"annotations": {annotation: now}}}


def _leave_queue(api: KubeApi, item: Object) -> bool:
    """Takes a job out of Kueue's queue, which suspends it for good; False where there is no Kueue that cares for it.

    Raises:
        BackendError: the rights to do it are missing, say.
    """
    namespace = item["metadata"]["namespace"]
    found: list[Object] = []
    for attempt in range(_QUEUED_S):  # a new job may be unknown to Kueue still, which would start it
        if attempt:
            api.sleep(1.0)
        try:
            found = workloads(api, namespace, item)
        except NotFoundError:
            return False
        if found:
            break
    for workload in found:
        kind = "Workload" if str(workload.get("apiVersion", "")).endswith("v1beta1") else "WorkloadV1Beta2"
        api.patch(path_of(kind, namespace, workload["metadata"]["name"]), {"spec": {"active": False}})
    return bool(found)


def delete(api: KubeApi, found: Found, namespace: str, name: str) -> None:
    """Removes a job and all that belongs to it."""
    for item in found.owners:
        api.delete(path_of(OWNERS[found.kind], namespace, item["metadata"]["name"]))
    if found.kind == JOB:
        api.delete(path_of("Service", namespace, name))


def _abort_command(item: Object) -> Object:
    """The request to Volcano to abort a job: https://volcano.sh/en/docs/vcjob/"""
    metadata = item["metadata"]
    reference = {**_reference(item, item), "controller": True}
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {
            "name": f"{metadata['name']}-abort",
            "namespace": metadata["namespace"],
            "ownerReferences": [reference],
            "annotations": {names.ANNOTATION_CANCELLED: metadata["uid"]},
        },
        "target": reference,
        "action": "AbortJob",
    }
