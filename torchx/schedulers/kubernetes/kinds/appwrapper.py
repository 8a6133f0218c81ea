"""Renders an app as an AppWrapper of MCAD (CodeFlare): one object that contains a Service and a pod for each replica.

Two versions are supported: ``workload.codeflare.dev/v1beta2`` (https://project-codeflare.github.io/appwrapper/) and the
older ``mcad.ibm.com/v1beta1``, whose parts are called generic items.
"""

from __future__ import annotations

from torchx.schedulers.kubernetes import request
from torchx.schedulers.kubernetes.names import (
    DELETION_GRACE,
    FAILURE_GRACE,
    LABEL_REPLICA_ID,
    RETRY_LIMIT,
    V1BETA2,
    Object,
)
from torchx.schedulers.kubernetes.pods import specs
from torchx.schedulers.kubernetes.pods.specs import JobRules
from torchx.specs.api import AppDef, RetryPolicy, Role

NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""Annotation of Multus: additional networks of a pod."""
_KEPT = "5m"
"""For how long the pods of a failed job are kept, so that status and log can be read: they hold their quota."""
POD_GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io"
"""Label of the coscheduling plugin."""


def render(
    app: AppDef,
    app_id: str,
    rules: JobRules,
    *,
    form: str = V1BETA2,
    priority: int | None = None,
    network: str | None = None,
) -> Object:
    """Return the AppWrapper of an app. The form :data:`V1BETA1` has a priority; the highest is dispatched first."""
    service = request.headless_service(app, app_id, rules)
    service["metadata"].pop("annotations")  # the AppWrapper has them
    parts = [service]
    for i, (role, name, labels) in enumerate(request.each_role(app, app_id, rules)):
        if rules.scheduler_name:
            group = f"{app_id}-{name}"
            parts.append(pod_group(role, group, rules.opts.namespace, specs.role_labels(app, i, app_id)))
            labels[POD_GROUP_LABEL] = group
        parts += _pods(role, f"{app_id}-{name}", app_id, rules, labels)
    for pod in parts if network else ():
        if pod["kind"] == "Pod":
            pod["metadata"]["annotations"][NETWORKS] = network
    metadata = request.metadata_of_app(app, app_id, rules, rules.metadata)
    wrapper: Object = {"apiVersion": form, "kind": "AppWrapper", "metadata": metadata}
    retries = max(role.max_retries for role in app.roles)
    if form == V1BETA2:
        metadata["annotations"] |= {RETRY_LIMIT: str(retries), DELETION_GRACE: _KEPT}
        if not retries:  # nothing could correct the failure
            metadata["annotations"][FAILURE_GRACE] = "0s"
        wrapper["spec"] = {"components": [_component(part) for part in parts]}
        return wrapper
    spec: Object = {"resources": {"GenericItems": [_generic_item(part) for part in parts]}}
    if priority is not None:
        spec["priority"] = priority
    if retries:
        spec["schedulingSpec"] = scheduling_spec(retries, sum(r.num_replicas for r in app.roles))
    return {**wrapper, "spec": spec}


def scheduling_spec(retries: int, pods_needed: int) -> Object:
    """Return the retries of a v1beta1 AppWrapper, which MCAD queues again if pods are lost."""
    return {"minAvailable": pods_needed, "requeuing": {"maxNumRequeuings": retries}}


def pod_group(role: Role, name: str, namespace: str, labels: dict[str, str]) -> Object:
    """Return the PodGroup of one role, whose pods the coscheduling plugin starts together.

    https://github.com/kubernetes-sigs/scheduler-plugins/tree/master/pkg/coscheduling
    """
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"minMember": role.num_replicas if role.min_replicas is None else role.min_replicas},
    }


def _pods(role: Role, name: str, app_id: str, rules: JobRules, labels: dict[str, str]) -> list[Object]:
    found = []
    for k in range(role.num_replicas):
        own = {**labels, LABEL_REPLICA_ID: str(k)}
        host = f"{name}-{k}"
        template = request.template_of(role, rules, app_id, own, replica_id=str(k), rank0=f"{name}-0.{app_id}")
        template["metadata"].update(name=host, namespace=rules.opts.namespace)
        template["spec"].update(hostname=host, subdomain=app_id)
        if role.retry_policy is RetryPolicy.REPLICA and role.max_retries:
            template["spec"]["restartPolicy"] = "OnFailure"
        found.append({"apiVersion": "v1", "kind": "Pod", **template})
    return found


def _component(part: Object) -> Object:
    # A component can be of any kind, so that MCAD needs the path of the pod template.
    if part["kind"] == "Pod":
        return {"podSets": [{"replicas": 1, "path": "template"}], "template": part}
    return {"template": part}


def _generic_item(part: Object) -> Object:
    item: Object = {"replicas": 1, "generictemplate": part}
    if part["kind"] == "Pod":
        container = part["spec"]["containers"][0]
        item["completionstatus"] = "Complete"
        item["custompodresources"] = [{"replicas": 1, **container["resources"]}]
    return item
