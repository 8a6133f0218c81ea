"""Gangs without a controller: the cluster's own scheduler starts the pods of plain Jobs all together, or none.

A PodGroup says how many pods must fit; the pods name it. Since Kubernetes 1.36, where the API server serves the group:
https://kubernetes.io/docs/concepts/scheduling-eviction/gang-scheduling/

The scheduler does not count pods that have ended. After others have succeeded, a pod that replaces a failed one might
thus wait for ever: jobs whose pods are replaced one by one are gangs only if asked for.
"""

from __future__ import annotations

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.kubernetes.api.errors import unless_forbidden
from torchx.schedulers.kubernetes.client import GANGS, PLURALS, KubeApi, path_of
from torchx.schedulers.kubernetes.names import Object
from torchx.schedulers.kubernetes.options import GANG, KubernetesOpts
from torchx.specs.api import AppDef
from torchx.util.notices import logger

_, _YES, _NO = GANG
_SINCE = (1, 36)
_FIELD = "schedulingGroup"


def grouped(
    api: KubeApi, objects: list[Object], app: AppDef, opts: KubernetesOpts, version: tuple[int, int]
) -> list[Object]:
    """Return the objects of an app of plain Jobs; with its PodGroup if the cluster schedules gangs, and it has several
    pods.

    BackendError if ``gang=yes`` and the cluster does not, or we may not create a PodGroup.
    """
    jobs = [item["spec"] for item in objects if item["kind"] == "Job"]
    pods = [job["template"]["spec"] for job in jobs]
    replaced = any(job.get("backoffLimit") or job.get("backoffLimitPerIndex") for job in jobs)
    least = sum(role.num_replicas if role.min_replicas is None else role.min_replicas for role in app.roles)
    unwanted = opts.gang == _NO or (replaced and opts.gang != _YES)
    if unwanted or least < 2 or any(_FIELD in pod for pod in pods):
        return objects
    there = api.groups() if version >= _SINCE else set()
    kind = next((kind for kind in GANGS if PLURALS[kind][0].removeprefix("apis/") in there), None)
    if kind is None or not api.may("create", kind, opts.namespace):
        said = "you may not create a PodGroup" if kind else f"Kubernetes {version[0]}.{version[1]} serves no PodGroups"
        if opts.gang == _YES:
            raise BackendError(
                f"{said} in `{opts.namespace}`, which `gang=yes` needs" if kind else f"{said}, which `gang=yes` needs",
                hint="omit `gang`, or use `kind=volcano`; they need Kubernetes 1.36 with the feature GenericWorkload",
            )
        if kind:
            logger("torchx.schedulers").info("%s in `%s`: its pods are scheduled one by one", said, opts.namespace)
        return objects
    first, *others = objects
    group = _pod_group(kind, first["metadata"], least, opts)
    return [first, group, *(_joined(item, group["metadata"]["name"]) for item in others)]


def _joined(item: Object, group: str) -> Object:
    """Return a Job whose pods belong to a group; other objects unchanged."""
    if item["kind"] != "Job":
        return item
    template = item["spec"]["template"]
    pod = {**template["spec"], _FIELD: {"podGroupName": group}}
    return {**item, "spec": {**item["spec"], "template": {**template, "spec": pod}}}


def _pod_group(kind: str, metadata: Object, least: int, opts: KubernetesOpts) -> Object:
    base = PLURALS[kind][0].removeprefix("apis/")
    spec: Object = {"schedulingPolicy": {"gang": {"minCount": least}}}
    if opts.priority_class and kind != GANGS[-1]:  # there it needs a feature of its own
        spec["priorityClassName"] = opts.priority_class
    return {"apiVersion": base, "kind": "PodGroup", "metadata": {**metadata}, "spec": spec}


def why_it_waits(api: KubeApi, namespace: str, owners: list[Object]) -> str:
    """Return why the gang of a job is not scheduled, in the scheduler's words; empty if it is, or has none."""
    pods = [((item.get("spec") or {}).get("template") or {}).get("spec") or {} for item in owners]
    name = next((pod[_FIELD].get("podGroupName") for pod in pods if pod.get(_FIELD)), "")
    if not name:
        return ""
    try:
        group = unless_forbidden(lambda: api.of_any(GANGS, lambda kind: api.get(path_of(kind, namespace, name))), {})
    except NotFoundError:
        return f"its PodGroup `{name}` does not exist"
    for condition in (group.get("status") or {}).get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("PodGroupScheduled", "False"):
            return f"its gang waits: {condition.get('message') or condition.get('reason')}"
    return ""
