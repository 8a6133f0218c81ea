"""Why a job waits or ended, from its queue, its pod group, and the events of its owners."""

from __future__ import annotations

from collections.abc import Iterator

from torchx.errors import NotFoundError
from torchx.schedulers.kubernetes.api.errors import unless_forbidden
from torchx.schedulers.kubernetes.client import WORKLOADS, KubeApi, path_of
from torchx.schedulers.kubernetes.names import JOBSET, KUBEFLOW, LABEL_QUEUE, VOLCANO, Object, labels_of
from torchx.schedulers.kubernetes.owners import JobObjects
from torchx.schedulers.kubernetes.pods.admission import why_it_waits
from torchx.schedulers.kubernetes.reasons import NO_PODS, NO_START, TAKEN_AWAY, WHY_FAILED, why_failed
from torchx.specs.api import AppState

_UNSCHEDULABLE = "Unschedulable"
"""Condition of a pod group of Volcano, and reason of its events."""


def why_pods_are_missing(api: KubeApi, namespace: str, found: JobObjects, queued: list[Object] | None) -> str:
    """Why a job lacks pods, from its queue or from events; empty if unknown. ``queued``: see :func:`queued_as`."""
    return unless_forbidden(lambda: next(filter(None, _reasons(api, namespace, found, queued)), ""), "")


def why_it_does_not_start(api: KubeApi, namespace: str, pod: Object) -> str:
    """Why a pod's containers are not created, such as a missing volume; empty if unknown."""
    of = f"involvedObject.uid={pod['metadata'].get('uid')}"
    return unless_forbidden(lambda: _warning(api, namespace, of, NO_START), "")


def last_probe(api: KubeApi, namespace: str, pod: str) -> str:
    """Return what the last startup probe of a pod saw; empty if unknown."""
    of = f"involvedObject.kind=Pod,involvedObject.name={pod},reason=Unhealthy"
    said: list[str] = unless_forbidden(lambda: _messages(api, namespace, of), [])
    return next((text.removeprefix("Startup probe failed:").strip() for text in said), "")


def how_it_ended(api: KubeApi, namespace: str, job: str) -> AppState | None:
    """Return the final state of a deleted Job, from the last event with it; None if unknown."""
    found = None
    of = f"involvedObject.kind=Job,involvedObject.name={job}"
    for event, _ in unless_forbidden(lambda: _events(api, namespace, of), []):
        reason = event.get("reason")
        found = AppState.FAILED if reason in WHY_FAILED else AppState.SUCCEEDED if reason == "Completed" else found
    return found


def why_jobs_failed(api: KubeApi, namespace: str, found: JobObjects) -> str:
    """Why a Job of a job failed, from its event: if its pods are gone, nothing else says so. Empty if unknown."""
    names = tuple(f"{item['metadata']['name']}-" for item in found.owners)
    of = f"involvedObject.kind=Job,involvedObject.namespace={namespace},type=Warning"
    for event, name in unless_forbidden(lambda: _events(api, namespace, of), []):
        if event.get("reason") in WHY_FAILED and name.startswith(names):
            return why_failed(str(event["reason"]), str(event.get("message") or ""))[1]
    return ""


def _reasons(api: KubeApi, namespace: str, found: JobObjects, queued: list[Object] | None) -> Iterator[str]:
    queue = next(filter(None, map(queue_of, found.owners)), "")
    yield from (why_it_waits(workload, queue) for workload in queued or ())
    if queue and queued is None:
        yield f"it waits in the queue `{queue}`, and this cluster has no Kueue"
    for item in found.owners:
        metadata = item["metadata"]
        if found.kind == VOLCANO:
            yield _of_volcano(api, namespace, item)
        said = _warning(api, namespace, f"involvedObject.uid={metadata.get('uid')}", NO_PODS)
        if not said and found.kind in (JOBSET, KUBEFLOW):  # the events of the Jobs that it has created
            of_jobs = f"involvedObject.kind=Job,involvedObject.namespace={namespace}"
            said = _warning(api, namespace, of_jobs, NO_PODS, prefix=f"{metadata['name']}-")
        yield f"its pods cannot be created: {said}" if said else ""
    begun = [item["metadata"]["name"] for item in found.owners if (item.get("status") or {}).get("startTime")]
    if begun:
        yield _taken_away(api, namespace, begun, {pod["metadata"]["name"] for pod in found.pods})


