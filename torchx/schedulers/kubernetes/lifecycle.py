"""Creates, cancels and deletes jobs, each as a sequence of API calls."""

from __future__ import annotations

import time

from torchx.errors import BackendError, NotFoundError, TorchXError, TransientError
from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.client import KubeApi, kind_of, path_of, path_to
from torchx.schedulers.kubernetes.names import JOB, OWNERS, PYTORCH, VOLCANO, Object
from torchx.schedulers.kubernetes.owners import JobObjects, is_suspended
from torchx.schedulers.kubernetes.pods.events import queue_of, workloads

_QUEUED_S = 4
"""Seconds after which Kueue must have seen a new job."""


def create_all(api: KubeApi, objects: list[Object], *, mutual: bool = False) -> None:
    """Create all objects. The first one becomes the owner of the others, which are deleted with it.

    With ``mutual``, the others also own the first one, so that it is deleted with the last of them, such as by a TTL.
    BackendError if the server rejects an object: the others have been deleted, or the hint says how to delete them.
    """
    owner, *others = objects
    try:
        made = api.create(owner)
    except (TransientError, KeyboardInterrupt) as e:  # it may exist nevertheless
        _undo(api, owner, e)
        raise
    references = []
    try:
        for item in others:
            child = {**item, "metadata": {**item["metadata"], "ownerReferences": [_reference(owner, made)]}}
            reference = _reference(item, api.create(child))
            if item["kind"] not in ("Secret", "ConfigMap", "PodGroup", "Service"):  # no TTL deletes them
                references.append(reference)
        if mutual and references:
            api.patch(path_to(kind_of(owner), owner), {"metadata": {"ownerReferences": references}})
    except (TorchXError, KeyboardInterrupt) as e:
        _undo(api, owner, e)
        raise


def _reference(item: Object, made: Object) -> Object:
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "uid": made["metadata"]["uid"],
    }


def _undo(api: KubeApi, owner: Object, why: BaseException) -> None:
    """Delete the objects of a failed submission."""
    try:
        api.delete(path_to(kind_of(owner), owner))
    except TorchXError as e:
        name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
        raise BackendError(
            f"{str(why) or 'interrupted'}; and objects that may have been created could not be deleted: {e}",
            hint=f"kubectl delete -n {namespace} {owner['kind']} {name}",
        ) from why


def cancel(api: KubeApi, found: JobObjects) -> None:
    """End a job and keep its objects and the pods that have ended.

    A Job is suspended, or before Kubernetes 1.22, its parallelism is set to 0; a Volcano job is aborted. A job in a
    queue of Kueue is removed from the queue first, because Kueue would resume it. If the server rejects a call, the
    others are made nevertheless.
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
    path = path_to(OWNERS[kind], item)
    if kind == VOLCANO:
        api.patch(path, mark(names.ANNOTATION_CANCELLED))  # after a failed pod, its phase would be the same
        api.create(_abort_command(item))
    elif kind == names.OLD_APPWRAPPER:
        api.delete(path)  # it cannot be suspended
    elif queue_of(item) and _leave_queue(api, item):
        api.patch(path, mark(names.ANNOTATION_CANCELLED))
    else:
        _suspend(api, kind, path, names.ANNOTATION_CANCELLED)


def stop_the_others(api: KubeApi, found: JobObjects) -> None:
    """Suspend the remaining Jobs of a job of which one has failed, because plain Jobs are independent of one another.

    Processes that wait for the job call this. Errors, such as missing rights, are ignored.
    """
    if found.kind == JOB and found.failed:
        stop(api, found)


def stop(api: KubeApi, found: JobObjects) -> None:
    """End what is left of a job, which no user has cancelled. Errors are ignored: the next process tries again."""
    for item in found.going():
        try:
            if found.kind == VOLCANO:
                api.create(_abort_command(item))
            else:
                _suspend(api, found.kind, path_to(OWNERS[found.kind], item), names.ANNOTATION_STOPPED)
        except TorchXError:
            return


def _suspend(api: KubeApi, kind: str, path: str, annotation: str) -> None:
    suspend: Object = {"suspend": True}
    patched = api.patch(path, {**mark(annotation), "spec": {"runPolicy": suspend} if kind == PYTORCH else suspend})
    if is_suspended(patched.get("spec") or {}):
        return
    if kind == PYTORCH:
        raise BackendError(
            "the cluster's Training Operator cannot suspend a job; this needs 1.7", hint="torchx delete --force JOB"
        )
    api.patch(path, {"spec": {"parallelism": 0}})


def mark(annotation: str) -> Object:
    """Return a patch that sets an annotation to the current time."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"metadata": {"annotations": {annotation: now}}}


def _leave_queue(api: KubeApi, item: Object) -> bool:
    """Remove a job from Kueue's queue, which suspends it for good. Returns False if Kueue does not manage the job."""
    namespace = item["metadata"]["namespace"]
    found: list[Object] = []
    for attempt in range(_QUEUED_S):  # Kueue may not have seen a new job yet, and would start it
        if attempt:
            api.sleep(1.0)
        try:
            found = workloads(api, namespace, item)
        except NotFoundError:
            return False
        if found:
            break
    for workload in found:
        kind = "WorkloadV1Beta1" if str(workload.get("apiVersion", "")).endswith("v1beta1") else "Workload"
        api.patch(path_of(kind, namespace, workload["metadata"]["name"]), {"spec": {"active": False}})
    return bool(found)


def delete(api: KubeApi, found: JobObjects, namespace: str, name: str) -> None:
    """Delete all objects of a job."""
    for item in found.owners:
        api.delete(path_to(OWNERS[found.kind], item))
    if found.kind == JOB:
        api.delete(path_of("Service", namespace, name))


def _abort_command(item: Object) -> Object:
    """Return the request to Volcano to abort a job: https://volcano.sh/en/docs/vcjob/"""
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
