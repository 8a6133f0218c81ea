"""Queries for jobs: the objects that own their pods, the pods, and watches for changes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchx.errors import NotFoundError, TorchXError, TransientError
from torchx.schedulers.kubernetes.api.errors import FORBIDDEN, ApiError, unless_forbidden
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.names import LABEL_UNIQUE_NAME, OWNERS, SELECTOR, Object, labels_of
from torchx.schedulers.kubernetes.owners import JobObjects, is_sweep, read_owner
from torchx.specs.api import AppState

AT_ONCE = 50
"""Jobs in one query, whose URL contains their names."""

MANY = 500
"""For this many jobs or more, all objects of torchx are listed instead of selected by name."""

_GONE = 410
_PAUSE_S = 2.0
_SILENCE_S = 600.0


def look(
    api: KubeApi, namespace: str, wanted: Iterable[str], choice: Iterable[str], *, pods: bool = True
) -> dict[str, JobObjects]:
    """Jobs of one namespace by name: one list call for each kind of owner, and one for their pods.

    Owners are listed before pods, so that the pods of an owner that has ended are complete. The kinds to look for are
    ``choice``, the most likely first. It is an error if we may list none of them.
    """
    names = set(wanted)
    query = _chosen(sorted(names))
    found: dict[str, JobObjects] = {}
    for kind, _, items, version in _owners(api, choice, [namespace], query):
        for item in items:
            if name_of(item) in names:
                found.setdefault(name_of(item), JobObjects(kind, version=version)).owners.append(item)
        if found.keys() >= names:
            break
    sweeps = [name for name, job in found.items() if any(map(is_sweep, job.owners))]
    others = sorted(names.difference(sweeps))
    items = parts_of(api, "Pod", namespace, others) if pods and others else []
    if pods and sweeps:  # the status of their Jobs has the tasks that have succeeded, which may be many
        items += api.items(path_of("Pod", namespace), {**_chosen(sweeps), "fieldSelector": "status.phase!=Succeeded"})
    for pod in items:
        if name_of(pod) in names:
            found.setdefault(name_of(pod), JobObjects(next(iter(choice)))).pods.append(pod)
    return {name: job for name, job in found.items() if job.owners or not all(map(_is_deleted, job.pods))}


def _is_deleted(pod: Object) -> bool:
    """Whether a pod has ended and is being deleted. One whose owner is gone ended because of the deletion."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended and bool(pod["metadata"].get("deletionTimestamp"))


def _owners(
    api: KubeApi, choice: Iterable[str], spaces: Sequence[str | None], query: Mapping[str, object]
) -> Iterator[tuple[str, str | None, list[Object], str]]:
    """For each kind that the cluster has: the kind, the first namespace that we may list, its objects, and the resource
    version of the list. It is an error if we may list none of the kinds.
    """
    refused: ApiError | None = None
    allowed = False
    for kind in choice:
        for space in spaces:
            try:
                items, version = api.listed(path_of(OWNERS[kind], space), query)
            except NotFoundError:
                break  # the cluster has no such kind
            except ApiError as e:
                if e.status != FORBIDDEN or isinstance(e, TransientError):
                    raise  # returning nothing would mean that the job does not exist
                refused = refused or e  # the server also forbids kinds that it does not have
                continue
            allowed = True
            # The state of a job is that of its JobSet, not of the Jobs in it.
            yield kind, space, [item for item in items if not _in_jobset(item)], version
            break
    if refused is not None and not allowed:
        raise refused


def parts_of(api: KubeApi, kind: str, namespace: str | None, names: Sequence[str]) -> list[Object]:
    """All objects of a kind that belong to these jobs, including replaced pods."""
    return api.items(path_of(kind, namespace), _chosen(names))


def _chosen(names: Sequence[str]) -> dict[str, object]:
    """Return a query that selects these jobs; if there are many, all objects of torchx."""
    return selector(names) if len(names) < MANY else {"labelSelector": SELECTOR}


def selector(names: Sequence[str]) -> dict[str, object]:
    """Return a query that selects the objects of these jobs."""
    one = f"={names[0]}" if len(names) == 1 else f" in ({','.join(names)})"
    return {"labelSelector": LABEL_UNIQUE_NAME + one}


def name_of(item: Object) -> str:
    """Name of the job that an object belongs to."""
    return str(labels_of(item).get(LABEL_UNIQUE_NAME) or (item.get("metadata") or {}).get("name", ""))


