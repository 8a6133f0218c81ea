"""What a cluster is asked of jobs: for the objects that own their pods, for the pods, for news of their end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchx.errors import NotFoundError, TorchXError, TransientError
from torchx.schedulers.kubernetes.answers import Found, is_elastic, read_owner
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.names import (
    ANNOTATION_SWEEP,
    LABEL_ORGANIZATION,
    LABEL_UNIQUE_NAME,
    ORGANIZATION,
    OWNERS,
    Object,
    annotations_of,
    labels_of,
)
from torchx.schedulers.kubernetes.refusals import FORBIDDEN, ApiError, unless_forbidden
from torchx.specs.api import AppState

AT_ONCE = 50
"""Jobs of one question: their names are part of its address."""

MANY = 500
"""From this many on, jobs are asked for by a list of all that are torchx's."""

_OURS = f"{LABEL_ORGANIZATION}={ORGANIZATION}"
_GONE = 410
_PAUSE_S = 2.0
_SILENCE_S = 600.0


def look(
    api: KubeApi, namespace: str, wanted: Iterable[str], choice: Iterable[str], *, pods: bool = True
) -> dict[str, Found]:
    """Jobs of one namespace by name, however many: one list for each kind of owners, and one of their pods.

    The owners are asked for first: when they say that they have ended, there will be no other pods.

    Args:
        choice: kinds to look for, the likeliest first.

    Raises:
        BackendError: the cluster does not answer, or lets us see none of the kinds.
    """
    names = set(wanted)
    query = _chosen(sorted(names))
    found: dict[str, Found] = {}
    for kind, _, items, version in _owners(api, choice, [namespace], query):
        for item in items:
            if name_of(item) in names:
                found.setdefault(name_of(item), Found(kind, version=version)).owners.append(item)
        if found.keys() >= names:
            break
    sweeps = [name for name, job in found.items() if any(map(is_sweep, job.owners))]
    others = sorted(names.difference(sweeps))
    items = parts_of(api, "Pod", namespace, others) if pods and others else []
    if pods and sweeps:  # their Jobs know those that have succeeded, however many
        items += api.items(path_of("Pod", namespace), {**_chosen(sweeps), "fieldSelector": "status.phase!=Succeeded"})
    for pod in items:
        if name_of(pod) in names:
            found.setdefault(name_of(pod), Found(next(iter(choice)))).pods.append(pod)
    return {name: job for name, job in found.items() if job.owners or not all(map(_goes, job.pods))}


def is_sweep(owner: Object) -> bool:
    """Whether a Job runs the tasks of a sweep."""
    return ANNOTATION_SWEEP in annotations_of(owner)


def _goes(pod: Object) -> bool:
    """Whether a pod has ended because it is being removed: one whose owner is gone did not fail by itself."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended and bool(pod["metadata"].get("deletionTimestamp"))


def _owners(
    api: KubeApi, choice: Iterable[str], spaces: Sequence[str | None], query: Mapping[str, object]
) -> Iterator[tuple[str, str | None, list[Object], str]]:
    """Of each kind that the cluster has: its name, the first namespace that we may look into, the objects there, and
    the version of their list.

    Raises:
        BackendError: the cluster does not answer, or lets us see none of the kinds.
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
                    raise  # an empty answer would be taken for one: there is no such job
                refused = refused or e  # so it says of kinds that it has not, too
                continue
            allowed = True
            # A Job that is part of a JobSet does not speak for itself.
            yield kind, space, [item for item in items if not _in_jobset(item)], version
            break
    if refused is not None and not allowed:
        raise refused


def parts_of(api: KubeApi, kind: str, namespace: str | None, names: Sequence[str]) -> list[Object]:
    """All objects of a kind that belong to these jobs; of pods, those that were replaced, too."""
    return list(api.items(path_of(kind, namespace), _chosen(names)))


def _chosen(names: Sequence[str]) -> dict[str, object]:
    """A query that these jobs answer; where they are very many others of torchx do, too."""
    return selector(names) if len(names) < MANY else {"labelSelector": _OURS}


def selector(names: Sequence[str]) -> dict[str, object]:
    """A query for what belongs to these jobs."""
    one = f"={names[0]}" if len(names) == 1 else f" in ({','.join(names)})"
    return {"labelSelector": LABEL_UNIQUE_NAME + one}


def name_of(item: Object) -> str:
    """Which job an object belongs to."""
    return str(labels_of(item).get(LABEL_UNIQUE_NAME) or (item.get("metadata") or {}).get("name", ""))


