"""Jobs that torchx did not create. Their owners and pods are converted to the form of torchx's own jobs.

An app id is ``NAMESPACE:KIND:NAME``. The pods of a job are those of which it is a direct or indirect owner. They get
the labels of torchx's pods here, not in the cluster, and are then read like those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchx.errors import HandleError, NotFoundError
from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.kit.foreign import ForeignJobs, Named
from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.api.errors import unless_forbidden
from torchx.schedulers.kubernetes.api.queries import name_of
from torchx.schedulers.kubernetes.base import KubeScheduler
from torchx.schedulers.kubernetes.client import KubeApi, group_of, path_of
from torchx.schedulers.kubernetes.logs import Snapshot
from torchx.schedulers.kubernetes.names import JOB, JOBSET, KUBEFLOW, PYTORCH, Object
from torchx.schedulers.kubernetes.owners import JobObjects
from torchx.schedulers.kubernetes.pods.facts import by_age, read_pods
from torchx.specs.api import is_terminal

KINDS = {
    **{"pod": "Pod", "job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"},
    **{"pytorchjob": "PyTorchJob", "rayjob": "RayJob", "raycluster": "RayCluster"},
}
"""Kind as users write it -> key of :data:`torchx.schedulers.kubernetes.client.PLURALS`."""

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_READ_AS = {"JobSet": JOBSET, "TrainJob": KUBEFLOW, "PyTorchJob": PYTORCH}
_BETWEEN = ("Job", "JobSet", "RayCluster")
"""Kinds that may own pods and be owned by a job."""

_ROLES = (
    *("training.kubeflow.org/replica-type", "jobset.sigs.k8s.io/replicatedjob-name"),
    *("ray.io/group", "ray.io/node-type", "job-name"),
)
_INDEXES = (names.INDEX_LABEL, "jobset.sigs.k8s.io/job-index", names.INDEX_ANNOTATION)


class ForeignKubeJobs(ForeignJobs, KubeScheduler):
    """A view of a scheduler for jobs that torchx did not create."""

    def find(self, reference: str) -> Named | None:
        words = _words(reference)
        if words is None:
            return None
        api = self._api_of("")
        namespace, kind, name = words
        for one in [kind] if kind else _served(api):
            found = {str(i["metadata"]["namespace"]): i for i in _called(api, one, namespace, name)}
            own = [api.namespace()] if len(found) > 1 else []
            space = next((space for space in own if space in found), next(iter(found), ""))
            if len(found) > 1 and space not in own:
                choice = ", ".join(f"`k8s://{space}/{one.lower()}/{name}`" for space in found)
                raise HandleError(f"`{reference}` could be any of {choice}", hint="name its namespace")
            if found:
                kind, item = _top(api, space, one, found[space])
                if names.labels_of(item).get(names.LABEL_ORGANIZATION) == names.ORGANIZATION:
                    return Named(f"{space}:{name_of(item)}", ours=True)
                return Named(f"{space}:{kind.lower()}:{item['metadata']['name']}")
        return None

    def about(self, app_id: str) -> dict[str, str]:
        _, found = self._look_up(app_id)
        pod = found.pods[0] if found is not None and found.pods else {}
        containers = (pod.get("spec") or {}).get("containers") or [{}]
        words = [*(containers[0].get("command") or ()), *(containers[0].get("args") or ())]
        namespace, kind, name = _parts(app_id)
        facts = {"name": name, "kind": kind, "namespace": namespace, "image": str(containers[0].get("image") or "")}
        return {**facts, "command": " ".join(words)}

    # -- state -----------------------------------------------------------------------------------

    def _describe(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        described: dict[str, DescribeAppResponse | None] = {}
        for app_id in app_ids:
            api, found = self._look_up(app_id)
            described[app_id] = None if found is None else self._answer(api, app_id, found)
        return described

    def exists(self, app_id: str) -> bool:
        return self._look_up(app_id)[1] is not None

    wait_for_end = Scheduler.wait_for_end  # a watch selects by labels of torchx

    def log_replicas(self, app_id: str) -> list[tuple[str, int]] | None:
        api, found = self._look_up(app_id)
        if found is None:
            return None
        facts = self._facts(api, app_id, found, read_pods(found.pods))
        return [(replica.role, replica.replica) for replica in facts.replicas()]

    def _look_up(self, app_id: str) -> tuple[KubeApi, JobObjects | None]:
        """Return a job with its labelled pods; None if it does not exist."""
        api = self._api_of(app_id)
        namespace, kind, name = _parts(app_id)
        item = _get(api, KINDS.get(kind, ""), namespace, name)
        if item is None:
            return api, None
        if kind == "pod":
            return api, JobObjects(JOB, pods=labelled([item]))
        kind = KINDS[kind]
        pods = labelled(_pods_below(api, namespace, str(item["metadata"].get("uid"))))
        as_ours = _READ_AS.get(kind, JOB)
        return api, JobObjects(as_ours, [item if kind == "Job" or kind in _READ_AS else as_job(item)], pods)

    def _look(self, app_id: str) -> Snapshot:
        api, found = self._look_up(app_id)
        if found is None:
            return Snapshot([], ended=True)
        return Snapshot(found.pods, ended=is_terminal(self._state(api, app_id, found)))

    _look_at_pods = _look

    @staticmethod
    def _selector(app_id: str) -> dict[str, object]:  # noqa: ARG004  # labels differ: all pods of the namespace
        return {}

    def _cancel_existing(self, app_id: str) -> None:
        """Delete the job, because not all of these kinds can be stopped otherwise."""
        namespace, kind, name = _parts(app_id)
        self._api_of(app_id).delete(path_of(KINDS[kind], namespace, name))

    _delete_existing = _cancel_existing


def labelled(pods: Iterable[Object]) -> list[Object]:
    """Pods with torchx's labels for role and replica.

    Pods with the same index are attempts of one replica. If the pods of a Job have no index, a failed pod that is not
    the newest counts as an earlier attempt of the replica that follows it.
    """
    members: dict[str, list[Object]] = {}
    for pod in sorted(pods, key=by_age):
        members.setdefault(_role_of(pod), []).append(pod)
    found = []
    for i, (role, of_role) in enumerate(members.items()):
        indexes = sorted({index for pod in of_role if (index := _index_of(pod))})
        alive = 0
        for pod in of_role:
            k = indexes.index(_index_of(pod)) if indexes and _index_of(pod) else alive
            replaced = (pod.get("status") or {}).get("phase") == "Failed" and not indexes and pod is not of_role[-1]
            alive += not replaced
            ours = {names.LABEL_ROLE_NAME: role, names.LABEL_ROLE_INDEX: str(i), names.LABEL_REPLICA_ID: str(k)}
            found.append({**pod, "metadata": {**pod["metadata"], "labels": {**names.labels_of(pod), **ours}}})
    return found


def as_job(item: Object) -> Object:
    """Return a RayJob or a RayCluster as a Job with the same state and reason."""
    status = item.get("status") or {}
    kept = {"metadata": item["metadata"], "spec": {"suspend": (item.get("spec") or {}).get("suspend")}}
    name = {"SUCCEEDED": "Complete", "FAILED": "Failed", "STOPPED": "Failed"}.get(str(status.get("jobStatus")))
    ended = {"type": name, "status": "True", "reason": status.get("reason"), "message": status.get("message")}
    return {**kept, "status": {"conditions": [ended]} if name else {}}


def _role_of(pod: Object) -> str:
    labels = names.labels_of(pod)
    name = next((str(labels[label]) for label in _ROLES if labels.get(label)), "")
    return names.label_value(name or str(pod["metadata"]["name"])).lower()


def _index_of(pod: Object) -> tuple[int, ...]:
    known = {**names.annotations_of(pod), **names.labels_of(pod)}
    return tuple(int(known[name]) for name in _INDEXES if str(known.get(name, "")).isdigit())


def _parts(app_id: str) -> tuple[str, str, str]:
    """Namespace, kind and name in an app id; empty if it has none."""
    namespace, kind, name, *_ = [*app_id.split(":", 2), "", ""]
    return namespace, kind, name


def _get(api: KubeApi, kind: str, namespace: str, name: str) -> Object | None:
    try:  # without a name, the path would be that of all objects
        return api.get(path_of(kind, namespace, name)) if kind and name.strip(".") else None
    except NotFoundError:  # the object or the kind
        return None


def _words(reference: str) -> tuple[str, str, str] | None:
    """Split a name that kubectl or a user gives a job into namespace, kind and name; empty where it says nothing.

    >>> _words("team/jobs/train"), _words("job.batch/train"), _words("team/train"), _words("a/b/c"), _words("4711")
    (('team', 'Job', 'train'), ('', 'Job', 'train'), ('team', '', 'train'), None, None)
    """
    *spaces, name = reference.split("/")
    kind = KINDS.get(spaces[-1].lower().partition(".")[0].removesuffix("s"), "") if spaces else ""
    spaces = spaces[:-1] if kind else spaces
    if len(spaces) > 1 or not _NAME.fullmatch(name) or (not kind and name.isdigit()):
        return None
    return (spaces[0] if spaces else ""), kind, name


def _served(api: KubeApi) -> list[str]:
    """Return the kinds that the cluster has, owners before what they own."""
    groups = {group.partition("/")[0] for group in api.groups()} | {"", "batch"}
    return [kind for kind in reversed(KINDS.values()) if group_of(kind) in groups]


def _called(api: KubeApi, kind: str, namespace: str, name: str) -> list[Object]:
    """Return the objects of a kind with a name, in all namespaces, or if we may not list those, in kubeconfig's."""
    if not namespace:
        query = {"fieldSelector": f"metadata.name={name}"}
        try:
            found = unless_forbidden(lambda: api.items(path_of(kind, None), query), None)
        except NotFoundError:  # the cluster has no such kind
            return []
        if found is not None:
            return found
    one = _get(api, kind, namespace or api.namespace(), name)
    return [] if one is None else [one]