def all_jobs(api: KubeApi, namespace: str | None, choice: Iterable[str]) -> dict[str, JobObjects]:
    """All jobs of torchx that we may list, by ``<namespace>:<name>``.

    For a job that has ended, only pods that are still running are fetched. The number of calls thus depends on the jobs
    that have not ended.

    A namespace of None means all namespaces, or if we may not list those, the namespace of kubeconfig.
    """
    found: dict[str, JobObjects] = {}
    spaces: set[str | None] = set()
    anywhere = [namespace] if namespace is not None else [None, api.namespace()]
    for kind, space, items, _ in _owners(api, choice, anywhere, {"labelSelector": SELECTOR}):
        spaces.add(space)
        for item in items:
            found.setdefault(_id_of(item), JobObjects(kind)).owners.append(item)
    pods: dict[str, Object] = {}
    for space in [None] if None in spaces else sorted(filter(None, spaces)):
        for pod in _pods_of_all(api, space, found):
            pods.setdefault(str(pod["metadata"].get("uid")), pod)
    for pod in pods.values():
        if _id_of(pod) in found:
            found[_id_of(pod)].pods.append(pod)
    return found


def _pods_of_all(api: KubeApi, space: str | None, jobs: Mapping[str, JobObjects]) -> list[Object]:
    """All pods of jobs whose state depends on them, and running pods of the others; empty if we may not list pods."""
    going = [
        job_id.partition(":")[2]
        for job_id, job in jobs.items()
        if space in (None, job_id.partition(":")[0]) and job.needs_pods()
    ]
    chunks = [going[i : i + AT_ONCE] for i in range(0, len(going), AT_ONCE)]

    def ask() -> list[Object]:
        found = [pod for chunk in chunks for pod in parts_of(api, "Pod", space, chunk)]
        running = {"labelSelector": SELECTOR, "fieldSelector": "status.phase=Running"}
        return [*found, *(api.items(path_of("Pod", space), running) if jobs else ())]

    return unless_forbidden(ask, [])


def _id_of(item: Object) -> str:
    return f"{item['metadata']['namespace']}:{name_of(item)}"


def watch_for_the_end(api: KubeApi, namespace: str, name: str, found: JobObjects, timeout_s: float) -> None:
    """Watch a job until it ends, is deleted, the watch fails, or ``timeout_s`` have passed; updates ``found.owners``.

    The watch starts at the resource version of ``found``, so that no event is missed.
    https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
    """
    deadline = time.monotonic() + timeout_s
    going = {item["metadata"]["name"] for item in found.going()}
    if not going:  # all owners have ended, or there are none
        time.sleep(min(_PAUSE_S, timeout_s))
        return
    path, query = path_of(OWNERS[found.kind], namespace), {**selector([name]), "timeoutSeconds": int(timeout_s) + 1}
    try:
        for what, item in api.events(path, query, found.version, timeout_s=timeout_s):
            if what == "ERROR":
                if item.get("code") == _GONE:
                    return  # the next call lists the owners again
                break
            removed = what == "DELETED"
            if item.get("status"):  # its TTL may delete it before it is read again
                same = item["metadata"]["name"]
                found.owners = [item if i["metadata"]["name"] == same else i for i in found.owners]
            owner = read_owner(found.kind, item)
            if not removed and not owner.over:
                continue
            going.discard(item["metadata"]["name"])
            if removed or owner.state is not AppState.SUCCEEDED or not going or found.in_order():
                return
            if time.monotonic() > deadline:
                return
    except TorchXError:
        pass  # the caller polls the status next, which raises the error if it persists
    time.sleep(max(min(deadline - time.monotonic(), _PAUSE_S), 0))


def changes(api: KubeApi, kind: str, namespace: str) -> Iterator[str]:
    """App ids of torchx jobs, each when an object of a kind changes from now on, until the server ends the watch.

    Bookmarks show that the connection is alive:
    https://kubernetes.io/docs/reference/using-api/api-concepts/#watch-bookmarks
    """
    path, query = path_of("Pod" if kind == "Pod" else OWNERS[kind], namespace), {"labelSelector": SELECTOR}
    page = api.get(path, {**query, "limit": 1})  # a server with an old etcd ends a watch without a version at once
    version = str(page.get("metadata", {}).get("resourceVersion") or "")
    for what, item in api.events(path, query, version, timeout_s=_SILENCE_S):
        if what not in ("BOOKMARK", "ERROR"):
            yield _id_of(item)


def _in_jobset(item: Object) -> bool:
    references = item.get("metadata", {}).get("ownerReferences") or ()
    return any(ref.get("kind") == "JobSet" for ref in references)