def all_jobs(api: KubeApi, namespace: str | None, choice: Iterable[str]) -> dict[str, Found]:
    """Every job of torchx, by ``<namespace>:<name>``, of those kinds that the cluster has, and that we may see.

    Of a job that has ended, only the pods that still run are asked for: a list of all jobs, of which few go on, is a
    few calls.

    Args:
        namespace: None: all that there are, or where we may not look into all, that of kubeconfig.

    Raises:
        BackendError: the cluster does not answer, or lets us see none of the kinds.
    """
    found: dict[str, Found] = {}
    spaces: set[str | None] = set()
    anywhere = [namespace] if namespace is not None else [None, api.namespace()]
    for kind, space, items, _ in _owners(api, choice, anywhere, {"labelSelector": _OURS}):
        spaces.add(space)
        for item in items:
            found.setdefault(_id_of(item), Found(kind)).owners.append(item)
    pods: dict[str, Object] = {}
    for space in [None] if None in spaces else sorted(filter(None, spaces)):
        for pod in _pods_of_all(api, space, found):
            pods.setdefault(str(pod["metadata"].get("uid")), pod)
    for pod in pods.values():
        if _id_of(pod) in found:
            found[_id_of(pod)].pods.append(pod)
    return found


def _pods_of_all(api: KubeApi, space: str | None, jobs: Mapping[str, Found]) -> list[Object]:
    """All pods of jobs that go on, or whose end depends on how many failed, and of the others those that run.

    None where we may not see any.
    """
    going = [
        job_id.partition(":")[2]
        for job_id, job in jobs.items()
        if space in (None, job_id.partition(":")[0]) and (is_elastic(job.owners) or job.going())
    ]
    chunks = [going[i : i + AT_ONCE] for i in range(0, len(going), AT_ONCE)]

    def ask() -> list[Object]:
        found = [pod for chunk in chunks for pod in parts_of(api, "Pod", space, chunk)]
        running = {"labelSelector": _OURS, "fieldSelector": "status.phase=Running"}
        return [*found, *(api.items(path_of("Pod", space), running) if jobs else ())]

    return unless_forbidden(ask, [])


def _id_of(item: Object) -> str:
    return f"{item['metadata']['namespace']}:{name_of(item)}"


def watch_for_the_end(api: KubeApi, namespace: str, name: str, found: Found, timeout_s: float) -> None:
    """Returns when a job ends or is removed, when nothing more is heard of it, or when the time is over.

    ``found`` then has what was heard of its owners last.

    The watch begins at what ``found`` shows, so that nothing is missed in between.
    https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
    """
    deadline = time.monotonic() + timeout_s
    going = {item["metadata"]["name"] for item in found.going()}
    if not going:  # it has ended as far as its owners know, or has none
        time.sleep(min(_PAUSE_S, timeout_s))
        return
    watch = {
        **selector([name]),
        "watch": "true",
        "allowWatchBookmarks": "true",
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
            if item.get("status"):  # a TTL may take it before anybody asks again
                same = item["metadata"]["name"]
                found.owners = [item if i["metadata"]["name"] == same else i for i in found.owners]
            owner = read_owner(found.kind, item)
            if not removed and not owner.over:
                continue
            going.discard(item["metadata"]["name"])
            if removed or owner.state is not AppState.SUCCEEDED or not going:
                return
            if time.monotonic() > deadline:
                return
    except TorchXError:
        pass  # who waits will ask for the status, and be told
    time.sleep(max(min(deadline - time.monotonic(), _PAUSE_S), 0))


def changes(api: KubeApi, kind: str, namespace: str, versions: dict[str, str]) -> Iterator[str]:
    """The app ids of jobs of ours of which an object of that kind changes, until the server ends the watch.

    It begins where the last one has ended, or else now, with one of those that are there. Bookmarks keep that place
    young: https://kubernetes.io/docs/reference/using-api/api-concepts/#watch-bookmarks

    Args:
        versions: by kind, where the last watch has ended; kept up to date.
    """
    path = path_of("Pod" if kind == "Pod" else OWNERS[kind], namespace)
    if kind not in versions:  # not each server begins without one: with an old etcd it ends such a watch at once
        page = api.get(path, {"labelSelector": _OURS, "limit": 1})
        versions[kind] = str(page.get("metadata", {}).get("resourceVersion") or "")
        yield from map(_id_of, page.get("items", ()))
    watch = {"labelSelector": _OURS, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": versions[kind]}
    for event in api.events(path, watch, timeout_s=_SILENCE_S):
        item = event.get("object") or {}
        if event.get("type") == "ERROR":
            versions.pop(kind, None)  # too old
            return
        versions[kind] = str(item.get("metadata", {}).get("resourceVersion") or "")
        if event.get("type") != "BOOKMARK":
            yield _id_of(item)


def _in_jobset(item: Object) -> bool:
    references = item.get("metadata", {}).get("ownerReferences") or ()
    return any(ref.get("kind") == "JobSet" for ref in references)