def _top(api: KubeApi, namespace: str, kind: str, item: Object) -> tuple[str, Object]:
    """Return the topmost owner of an object among the kinds of jobs."""
    references = item["metadata"].get("ownerReferences") or ()
    for owner in (ref for ref in references if ref.get("kind") in KINDS.values()):
        above = unless_forbidden(lambda o=owner: _get(api, o["kind"], namespace, o["name"]), None)  # type: ignore[misc]  # a default of the loop's own
        if above is not None:
            return _top(api, namespace, owner["kind"], above)
    return kind, item


def _pods_below(api: KubeApi, namespace: str, uid: str) -> list[Object]:
    """Return the pods that an object owns directly or indirectly."""
    wanted = {uid}
    between = [item for kind in _BETWEEN for item in _all(api, kind, namespace)]
    while more := {str(i["metadata"].get("uid")) for i in between if _owners(i) & wanted} - wanted:
        wanted |= more
    return [pod for pod in _all(api, "Pod", namespace) if _owners(pod) & wanted]


def _all(api: KubeApi, kind: str, namespace: str) -> list[Object]:
    try:
        return unless_forbidden(lambda: api.items(path_of(kind, namespace)), [])
    except NotFoundError:
        return []


def _owners(item: Object) -> set[str]:
    return {str(ref.get("uid")) for ref in item["metadata"].get("ownerReferences") or ()}