def _taken_away(api: KubeApi, namespace: str, jobs: list[str], there: set[str]) -> str:
    """Why pods were deleted that will be replaced."""
    for reason, said in TAKEN_AWAY.items():
        for _, name in _events(api, namespace, f"involvedObject.kind=Pod,reason={reason}"):
            if name not in there and name.startswith(tuple(f"{job}-" for job in jobs)):
                return said
    return ""


def _warning(api: KubeApi, namespace: str, of: str, reasons: tuple[str, ...], *, prefix: str = "") -> str:
    """Return the first message with one of these reasons,
    of the events selected by ``of`` on objects named ``prefix...``.
    """
    for event, name in _events(api, namespace, f"{of},type=Warning"):
        if event.get("reason") in reasons and name.startswith(prefix):
            return str(event.get("message", "")).strip().partition("\n")[0]
    return ""


def _events(api: KubeApi, namespace: str, of: str) -> list[tuple[Object, str]]:
    """Return the events that match a field selector, each with the name of the object that it is about."""
    found = api.items(path_of("Event", namespace), {"fieldSelector": of})
    return [(event, str((event.get("involvedObject") or {}).get("name") or "")) for event in found]


def _messages(api: KubeApi, namespace: str, of: str) -> list[str]:
    """Return the first lines of the messages of events, newest first."""
    found = sorted(_events(api, namespace, of), key=lambda pair: str(pair[0].get("lastTimestamp") or ""), reverse=True)
    return [str(event.get("message") or "").strip().partition("\n")[0] for event, _ in found]


def _of_volcano(api: KubeApi, namespace: str, item: Object) -> str:
    """Why a Volcano job waits: https://volcano.sh/en/docs/podgroup/"""
    metadata = item["metadata"]
    if ((item.get("status") or {}).get("state") or {}).get("phase") != "Pending":
        return ""
    name = f"{metadata['name']}-{metadata.get('uid')}"
    try:
        group = api.get(path_of("PodGroup", namespace, name))
    except NotFoundError:
        group = {}
    said = [
        str(condition.get("message") or "").strip()
        for condition in (group.get("status") or {}).get("conditions") or ()
        if condition.get("type") == _UNSCHEDULABLE and condition.get("status") == "True"
    ]
    of = f"involvedObject.kind=PodGroup,involvedObject.name={name},reason={_UNSCHEDULABLE}"
    for one in (*said, *_messages(api, namespace, of)):
        if one:
            return f"its pod group cannot be scheduled: {one}"
    queue = str((item.get("spec") or {}).get("queue") or "")
    try:
        if queue:  # queues are not namespaced
            unless_forbidden(lambda: api.get(path_of("Queue", None, queue)), {})
    except NotFoundError as e:
        if f'"{queue}"' in str(e):  # otherwise the kind does not exist
            return f"its queue `{queue}` does not exist"
    return ""


def queued_as(api: KubeApi, namespace: str, found: JobObjects) -> list[Object] | None:
    """Return Kueue's objects for a job, if it has a queue and we may list them; None if the cluster has no Kueue."""
    items = [item for item in found.owners if queue_of(item)]
    try:
        return unless_forbidden(lambda: workloads(api, namespace, *items), []) if items else []
    except NotFoundError:
        return None


def workloads(api: KubeApi, namespace: str, *items: Object) -> list[Object]:
    """Kueue's objects for a job (https://kueue.sigs.k8s.io/docs/concepts/workload/); NotFoundError without Kueue."""
    uids = ",".join(str(item["metadata"].get("uid")) for item in items)
    query = {"labelSelector": f"kueue.x-k8s.io/job-uid in ({uids})"}
    return api.of_any(WORKLOADS, lambda kind: api.items(path_of(kind, namespace), query))


def queue_of(item: Object) -> str:
    """Return the Kueue queue of a job; empty if none."""
    return str(labels_of(item).get(LABEL_QUEUE) or "")
